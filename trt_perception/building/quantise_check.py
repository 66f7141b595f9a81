"""Find what TensorRT would refuse in a quantised model, before its parser says it worse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from trt_perception.building.graph_index import GraphIndex
from trt_perception.building.graph_index import opset
from trt_perception.errors import EngineError

__all__ = ['check_quantised', 'is_quantised']

_TYPES: Final = ('QuantizeLinear', 'DequantizeLinear')
_SHOWN: Final = 5
_NARROW: Final = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN)
_HALF: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether a model has Q/DQ nodes."""
    return any(node.op_type in _TYPES for node in model.graph.node)


def check_quantised(model: onnx.ModelProto) -> None:
    """Check a model's Q/DQ nodes; one that has none passes.

    Raises:
        EngineError: a zero point is not 0 or missing, a type is neither INT8 nor FP8 (E4M3), a
            scale is no positive constant, or its type needs a newer opset.
    """
    index = GraphIndex(model.graph)
    nodes = [node for node in model.graph.node if node.op_type in _TYPES]
    faults = [
        f'{node.op_type} {node.name!r}: {fault}'
        for node in nodes
        for fault in _faults(node, index, opset(model))
    ]
    if faults:
        more = f' and {len(faults) - _SHOWN} more' if len(faults) > _SHOWN else ''
        raise EngineError(
            f'TensorRT would refuse this quantised model: {"; ".join(faults[:_SHOWN])}{more}. '
            'Quantise it again symmetrically, with biases in float'
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
    numbers = scale.astype(np.float64)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        yield 'has a scale that is not a positive number'
    stored = index.initializers.get(node.input[1])
    if stored is not None and stored.data_type in _HALF and version < 19:
        name = TensorProto.DataType.Name(stored.data_type).lower()
        yield f'has a {name} scale, which needs opset 19 (the model has {version})'
