# SPDX-License-Identifier: Apache-2.0
"""Finds the decoder of a transformer detector, which may lose accuracy in FP16.

DETR, RT-DETR, D-FINE and related models refine a fixed number of queries. Reference points and
sampling positions are coordinates from 0 to 1. Near 1, FP16 has steps of 2**-11, half a pixel of
1000. Users reported that RT-DETR and D-FINE lost a tenth of AP in FP16 with TensorRT. The search
uses shapes: only tensors of the decoder have the number of queries as a dimension.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from trt_perception.offline.building.graph.graph_index import GraphIndex, match_nodes, tensor_types
from trt_perception.offline.building.graph.mac_count import count_layer_macs, infer_shapes

# A pattern for a name prefix is used if at least this share of its nodes belongs to the decoder.
# The other nodes with this prefix then stay in FP32 too.
_MIN_SHARE: Final = 0.7
_MAX_SHOWN: Final = 3


@dataclass(frozen=True)
class QueryDecoder:
    """The decoder of a model with queries.

    Attributes:
        nodes: names of the nodes, in graph order.
        patterns: values for --keep-fp32 that keep the decoder in FP32. The list is short if node
            names have levels.
        share: share of the model's multiplications in nodes that match the patterns, 0…1.
    """

    nodes: tuple[str, ...]
    patterns: tuple[str, ...]
    share: float

    def as_dict(self) -> dict[str, Any]:
        """Return the values for the report."""
        return {
            'nodes': len(self.nodes),
            'share_of_multiplications': self.share,
            'keep_fp32': list(self.patterns),
        }

    def advice(self, precision: str) -> str:
        """Return a sentence for the report on the loss of accuracy in 16 bits, with a remedy."""
        options = '--keep-fp32' + ('' if precision in ('fp16', 'bf16') else ' and --keep-float')
        pattern_text = shlex.join(self.patterns[:_MAX_SHOWN])
        if (left := len(self.patterns) - _MAX_SHOWN) > 0:
            pattern_text += f' and {left} more (see optimization: query_decoder in the report)'
        return (
            f'detectors with queries may lose accuracy if their decoder computes in {precision}: '
            'users report a loss of a tenth of AP for RT-DETR and D-FINE in FP16. Measure it on a '
            f'GPU (--validate), or keep the {len(self.nodes)} nodes of the decoder in FP32 '
            f'({self.share:.1%} of the multiplications): {options} {pattern_text}'
        )

    def is_kept_in_fp32(self, kept: Collection[str]) -> bool:
        """Return whether at least 70 % of the decoder's nodes stay in FP32."""
        return len(set(self.nodes) & set(kept)) >= _MIN_SHARE * len(self.nodes)


def find_query_decoder(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> QueryDecoder | None:
    """Return the query decoder of a model; None if the outputs do not have one row per query.

    Args:
        model: model whose nodes have unique names.
        shapes: maps the name of each input to its shape, without dynamic dimensions.
    """
    graph = infer_shapes(model, shapes).graph
    types = tensor_types(graph)
    sides = {name: [side.dim_value for side in kind.shape.dim] for name, kind in types.items()}
    rows = {sides[output.name][1] for output in graph.output if len(sides[output.name]) > 1}
    if len(rows) != 1 or not (queries := rows.pop()):
        return None
    nodes = _nodes_upstream(graph, {n for n, shape in sides.items() if queries in shape})
    if not nodes:
        return None
    patterns = _make_patterns(
        nodes, [node.name for node in graph.node if node.op_type != 'Constant']
    )
    kept = set(match_nodes(model, patterns))
    work = count_layer_macs(model, shapes)
    share = sum(layer.macs for layer in work if layer.node in kept) / max(
        1, sum(o.macs for o in work)
    )
    return QueryDecoder(nodes, patterns, share)


def _nodes_upstream(graph: onnx.GraphProto, tensors: Collection[str]) -> tuple[str, ...]:
    """Return the nodes from which a path through only these tensors leads to an output.

    The nodes are in graph order.

    The search does not reach a feature map that has as many columns as there are queries, because
    other tensors lie between the feature map and the decoder.
    """
    index = GraphIndex(graph)
    pending = [output.name for output in graph.output]
    seen: set[str] = set()
    while pending:
        node = index.producer.get(pending.pop())
        if node is None or node.name in seen or node.op_type == 'Constant':
            continue
        if any(name in tensors for name in node.output):
            seen.add(node.name)
            pending += node.input
    return tuple(node.name for node in graph.node if node.name in seen)


def _make_patterns(
    wanted: Collection[str], names: Sequence[str], prefix: str = ''
) -> tuple[str, ...]:
    """Return a short list of patterns that match all wanted names and few other names.

    Args:
        wanted: the names to match, a subset of ``names``.
        prefix: leading levels of the names, with a trailing slash.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        head, separator, _ = name[len(prefix) :].partition('/')
        groups.setdefault(f'{prefix}{head}{separator}', []).append(name)
    found: list[str] = []
    for start, members in groups.items():
        hits = [name for name in members if name in wanted]
        if not hits:
            continue
        if len(members) > 1 and start.strip('/') and len(hits) >= _MIN_SHARE * len(members):
            found.append(f'{glob.escape(start)}*')
        elif members == [start]:
            found.append(start)
        else:
            found += _make_patterns(wanted, members, start)
    return tuple(found)
