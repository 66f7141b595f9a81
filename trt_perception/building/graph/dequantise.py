"""A quantised model without its Q/DQ nodes: what FP16 is compared with.

Guarantee: weights are what DequantizeLinear makes of them, and everything else stays. So it is as
fast as the original in the same precision, not as exact.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from trt_perception.building.graph.graph_index import GraphIndex, broadcast_scale, channel_axis

__all__ = ['dequantise']


def dequantise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without Q/DQ nodes.

    Args:
        model: whose scales of weights are numbers, as check_quantised wants them.
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
        weights = _weights(index, node)
        graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
    kept = [n for n in graph.node if n.op_type not in ('QuantizeLinear', 'DequantizeLinear')]
    for node in kept:
        for place, name in enumerate(node.input):
            node.input[place] = _source(renamed, name)
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    return copied


def _source(renamed: dict[str, str], name: str) -> str:
    while name in renamed:
        name = renamed[name]
    return name


def _weights(index: GraphIndex, node: onnx.NodeProto) -> npt.NDArray[np.generic]:
    """Return stored numbers times their scale; zero points are 0."""
    numbers, scale = index.constant(node.input[0]), index.constant(node.input[1])
    assert numbers is not None
    assert scale is not None
    shaped = broadcast_scale(scale, channel_axis(node, numbers.ndim), numbers.ndim)
    wide: npt.NDArray[np.generic] = numbers.astype(np.float32) * shaped.astype(np.float32)
    return wide.astype(scale.dtype)
