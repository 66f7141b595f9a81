# SPDX-License-Identifier: Apache-2.0
"""Finds a detector's head in its graph: the output layers, and the decoding behind them.

Output layers are the last layers with learned weights. They and the decoding stay in float for
three reasons: no activation bounds their results, one scale would have to represent both pixels
and probabilities, and their errors reach the detections directly. The search goes from the graph's
outputs back to the first layers with weights, and ignores names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx

from trt_perception.offline.building.graph.graph_index import GraphIndex

# If the output layers do more than this share of the work, the search has gone beyond the head.
_MAX_LAYER_SHARE: Final = 0.25
# Operators that a strict search passes through: shape operations, and activations of scores.
_SHAPING_OPERATORS: Final = (
    'Cast',
    'Concat',
    'Expand',
    'Flatten',
    'Gather',
    'Identity',
    'Reshape',
    'Slice',
)
_MORE_SHAPING_OPERATORS: Final = ('Split', 'Squeeze', 'Transpose', 'Unsqueeze')
_PASSED_OPERATORS: Final = frozenset(
    (*_SHAPING_OPERATORS, *_MORE_SHAPING_OPERATORS, 'Sigmoid', 'Softmax')
)
_ARITHMETIC_OPERATORS: Final = frozenset(('Add', 'Mul', 'Sub', 'Div'))


@dataclass(frozen=True)
class Head:
    """Names of the nodes in a head, each in graph order.

    Attributes:
        layers: the last layers with learned weights before the outputs.
        fixed: decoding layers whose weights are the fixed numbers 0, 1, 2 …. They compute the
            expectation over bins (distribution focal loss).
        decoding: all other nodes between ``layers`` and the outputs.
        strict: whether only layers right before the outputs count, because the outputs are
            features rather than boxes.
    """

    layers: tuple[str, ...]
    fixed: tuple[str, ...]
    decoding: tuple[str, ...]
    strict: bool = False


def find_head(model: onnx.ModelProto, macs: Mapping[str, int] | None = None) -> Head:
    """Return the head of a model.

    Args:
        model: model whose nodes have unique names, float or quantised.
        macs: multiply-accumulates of each layer, by node name. If the output layers do more than
            a quarter of all work, the search is repeated with strict rules.
    """
    index = GraphIndex(model.graph)
    head = _walk_from_outputs(index, strict=False)
    if macs is not None:
        layer_macs = sum(macs.get(name, 0) for name in head.layers)
        if layer_macs > _MAX_LAYER_SHARE * sum(macs.values()):
            return _walk_from_outputs(index, strict=True)
    return head


def _walk_from_outputs(index: GraphIndex, *, strict: bool) -> Head:
    pending = [output.name for output in index.graph.output]
    seen: set[str] = set()
    layers: set[str] = set()
    fixed: set[str] = set()
    decoding: set[str] = set()
    while pending:
        node = index.producer.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if index.is_layer(node) and not _is_expectation_layer(node, index):
            layers.add(node.name)
            continue
        if index.is_layer(node):
            fixed.add(node.name)
        elif strict and not _is_passed_by_search(node, index):
            continue
        else:
            decoding.add(node.name)
        pending += [name for name in node.input if name]
    order = [node.name for node in index.graph.node]
    in_order = [tuple(n for n in order if n in part) for part in (layers, fixed, decoding)]
    return Head(in_order[0], in_order[1], in_order[2], strict)


def _is_passed_by_search(node: onnx.NodeProto, index: GraphIndex) -> bool:
    if node.op_type in _ARITHMETIC_OPERATORS:
        return any(index.is_constant(name) for name in node.input)
    return node.op_type in _PASSED_OPERATORS


def _is_expectation_layer(node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Return whether a layer multiplies the result of a Softmax by weights 0, 1, 2 ….

    Such a layer computes an expectation over bins. Weights with other equal steps also count.
    """
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
