# SPDX-License-Identifier: Apache-2.0
"""Removes the Q/DQ nodes of a quantised model, to compare the model with FP16.

The weights become the values that DequantizeLinear returns; all other nodes stay. The result is as
fast as the model before quantisation in the same precision, but less exact.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from trt_perception.offline.building.graph.graph_index import (
    GraphIndex,
    broadcast_scale,
    channel_axis,
)


def dequantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without Q/DQ nodes.

    Args:
        model: quantised model that passed ``check_quantised``, so its scales are constants.
    """
    copied = copy.deepcopy(model)
    graph = copied.graph
    index = GraphIndex(graph)
    renamed: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != 'DequantizeLinear':
            continue
        quantiser = index.producer.get(node.input[0])
        if quantiser is not None and quantiser.op_type == 'QuantizeLinear':
            renamed[node.output[0]] = quantiser.input[0]
            continue
        weights = _dequantised_weights(index, node)
        graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
    kept = [n for n in graph.node if n.op_type not in ('QuantizeLinear', 'DequantizeLinear')]
    for node in kept:
        for position, name in enumerate(node.input):
            while name in renamed:
                name = renamed[name]
            node.input[position] = name
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    return copied


def _dequantised_weights(index: GraphIndex, node: onnx.NodeProto) -> npt.NDArray[np.generic]:
    """Return stored weights times their scale, in the scale's type. Zero points must be 0."""
    stored, scale = index.constant(node.input[0]), index.constant(node.input[1])
    assert stored is not None
    assert scale is not None
    shaped = broadcast_scale(scale, channel_axis(node, stored.ndim), stored.ndim)
    wide: npt.NDArray[np.generic] = stored.astype(np.float32) * shaped.astype(np.float32)
    return wide.astype(scale.dtype)
