# SPDX-License-Identifier: Apache-2.0
"""Checks a quantised model for defects that TensorRT's parser reports less clearly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import join_first_items
from trt_perception.offline.building.graph.graph_index import GraphIndex, opset_version
from trt_perception.offline.building.precision.quantise_scales import usable_scale_mask

_QDQ_OPERATORS: Final = ('QuantizeLinear', 'DequantizeLinear')
_ALLOWED_TYPES: Final = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN)
_HALF_TYPES: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_ZERO_SCALE_FIX: Final = (
    'when you quantise, keep the nodes that read this tensor in float, because a tensor that is '
    'always 0 during calibration gets the scale 0; or quantise with this tool, from the model '
    'before quantisation: --precision int8 --calibration-images DIR'
)
_OTHER_DEFECT_FIX: Final = 'quantise the model again, symmetrically and with biases in float'


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether a model has Q/DQ nodes."""
    return any(node.op_type in _QDQ_OPERATORS for node in model.graph.node)


def check_quantised(model: onnx.ModelProto) -> None:
    """Check the Q/DQ nodes of a model. A model without Q/DQ nodes passes.

    Raises:
        EngineError: a zero point is missing or not 0; a type is neither INT8 nor FP8 (E4M3); a
            scale is not a positive constant; or the type of a scale needs a newer opset.
    """
    index = GraphIndex(model.graph)
    nodes = [node for node in model.graph.node if node.op_type in _QDQ_OPERATORS]
    scales: dict[str, str] = {}  # keyed by tensor: the Q and DQ nodes of a pair share their scale
    for node in nodes:
        if text := _scale_defect(node, index):
            scales.setdefault(_quantised_tensor(node, index), text)
    others = [
        f'{node.op_type} {node.name!r}: {defect}'
        for node in nodes
        for defect in _node_defects(node, index, opset_version(model))
    ]
    if found := [*scales.values(), *others]:
        raise EngineError(
            'this quantised model',
            f'TensorRT would refuse it: {join_first_items(found, separator="; ")}',
            fix='; '.join([_ZERO_SCALE_FIX] * bool(scales) + [_OTHER_DEFECT_FIX] * bool(others)),
        )


def _quantised_tensor(node: onnx.NodeProto, index: GraphIndex) -> str:
    """Return what a Q or DQ node quantises: the input of the Q node, or stored weights."""
    producer = index.producer.get(node.input[0])
    is_pair = producer is not None and producer.op_type == 'QuantizeLinear'
    return str(producer.input[0] if producer is not None and is_pair else node.input[0])


def _scale_defect(node: onnx.NodeProto, index: GraphIndex) -> str:
    """Return why a constant scale is invalid; empty if all its numbers are positive."""
    scale = index.constant(node.input[1])
    bad = np.flatnonzero(~usable_scale_mask(scale)) if scale is not None else np.empty(0)
    if scale is None or not bad.size:
        return ''
    where = ''
    if scale.size > 1:
        channels = join_first_items([str(channel) for channel in bad])
        where = f' in {bad.size} of {scale.size} channels ({channels})'
    tensor = _quantised_tensor(node, index)
    widening = [node]
    if node.op_type == 'QuantizeLinear':
        widening = index.consumers.get(node.output[0], [])
    readers = [n.name for end in widening for n in index.consumers.get(end.output[0], [])]
    return (
        f'{"weights" if index.is_constant(tensor) else "tensor"} {tensor!r}, read by '
        f'{", ".join(map(repr, readers)) or "no node"}: {node.op_type} {node.name!r} has the '
        f'scale {float(scale.reshape(-1)[bad[0]]):g}{where}, which is not a positive number'
    )


def _node_defects(node: onnx.NodeProto, index: GraphIndex, version: int) -> Iterator[str]:
    if node.domain not in ('', 'ai.onnx'):
        yield f"has the domain {node.domain}; expected ONNX's own domain"
    if len(node.input) < 3 or not node.input[2]:
        # Without a zero point the type is uint8, whose middle is 128.
        yield 'has no zero point, so it is uint8; expected an int8 zero point of 0'
    else:
        zero = index.stored_constant(node.input[2])
        if zero is None:
            yield 'has a computed zero point; expected a constant 0'
        else:
            if zero.data_type not in _ALLOWED_TYPES:
                name = TensorProto.DataType.Name(zero.data_type).lower()
                yield f'has the type {name}; expected int8 or float8e4m3fn'
            if np.any(numpy_helper.to_array(zero).astype(np.float32) != 0):
                yield 'has a zero point other than 0'
    scale = index.stored_constant(node.input[1])
    if scale is None:
        yield 'has a computed scale; expected a constant'
        return
    if scale.data_type in _HALF_TYPES and version < 19:
        name = TensorProto.DataType.Name(scale.data_type).lower()
        yield f'has a {name} scale, which needs opset 19 (the model has {version})'
