"""What exporters leave undone, made right before anything is built: order of nodes, float64.

Neither changes what the engine computes: TensorRT has no float64 and takes float32 whatever the
file asks for, and the order of nodes means nothing. But ONNX's checker refuses nodes out of order,
and a model that no runtime of the host takes cannot be compared or calibrated.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trt_perception.building.graph.graph_index import iterate_messages, outer_tensors

__all__ = ['convert_float64', 'sort_nodes']

# Attributes that name a type of numbers.
_TYPE_ATTRIBUTES: Final = ('to', 'dtype', 'output_datatype', 'stash_type')
_LARGEST: Final = float(np.finfo(np.float32).max)


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Put each node behind those that make what it reads; others keep their order.

    In subgraphs and functions too. A ring of nodes stays as it is: ONNX's checker names it.

    Returns:
        whether any node was moved.
    """
    owners: list[Any] = list(iterate_messages(model, onnx.GraphProto, onnx.FunctionProto))
    # The inner ones first: sorting copies nodes with all that is in them.
    moved = [_sort(owner.node) for owner in reversed(owners)]
    return any(moved)


def _sort(nodes: Any) -> bool:
    maker = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waits_for = [
        {maker[name] for name in (*node.input, *outer_tensors(node)) if name in maker}
        for node in nodes
    ]
    if all(max(needed, default=-1) < place for place, needed in enumerate(waits_for)):
        return False
    readers: dict[int, list[int]] = {}
    for place, needed in enumerate(waits_for):
        for other in needed:
            readers.setdefault(other, []).append(place)
    left = [len(needed) for needed in waits_for]
    ready = [place for place, count in enumerate(left) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for place in readers.get(order[-1], ()):
            left[place] -= 1
            if not left[place]:
                heapq.heappush(ready, place)
    order += [place for place, count in enumerate(left) if count]
    moved = [onnx.NodeProto.FromString(nodes[place].SerializeToString()) for place in order]
    del nodes[:]
    nodes.extend(moved)
    return order != sorted(order)


def convert_float64(model: onnx.ModelProto) -> bool:
    """Let a model compute in float32 where it asks for float64; finite numbers stay finite.

    Returns:
        whether anything was changed.
    """
    changed = False
    for tensor in iterate_messages(model, TensorProto):
        if tensor.data_type == TensorProto.DOUBLE:
            wide = numpy_helper.to_array(tensor)
            held = np.where(np.isfinite(wide), np.clip(wide, -_LARGEST, _LARGEST), wide)
            tensor.CopyFrom(numpy_helper.from_array(held.astype(np.float32), tensor.name))
            changed = True
    for kind in iterate_messages(model, onnx.TypeProto.Tensor):
        if kind.elem_type == TensorProto.DOUBLE:
            kind.elem_type = TensorProto.FLOAT
            changed = True
    for node in iterate_messages(model, onnx.NodeProto):
        for attribute in node.attribute if node.domain in ('', 'ai.onnx') else ():
            asks = attribute.name in _TYPE_ATTRIBUTES and attribute.type == attribute.INT
            if asks and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
                changed = True
    return changed
