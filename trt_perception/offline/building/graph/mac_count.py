# SPDX-License-Identifier: Apache-2.0
"""Counts the multiply-accumulates of a network's layers, by precision.

A multiply-accumulate (MAC) is one product added to a sum. The operators Conv, ConvTranspose, Gemm
and MatMul count, with shapes from ONNX's inference. In a detector, all other operators together do
less than one percent of the work.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import TensorProto

from trt_perception.errors import EngineError
from trt_perception.offline.building.graph.graph_index import LAYER_TYPES, GraphIndex, tensor_types

_PRECISION_NAMES: Final[dict[int, str]] = {
    TensorProto.FLOAT: 'fp32',
    TensorProto.FLOAT16: 'fp16',
    TensorProto.BFLOAT16: 'bf16',
    TensorProto.DOUBLE: 'fp64',
    TensorProto.INT8: 'int8',
    TensorProto.UINT8: 'uint8',
    TensorProto.FLOAT8E4M3FN: 'fp8',
}


@dataclass(frozen=True)
class LayerWork:
    """One layer: name of its node, number of multiply-accumulates, and their precision."""

    node: str
    macs: int
    precision: str


def infer_shapes(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> onnx.ModelProto:
    """Return a copy of a model with all types and shapes that ONNX can infer.

    Args:
        input_shapes: shapes of inputs, by input name; None to keep the model's shapes.

    Raises:
        EngineError: types or shapes in the graph contradict each other.
    """
    copied = copy.deepcopy(model)
    shapes_by_input = input_shapes or {}
    for entry in copied.graph.input:
        sides = entry.type.tensor_type.shape.dim
        for dimension, side in zip(sides, shapes_by_input.get(entry.name, ()), strict=False):
            dimension.dim_value = side
    if shapes_by_input:
        # Stored shapes belong to other input shapes, and would contradict the new shapes.
        del copied.graph.value_info[:]
        for entry in copied.graph.output:
            entry.type.tensor_type.ClearField('shape')
    try:
        return onnx.shape_inference.infer_shapes(copied, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise EngineError(
            "the model's shapes", f'contradict each other: {error}', fix='export the model again'
        ) from error


def count_layer_macs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[LayerWork, ...]:
    """Return the work of each layer, in graph order. A layer of unknown shape has 0 MACs.

    Args:
        input_shapes: shapes of inputs, by input name. An input that is not listed gets batch size
            1 if its batch is dynamic.
    """
    sides = {entry.name: entry.type.tensor_type.shape.dim for entry in model.graph.input}
    # The shape prefix [1] sets a dynamic batch to 1.
    prefixes = {name: [1] for name, dims in sides.items() if dims and not dims[0].dim_value}
    inferred = infer_shapes(model, {**prefixes, **(input_shapes or {})})
    graph = inferred.graph
    index = GraphIndex(graph)
    types = tensor_types(graph)
    shapes = {name: tuple(d.dim_value for d in kind.shape.dim) for name, kind in types.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    element_types = {name: kind.elem_type for name, kind in types.items()}
    element_types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return tuple(
        LayerWork(node.name, _node_macs(node, shapes), _node_precision(node, index, element_types))
        for node in graph.node
        if node.op_type in LAYER_TYPES
    )


def mac_shares_by_precision(work: Sequence[LayerWork]) -> dict[str, float]:
    """Return the share of each precision in all multiply-accumulates, 0…1."""
    total = sum(layer.macs for layer in work)
    found: dict[str, float] = {}
    for layer in work:
        if total:
            found[layer.precision] = found.get(layer.precision, 0.0) + layer.macs / total
    return found


def _node_macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    names = node.input[0], node.input[1], node.output[0]
    data, weights, result = (shapes.get(name, ()) for name in names)
    if not data or not weights or not result:
        return 0
    if node.op_type == 'Conv':  # weights (out, in / groups, kernel…), all used per output pixel
        return math.prod(result) * math.prod(weights[1:])
    if (
        node.op_type == 'ConvTranspose'
    ):  # weights (in, out / groups, kernel…), used per input pixel
        return math.prod(data) * math.prod(weights[1:])
    transposed = any(a.name == 'transA' and a.i for a in node.attribute)
    inner = data[0] if node.op_type == 'Gemm' and transposed else data[-1]
    return math.prod(result) * inner


def _node_precision(
    node: onnx.NodeProto, index: GraphIndex, element_types: Mapping[str, int]
) -> str:
    """Return the quantised type if both operands are dequantised, otherwise the data's type."""
    quantised = [_quantised_type(name, index, element_types) for name in node.input[:2]]
    if quantised[0] is not None and quantised[1] is not None:
        return _PRECISION_NAMES.get(quantised[0], str(quantised[0]))
    kind = element_types.get(node.input[0], TensorProto.UNDEFINED)
    return _PRECISION_NAMES.get(kind, 'unknown')


def _quantised_type(name: str, index: GraphIndex, element_types: Mapping[str, int]) -> int | None:
    """Return the type of the values that are dequantised to a tensor; None for other tensors."""
    node = index.producer.get(name)
    if node is None or node.op_type != 'DequantizeLinear':
        return None
    return element_types.get(node.input[0])
