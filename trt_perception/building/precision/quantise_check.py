"""Find what TensorRT would refuse in a quantised model, before its parser says it worse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from trt_perception.building.graph.graph_index import GraphIndex, opset_version
from trt_perception.building.precision.quantise_scales import is_usable
from trt_perception.errors import EngineError
from trt_perception.files.plain_text import join_first

__all__ = ['check_quantised', 'is_quantised']

_TYPES: Final = ('QuantizeLinear', 'DequantizeLinear')
_NARROW: Final = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN)
_HALF: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_ZERO: Final = (
    'a scale of 0 comes from a tensor that was always 0 when its range was taken: leave the nodes '
    'that read it in float when quantising, or quantise here, from the model before quantisation: '
    '--precision int8 --calibration-images DIR'
)
_AGAIN: Final = 'quantise it again symmetrically, with biases in float'


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether a model has Q/DQ nodes."""
    return any(node.op_type in _TYPES for node in model.graph.node)


def check_quantised(model: onnx.ModelProto) -> None:
    """Check a model's Q/DQ nodes; one that has none passes.

    Raises:
        EngineError: a zero point is not 0 or missing, a type is neither INT8 nor FP8 (E4M3), a
            scale is not a positive constant, or its type needs a newer opset.
    """
    index = GraphIndex(model.graph)
    nodes = [node for node in model.graph.node if node.op_type in _TYPES]
    scales: dict[str, str] = {}  # by tensor: both nodes of a pair have the same one
    for node in nodes:
        if text := _scale_fault(node, index):
            scales.setdefault(_quantised_tensor(node, index), text)
    others = [
        f'{node.op_type} {node.name!r}: {fault}'
        for node in nodes
        for fault in _faults(node, index, opset_version(model))
    ]
    if found := [*scales.values(), *others]:
        raise EngineError(
            'this quantised model',
            f'TensorRT would refuse it: {join_first(found, separator="; ")}',
            fix='; '.join([_ZERO] * bool(scales) + [_AGAIN] * bool(others)),
        )


def _quantised_tensor(node: onnx.NodeProto, index: GraphIndex) -> str:
    """Return what a Q or DQ node belongs to: the tensor before its pair, or stored weights."""
    maker = index.producer.get(node.input[0])
    is_pair = maker is not None and maker.op_type == 'QuantizeLinear'
    return str(maker.input[0] if maker is not None and is_pair else node.input[0])


def _scale_fault(node: onnx.NodeProto, index: GraphIndex) -> str:
    """Return what is wrong with the numbers of a constant scale, empty where nothing is."""
    scale = index.constant(node.input[1])
    bad = np.flatnonzero(~is_usable(scale)) if scale is not None else np.empty(0)
    if scale is None or not bad.size:
        return ''
    where = ''
    if scale.size > 1:
        channels = join_first([str(channel) for channel in bad])
        where = f' in {bad.size} of {scale.size} channels ({channels})'
    tensor = _quantised_tensor(node, index)
    widening = [node]
    if node.op_type == 'QuantizeLinear':
        widening = index.consumers.get(node.output[0], [])
    readers = [n.name for end in widening for n in index.consumers.get(end.output[0], [])]
    return (
        f'{"weights" if index.is_constant(tensor) else "tensor"} {tensor!r}, read by '
        f'{", ".join(map(repr, readers)) or "nobody"}: {node.op_type} {node.name!r} has the scale '
        f'{float(scale.reshape(-1)[bad[0]]):g}{where}, which is not a positive number'
    )


def _faults(node: onnx.NodeProto, index: GraphIndex, version: int) -> Iterator[str]:
    if node.domain not in ('', 'ai.onnx'):
        yield f"is of the domain {node.domain}; expected ONNX's own"
    if len(node.input) < 3 or not node.input[2]:
        # Without one the type is uint8, which has its middle at 128.
        yield 'has no zero point, so it is uint8; expected an int8 zero point of 0'
    else:
        zero = index.initializers.get(node.input[2])
        value = index.constant(node.input[2])
        if value is None:
            yield 'computes its zero point; expected a constant 0'
        else:
            kind = zero.data_type if zero is not None else TensorProto.UNDEFINED
            if zero is not None and kind not in _NARROW:
                yield (
                    f'is of type {TensorProto.DataType.Name(kind).lower()}; expected int8 or '
                    'float8e4m3fn'
                )
            if np.any(value.astype(np.float32) != 0):
                yield 'has a zero point other than 0'
    scale = index.constant(node.input[1])
    if scale is None:
        yield 'computes its scale; expected a constant'
        return
    stored = index.initializers.get(node.input[1])
    if stored is not None and stored.data_type in _HALF and version < 19:
        name = TensorProto.DataType.Name(stored.data_type).lower()
        yield f'has a {name} scale, which needs opset 19 (the model has {version})'
