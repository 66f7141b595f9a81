"""Find a detector's head in its graph: the bare output layers, and the decoding behind them.

The layers whose results *are* boxes and scores have no activation that would bound them, one
scale for all their channels would have to serve pixels and probabilities, and their errors reach
the detections undamped. They stay in float, as does the arithmetic behind them. Names play no
part: the search walks from the graph's outputs to the first layers with weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx

from trt_perception.building.graph.graph_index import GraphIndex

__all__ = ['Head', 'find_head']

# More than this share of the work in "output layers" means that the walk has left the head.
_MOST_WORK: Final = 0.25
# What a strict walk passes: shape operations, and the functions that bound a score.
_SHAPING: Final = ('Cast', 'Concat', 'Expand', 'Flatten', 'Gather', 'Identity', 'Reshape', 'Slice')
_SHAPING_TOO: Final = ('Split', 'Squeeze', 'Transpose', 'Unsqueeze')
_PLAIN: Final = frozenset((*_SHAPING, *_SHAPING_TOO, 'Sigmoid', 'Softmax'))
_SCALE: Final = frozenset(('Add', 'Mul', 'Sub', 'Div'))


@dataclass(frozen=True)
class Head:
    """The nodes of a head by name, each list in graph order.

    Attributes:
        layers: the last layers with learned weights before the outputs.
        fixed: layers in the decoding whose weights are no weights but the numbers 0, 1, 2 …: the
            expectation of a distribution over bins (distribution focal loss).
        decoding: all other nodes between ``layers`` and the outputs.
        strict: the outputs are features rather than boxes, so only layers right before them count.
    """

    layers: tuple[str, ...]
    fixed: tuple[str, ...]
    decoding: tuple[str, ...]
    strict: bool = False


def find_head(model: onnx.ModelProto, macs: Mapping[str, int] | None = None) -> Head:
    """Return the head of a model whose nodes are named.

    Args:
        model: the model, in float or quantised.
        macs: the work of each layer by node name; with it, a walk that claims more than a quarter
            of all work is repeated strictly.
    """
    index = GraphIndex(model.graph)
    head = _walk(index, strict=False)
    if macs is not None:
        claimed = sum(macs.get(name, 0) for name in head.layers)
        if claimed > _MOST_WORK * sum(macs.values()):
            return _walk(index, strict=True)
    return head


def _walk(index: GraphIndex, *, strict: bool) -> Head:
    waiting = [output.name for output in index.graph.output]
    seen: set[str] = set()
    layers: set[str] = set()
    fixed: set[str] = set()
    decoding: set[str] = set()
    while waiting:
        node = index.producer.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if index.is_layer(node) and not _is_expectation(node, index):
            layers.add(node.name)
            continue
        if index.is_layer(node):
            fixed.add(node.name)
        elif strict and not _is_plain(node, index):
            continue
        else:
            decoding.add(node.name)
        waiting += [name for name in node.input if name]
    order = [node.name for node in index.graph.node]
    in_order = [tuple(n for n in order if n in part) for part in (layers, fixed, decoding)]
    return Head(in_order[0], in_order[1], in_order[2], strict)


def _is_plain(node: onnx.NodeProto, index: GraphIndex) -> bool:
    if node.op_type in _SCALE:
        return any(index.is_constant(name) for name in node.input)
    return node.op_type in _PLAIN


def _is_expectation(node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Return whether a layer sums probabilities times their bin: weights 0, 1, 2 … and Softmax."""
    weights = index.constant(node.input[1])
    if weights is None or weights.size < 2 or weights.size != max(weights.shape):
        return False
    steps = weights.astype(np.float64).ravel()
    if not np.array_equal(steps, steps[0] + (steps[1] - steps[0]) * np.arange(steps.size)):
        return False
    source = index.producer.get(node.input[0])
    while source is not None and source.op_type in ('Transpose', 'Reshape', 'Cast', 'Slice'):
        source = index.producer.get(source.input[0])
    return source is not None and source.op_type == 'Softmax'
