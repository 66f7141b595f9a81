# SPDX-License-Identifier: Apache-2.0
"""Says which ONNX nodes each layer of an engine computes, and what differs between two engines.

TensorRT computes several nodes in one layer (fusion), and some nodes in several layers. Its report
does not name every node: a node without arithmetic, such as Reshape, may need no work at all, and
some kernels name only the convolution, although they also compute its activation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from trt_perception.files.plain_text import join_first_items
from trt_perception.model.build_record import BuildRecord
from trt_perception.offline.building.inspection.inspector import EngineInfo, LayerTime
from trt_perception.offline.building.inspection.layers import LayerInfo, compare_precision

# These operators move or select values, or are constant. TensorRT often needs no layer for them.
_OPERATORS_WITHOUT_ARITHMETIC: Final = frozenset(
    (
        *('Cast', 'Concat', 'Constant', 'ConstantOfShape', 'Dropout', 'Expand'),
        *('Flatten', 'Gather', 'Identity', 'Range', 'Reshape', 'Shape'),
        *('Slice', 'Split', 'Squeeze', 'Tile', 'Transpose', 'Unsqueeze'),
    )
)
_HEAVY_OPERATORS: Final = frozenset(('Conv', 'ConvTranspose', 'Gemm', 'MatMul'))
# Layers of TensorRT-RTX in which one stream waits for another.
_WAITING_KINDS: Final = frozenset(('signal', 'wait'))


@dataclass(frozen=True)
class Fusion:
    """The ONNX nodes of an engine's layers.

    Attributes:
        operators: maps the name of each node of the user's ONNX file to its operator, such as
            ``Conv``; empty if the manifest does not have them.
        wider: type of each convolution or matrix product in a wider type than requested, by node.
    """

    layers: tuple[LayerInfo, ...]
    operators: Mapping[str, str]
    wider: Mapping[str, str]

    @cached_property
    def layer_counts(self) -> Mapping[str, int]:
        """The number of layers that compute each node, by the node's name in the report."""
        return Counter(name for layer in self.layers for name in layer.nodes)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Nodes that several layers compute."""
        return tuple(name for name, count in self.layer_counts.items() if count > 1)

    @property
    def added(self) -> tuple[str, ...]:
        """Nodes of layers that are not in the user's file: build_engine added them."""
        return tuple(name for name in self.layer_counts if self.is_added(name))

    @property
    def folded(self) -> Mapping[str, str]:
        """Operators of the nodes that no layer names, and that need no arithmetic; by node."""
        return {
            name: operator
            for name, operator in self._unnamed()
            if operator in _OPERATORS_WITHOUT_ARITHMETIC
        }

    @property
    def lost(self) -> Mapping[str, str]:
        """Operators of the other nodes that no layer names; by node.

        A layer computes the node without naming it, or TensorRT knew its result at build time.
        """
        return {
            name: operator
            for name, operator in self._unnamed()
            if operator not in _OPERATORS_WITHOUT_ARITHMETIC
        }

    @property
    def fused(self) -> tuple[LayerInfo, ...]:
        """Layers that compute several nodes."""
        return tuple(layer for layer in self.layers if len(layer.nodes) > 1)

    @property
    def waiting(self) -> tuple[LayerInfo, ...]:
        """Layers in which one stream waits for another."""
        return tuple(layer for layer in self.layers if layer.kind in _WAITING_KINDS)

    @property
    def reformats(self) -> tuple[LayerInfo, ...]:
        """Layers without a node that change the type or the memory layout of a tensor."""
        return tuple(
            layer
            for layer in self.layers
            if not (layer.nodes or layer.is_compute_layer or layer.kind in _WAITING_KINDS)
        )

    def is_added(self, name: str) -> bool:
        """Return whether a node of a layer is not in the user's file."""
        return bool(self.operators) and name not in self.operators

    def node_text(self, layer: LayerInfo) -> str:
        """Return the names of a layer's nodes; ``+`` marks an added node."""
        return ', '.join(f'+{name}' if self.is_added(name) else name for name in layer.nodes)

    def rows(self) -> list[tuple[str, str]]:
        """Return a row for each total: name and text."""
        rows = [
            (
                'layers',
                f'{len(self.layers)}: {len(self.fused)} with several nodes, '
                f'{len(self.reformats)} that only reformat, {len(self.waiting)} that wait',
            )
        ]
        if self.operators:
            named = sum(name in self.operators for name in self.layer_counts)
            counts = Counter(self.folded.values()).most_common()
            folded = ', '.join(f'{count} {name}' for name, count in counts)
            rows.append(('nodes in the file', f'{len(self.operators)}; {named} named by layers'))
            rows.append(('folded', folded or 'none'))
            rows.append(('name lost', _names_text(self.lost)))
            rows.append(('added', _names_text(self.added)))
        rows.append(('in several layers', _names_text(self.repeated)))
        wider = [f'{name} ({kind})' for name, kind in self.wider.items()]
        rows.append(('wider than asked', _names_text(wider)))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        return {
            'nodes': len(self.operators),
            'fused_layers': [layer.name for layer in self.fused],
            'reformat_layers': [layer.name for layer in self.reformats],
            'waiting_layers': [layer.name for layer in self.waiting],
            'repeated_nodes': list(self.repeated),
            'folded_nodes': dict(self.folded),
            'lost_nodes': dict(self.lost),
            'added_nodes': list(self.added),
            'wider_nodes': dict(self.wider),
        }

    def _unnamed(self) -> Iterator[tuple[str, str]]:
        return (
            (name, operator)
            for name, operator in self.operators.items()
            if name not in self.layer_counts
        )


def read_fusion(engine: EngineInfo, build: BuildRecord | None) -> Fusion | None:
    """Return the nodes of an engine's layers; None if the engine does not report its layers.

    Args:
        build: how the engine was built; None if unknown.
    """
    if not engine.layers:
        return None
    if build is None:
        return Fusion(engine.layers, {}, {})
    heavy = [name for name, kind in build.nodes.items() if kind in _HEAVY_OPERATORS]
    kept = [
        name
        for name in heavy
        if any(fnmatchcase(name, pattern) for pattern in build.precision.keep_fp32)
    ]
    found = compare_precision(engine.layers, build.precision.asked, heavy or None, kept)
    return Fusion(engine.layers, build.nodes, found.deviations)


def compare_layers(
    ours: Fusion, others: Fusion, times: Sequence[Sequence[LayerTime]] = ((), ())
) -> list[str]:
    """Return a line for each layer of the first engine that differs in the second engine.

    A layer differs if its nodes are divided differently among the layers of the second engine, or
    if these layers have another type. Nodes that the second engine does not name do not count.

    Args:
        others: layers of the second engine.
        times: layer times of both engines; empty if not measured.
    """
    first_ms, second_ms = ({row.layer.name: row.ms for row in rows} for rows in times)
    lines = []
    for layer in ours.layers:
        nodes = {name for name in layer.nodes if name in others.layer_counts}
        found = [each for each in others.layers if nodes & set(each.nodes)]
        known = [set(each.nodes) & ours.layer_counts.keys() for each in found]
        if not nodes or (nodes, layer.precision) in zip(
            known, (each.precision for each in found), strict=True
        ):
            continue
        parts = [
            _layer_text(each, second_ms, 'same nodes' if same == nodes else others.node_text(each))
            for each, same in zip(found, known, strict=True)
        ]
        lines.append(
            f'{_layer_text(layer, first_ms, ours.node_text(layer))} -> {"; ".join(parts)}'
        )
    return lines


def _layer_text(layer: LayerInfo, times_ms: Mapping[str, float], nodes: str) -> str:
    ms = f'{times_ms[layer.name]:.4f} ms ' if layer.name in times_ms else ''
    return f'{ms}{layer.precision or "?"} [{nodes}]'


def _names_text(names: Sequence[str] | Mapping[str, str]) -> str:
    return f'{len(names)}: {join_first_items(list(names))}' if names else 'none'
