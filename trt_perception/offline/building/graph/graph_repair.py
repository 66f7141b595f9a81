# SPDX-License-Identifier: Apache-2.0
"""Repairs two faults that exporters leave in a model: a wrong order of nodes, and float64.

Neither repair changes the engine. TensorRT computes float64 in float32, and ignores the order of
nodes. But ONNX's checker refuses nodes in a wrong order, and a build must run the model on the CPU
to compare or calibrate it.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trt_perception.offline.building.graph.graph_index import (
    iterate_messages,
    tensors_read_by_subgraphs,
)

# Attributes whose value is a data type.
_TYPE_ATTRIBUTES: Final = ('to', 'dtype', 'output_datatype', 'stash_type')
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Move each node behind the nodes whose outputs it reads, in place.

    Other nodes keep their order. Subgraphs and functions are sorted too. Nodes in or behind a
    cycle go to the end, and ONNX's checker reports them.

    Returns:
        Whether any node was moved.
    """
    containers: list[Any] = list(iterate_messages(model, onnx.GraphProto, onnx.FunctionProto))
    # Sort inner graphs first, because sorting copies nodes with their subgraphs.
    moved = [_sort_topologically(owner.node) for owner in reversed(containers)]
    return any(moved)


def _sort_topologically(nodes: Any) -> bool:
    producer = {
        name: position for position, node in enumerate(nodes) for name in node.output if name
    }
    dependencies = [
        {
            producer[name]
            for name in (*node.input, *tensors_read_by_subgraphs(node))
            if name in producer
        }
        for node in nodes
    ]
    if all(max(needed, default=-1) < position for position, needed in enumerate(dependencies)):
        return False
    readers: dict[int, list[int]] = {}
    for position, needed in enumerate(dependencies):
        for other in needed:
            readers.setdefault(other, []).append(position)
    open_counts = [len(needed) for needed in dependencies]
    ready = [position for position, count in enumerate(open_counts) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for position in readers.get(order[-1], ()):
            open_counts[position] -= 1
            if not open_counts[position]:
                heapq.heappush(ready, position)
    order += [position for position, count in enumerate(open_counts) if count]
    moved = [onnx.NodeProto.FromString(nodes[position].SerializeToString()) for position in order]
    del nodes[:]
    nodes.extend(moved)
    return order != sorted(order)


def convert_float64(model: onnx.ModelProto) -> bool:
    """Replace float64 by float32 in constants, types and attributes, in place.

    Finite constants outside the range of float32 become its largest finite number.

    Returns:
        Whether anything was changed.
    """
    changed = False
    for tensor in iterate_messages(model, TensorProto):
        if tensor.data_type == TensorProto.DOUBLE:
            wide = numpy_helper.to_array(tensor)
            clipped = np.where(np.isfinite(wide), np.clip(wide, -_FLOAT32_MAX, _FLOAT32_MAX), wide)
            tensor.CopyFrom(numpy_helper.from_array(clipped.astype(np.float32), tensor.name))
            changed = True
    for tensor_type in iterate_messages(model, onnx.TypeProto.Tensor):
        if tensor_type.elem_type == TensorProto.DOUBLE:
            tensor_type.elem_type = TensorProto.FLOAT
            changed = True
    for node in iterate_messages(model, onnx.NodeProto):
        for attribute in node.attribute if node.domain in ('', 'ai.onnx') else ():
            is_number_type = attribute.name in _TYPE_ATTRIBUTES and attribute.type == attribute.INT
            if is_number_type and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
                changed = True
    return changed
