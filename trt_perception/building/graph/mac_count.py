"""Count the multiply-accumulates of a network's layers, by the precision they run in.

A multiply-accumulate (MAC) is one product added to a sum. Counted are Conv, ConvTranspose, Gemm
and MatMul, from the shapes that ONNX infers; everything else in a detector is below a percent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import TensorProto

from trt_perception.building.graph.graph_index import LAYER_TYPES, GraphIndex, tensor_types
from trt_perception.errors import EngineError

__all__ = ['LayerWork', 'count_layer_macs', 'infer_shapes', 'mac_shares']

_NAMES: Final[dict[int, str]] = {
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
    """One layer: its node, its multiply-accumulates, and the precision they are done in."""

    node: str
    macs: int
    precision: str


def infer_shapes(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> onnx.ModelProto:
    """Return a copy whose tensors all have the types and shapes that ONNX can infer.

    Args:
        model: any model.
        input_shapes: by input, what its dimensions shall be; nothing leaves them as they are.

    Raises:
        EngineError: the graph contradicts itself.
    """
    copied = copy.deepcopy(model)
    given = input_shapes or {}
    for entry in copied.graph.input:
        sides = entry.type.tensor_type.shape.dim
        for dimension, side in zip(sides, given.get(entry.name, ()), strict=False):
            dimension.dim_value = side
    if given:
        # What was inferred, or written, for other input shapes contradicts these.
        del copied.graph.value_info[:]
        for entry in copied.graph.output:
            entry.type.tensor_type.ClearField('shape')
    try:
        return onnx.shape_inference.infer_shapes(copied, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise EngineError(
            'the shapes of the model', f'contradict each other: {error}', fix='export it again'
        ) from error


def count_layer_macs(
    model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[LayerWork, ...]:
    """Return the work of each layer, in graph order; 0 where ONNX cannot infer the shapes.

    Args:
        model: any model.
        input_shapes: by input; where one is missing and its batch is open, that is 1.
    """
    inferred = infer_shapes(model, {**_single(model), **(input_shapes or {})})
    graph = inferred.graph
    index = GraphIndex(graph)
    types = tensor_types(graph)
    shapes = {name: tuple(d.dim_value for d in kind.shape.dim) for name, kind in types.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    return tuple(
        LayerWork(node.name, _macs(node, shapes), _precision(node, index, types))
        for node in graph.node
        if node.op_type in LAYER_TYPES
    )


def mac_shares(work: Sequence[LayerWork]) -> dict[str, float]:
    """Return the share of all multiply-accumulates that each precision has, 0…1."""
    total = sum(layer.macs for layer in work)
    found: dict[str, float] = {}
    for layer in work:
        if total:
            found[layer.precision] = found.get(layer.precision, 0.0) + layer.macs / total
    return found


def _single(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Return a batch of one for each input that leaves it open."""
    sides = {entry.name: entry.type.tensor_type.shape.dim for entry in model.graph.input}
    return {name: [1] for name, dims in sides.items() if dims and not dims[0].dim_value}


def _macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    names = node.input[0], node.input[1], node.output[0]
    data, weights, result = (shapes.get(name, ()) for name in names)
    if not data or not weights or not result:
        return 0
    if node.op_type == 'Conv':  # weights (out, in / groups, kernel…), used for each output pixel
        return math.prod(result) * math.prod(weights[1:])
    if node.op_type == 'ConvTranspose':  # weights (in, out / groups, kernel…), for each input
        return math.prod(data) * math.prod(weights[1:])
    transposed = any(a.name == 'transA' and a.i for a in node.attribute)
    inner = data[0] if node.op_type == 'Gemm' and transposed else data[-1]
    return math.prod(result) * inner


def _precision(
    node: onnx.NodeProto, index: GraphIndex, types: Mapping[str, onnx.TypeProto.Tensor]
) -> str:
    """Return the narrow type if both operands are dequantised, else that of the data."""
    quantised = [_quantised_type(name, index) for name in node.input[:2]]
    if quantised[0] is not None and quantised[1] is not None:
        return _NAMES.get(quantised[0], str(quantised[0]))
    kind = types.get(node.input[0])
    return _NAMES.get(kind.elem_type, 'unknown') if kind is not None else 'unknown'


def _quantised_type(name: str, index: GraphIndex) -> int | None:
    node = index.producer.get(name)
    if node is None or node.op_type != 'DequantizeLinear':
        return None
    if len(node.input) < 3:
        return int(TensorProto.UINT8)  # the default of both operators
    zero_point = index.initializers.get(node.input[2])
    return None if zero_point is None else zero_point.data_type
