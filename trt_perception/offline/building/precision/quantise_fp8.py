# SPDX-License-Identifier: Apache-2.0
"""Converts a model quantised to INT8 into a model quantised to FP8 (E4M3).

Layers and ranges stay the same. The largest magnitude is 448 instead of 127. TensorRT runs FP8
convolutions on compute capability 8.9 and newer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Final

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from trt_perception.errors import EngineError
from trt_perception.offline.building.graph.graph_index import (
    GraphIndex,
    broadcast_scale,
    channel_axis,
)

_E4M3_MAX: Final = 448.0  # largest finite number in E4M3
_INT8_MAX: Final = 127.0
_QUANTISED_NAME_SUFFIX: Final = (
    '_quantized'  # ONNX Runtime's quantiser adds this suffix to names of weights
)


def convert_to_fp8(quantised: onnx.ModelProto, source: onnx.ModelProto) -> onnx.ModelProto:
    """Return an FP8 model with the same quantised layers and ranges as an INT8 model.

    Args:
        quantised: model from ONNX Runtime's quantiser, symmetric INT8; not changed.
        source: float32 model before quantisation. The FP8 weights come from its weights, because
            rounding the INT8 weights would round twice.

    Raises:
        EngineError: the source lacks the weights of a layer.
    """
    result = copy.deepcopy(quantised)
    pairs = [n for n in result.graph.node if n.op_type in ('QuantizeLinear', 'DequantizeLinear')]
    scales = {node.input[1] for node in pairs}
    zeros = {node.input[2] for node in pairs}
    for tensor in result.graph.initializer:
        if tensor.name in scales:
            wide = numpy_helper.to_array(tensor)
            narrow = (wide * (_INT8_MAX / _E4M3_MAX)).astype(wide.dtype)
            tensor.CopyFrom(numpy_helper.from_array(narrow, tensor.name))
        elif tensor.name in zeros:
            zero = np.zeros(tuple(tensor.dims), ml_dtypes.float8_e4m3fn)
            tensor.CopyFrom(numpy_helper.from_array(zero, tensor.name))
    _round_weights(result, pairs, GraphIndex(source.graph))
    for entry in result.graph.value_info:
        if entry.type.tensor_type.elem_type == onnx.TensorProto.INT8:
            entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN
    return result


def _round_weights(
    model: onnx.ModelProto, pairs: Iterable[onnx.NodeProto], original: GraphIndex
) -> None:
    """Replace INT8 weights by FP8 weights, rounded from the original weights.

    Args:
        model: model whose scales are for FP8.
        original: index of the float32 model.
    """
    index = GraphIndex(model.graph)
    readers = {node.input[0]: node for node in pairs}
    for tensor in model.graph.initializer:
        node = readers.get(tensor.name)
        if node is None:
            continue
        exact = original.constant(tensor.name.removesuffix(_QUANTISED_NAME_SUFFIX))
        scale = index.constant(node.input[1])
        if exact is None:
            raise EngineError(f'the weights {tensor.name!r}', 'are missing in the float32 model')
        assert scale is not None
        shaped = broadcast_scale(scale, channel_axis(node, exact.ndim), exact.ndim)
        narrow = (exact.astype(np.float32) / shaped.astype(np.float32)).clip(-_E4M3_MAX, _E4M3_MAX)
        stored = narrow.astype(ml_dtypes.float8_e4m3fn)
        tensor.CopyFrom(numpy_helper.from_array(stored, tensor.name))
