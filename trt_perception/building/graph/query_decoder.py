"""The part of a transformer detector that others saw lose accuracy in FP16: its decoder.

DETR, RT-DETR, D-FINE and their kin refine a fixed number of queries. Reference points and sampling
places are coordinates, and FP16 has steps of 2**-11 just below 1: half a pixel at 1000. What is
reported is a tenth of AP, with TensorRT, for RT-DETR and D-FINE. Found is the decoder by shapes,
because its tensors have the number of queries as a side and no others do.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from trt_perception.building.graph.graph_index import GraphIndex, match_nodes, tensor_types
from trt_perception.building.graph.mac_count import count_layer_macs, infer_shapes

__all__ = ['QueryDecoder', 'find_query_decoder']

# Of the nodes below a name, so many stand for all: what else a decoder has may stay with it.
_MOST_OF: Final = 0.7
_SHOWN: Final = 3


@dataclass(frozen=True)
class QueryDecoder:
    """A decoder of queries.

    Attributes:
        nodes: their names, in graph order.
        patterns: what --keep-fp32 takes to keep them, few where names have levels.
        share: of the model's multiplications that the patterns match, 0…1.
    """

    nodes: tuple[str, ...]
    patterns: tuple[str, ...]
    share: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as the report has it."""
        return {
            'nodes': len(self.nodes),
            'share_of_multiplications': self.share,
            'keep_fp32': list(self.patterns),
        }

    def advice(self, precision: str) -> str:
        """Return what is known of such models in 16 bits, and what to do; for the report."""
        options = '--keep-fp32' + ('' if precision in ('fp16', 'bf16') else ' and --keep-float')
        named = shlex.join(self.patterns[:_SHOWN])
        if (left := len(self.patterns) - _SHOWN) > 0:
            named += f' and {left} more that the report has in optimization: query_decoder'
        return (
            f'detectors with queries lose accuracy where their decoder computes in {precision}: '
            'for RT-DETR and D-FINE in FP16 others report a tenth of AP. Measure it on a GPU '
            f'(--validate), or keep the {len(self.nodes)} nodes of the decoder, '
            f'{self.share:.1%} of the multiplications, in FP32: {options} {named}'
        )

    def is_kept_in_fp32(self, kept: Collection[str]) -> bool:
        """Return whether so many of its nodes stay in FP32 that nothing need be said."""
        return len(set(self.nodes) & set(kept)) >= _MOST_OF * len(self.nodes)


def find_query_decoder(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> QueryDecoder | None:
    """Return the decoder of a model whose outputs have a row for each query, None without one.

    Args:
        model: its nodes named.
        shapes: of its inputs.
    """
    graph = infer_shapes(model, shapes).graph
    types = tensor_types(graph)
    sides = {name: [side.dim_value for side in kind.shape.dim] for name, kind in types.items()}
    rows = {sides[output.name][1] for output in graph.output if len(sides[output.name]) > 1}
    if len(rows) != 1 or not (queries := rows.pop()):
        return None
    nodes = _upstream(graph, {n for n, shape in sides.items() if queries in shape})
    if not nodes:
        return None
    patterns = _patterns(nodes, [node.name for node in graph.node if node.op_type != 'Constant'])
    kept = set(match_nodes(model, patterns))
    work = count_layer_macs(model, shapes)
    share = sum(one.macs for one in work if one.node in kept) / max(1, sum(o.macs for o in work))
    return QueryDecoder(nodes, patterns, share)


def _upstream(graph: onnx.GraphProto, tensors: Collection[str]) -> tuple[str, ...]:
    """Return the nodes that lead to the outputs by these tensors alone.

    A feature map may have as many columns as there are queries, but between it and the decoder lie
    tensors that have not.
    """
    index = GraphIndex(graph)
    waiting = [output.name for output in graph.output]
    seen: set[str] = set()
    while waiting:
        node = index.producer.get(waiting.pop())
        if node is None or node.name in seen or node.op_type == 'Constant':
            continue
        if any(name in tensors for name in node.output):
            seen.add(node.name)
            waiting += node.input
    return tuple(node.name for node in graph.node if node.name in seen)


def _patterns(wanted: Collection[str], names: Sequence[str], prefix: str = '') -> tuple[str, ...]:
    """Return few patterns that match the wanted names, and few others, in their order.

    Args:
        wanted: names, some of ``names``.
        names: all that begin with the prefix.
        prefix: whole levels of names, with the / at their end.
    """
    below: dict[str, list[str]] = {}
    for name in names:
        head, separator, _ = name[len(prefix) :].partition('/')
        below.setdefault(f'{prefix}{head}{separator}', []).append(name)
    found: list[str] = []
    for start, members in below.items():
        hits = [name for name in members if name in wanted]
        if not hits:
            continue
        if len(members) > 1 and start.strip('/') and len(hits) >= _MOST_OF * len(members):
            found.append(f'{glob.escape(start)}*')
        elif members == [start]:
            found.append(start)
        else:
            found += _patterns(wanted, members, start)
    return tuple(found)
