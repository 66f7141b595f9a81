# SPDX-License-Identifier: Apache-2.0
"""Converts a float32 graph to FP16 or BF16, except for named nodes.

A strongly typed TensorRT network runs each layer in the types of the graph. A tensor can have two
versions: the wide (float32) version keeps the name, the narrow version gets a suffix. If nodes
read both, a Cast node converts. Inputs and outputs of the graph stay float32. A node with a
constant outside the range of FP16 stays float32, so conversion clips no value silently.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_perception.offline.building.graph.graph_index import (
    GraphIndex,
    opset_version,
    tensor_types,
    tensors_read_by_subgraphs,
)
from trt_perception.offline.building.graph.mac_count import infer_shapes

#: For each precision: ONNX's type, NumPy's type, and the suffix of narrow tensors' names.
HALF_TYPES: Final[Mapping[str, tuple[int, npt.DTypeLike, str]]] = {
    'fp16': (TensorProto.FLOAT16, np.float16, '_fp16'),
    'bf16': (TensorProto.BFLOAT16, ml_dtypes.bfloat16, '_bf16'),
}
_FP16_MAX: Final = 65504.0
_FP16_MIN: Final = 2.0**-24  # half of this value, and any smaller value, becomes 0
# Report a constant if a larger share of its numbers and of its norm becomes 0.
_MIN_REPORTED_SHARE: Final = 0.01
_MIN_REPORTED_NORM: Final = 1e-7
# An attribute decides the result type of these operators. The result stays float32, and a Cast
# follows if needed.
_OPERATORS_TYPED_BY_ATTRIBUTE: Final = frozenset(
    ('Bernoulli', 'ConstantOfShape', 'EyeLike', 'Multinomial', 'RandomNormal', 'RandomUniform')
)


@dataclass
class HalfPrecisionModel:
    """A converted model, with a record of the conversion.

    Attributes:
        model: the model; its inputs and outputs have their old names and types.
        kept: why a node stays float32, by node name. Nodes without floating-point numbers are left
            out.
        notes: effects of rounding on constants, one sentence each.
    """

    model: onnx.ModelProto
    kept: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    casts: int = 0


def convert_to_half(
    model: onnx.ModelProto, precision: str, keep: Mapping[str, str]
) -> HalfPrecisionModel:
    """Return a model whose nodes compute in FP16 or BF16.

    Args:
        model: model whose nodes have unique names; not changed.
        precision: ``fp16`` or ``bf16``.
        keep: maps the name of each node that must stay float32 to the reason.

    Raises:
        EngineError: types or shapes in the model contradict each other.
    """
    result = copy.deepcopy(model)
    _constants_to_initializers(result.graph)
    return _HalfPrecisionConverter(result, precision, keep).run()


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes with floats into initializers, which the converter can convert."""
    kept = []
    for node in graph.node:
        attribute = node.attribute[0] if node.op_type == 'Constant' else None
        if attribute is None or attribute.name not in ('value', 'value_float', 'value_floats'):
            kept.append(node)
            continue
        value = helper.get_attribute_value(attribute)
        if attribute.name == 'value':
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
        else:
            tensor = numpy_helper.from_array(np.array(value, np.float32), node.output[0])
        graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(kept)


class _HalfPrecisionConverter:
    """One conversion: chooses the type of each node, then rewrites the graph."""

    def __init__(self, model: onnx.ModelProto, precision: str, keep: Mapping[str, str]) -> None:
        self.kind, self.dtype, self.suffix = HALF_TYPES[precision]
        self.precision = precision
        self.keep = keep
        self.graph = model.graph
        self.index = GraphIndex(model.graph)
        self.opset = opset_version(model)
        self.result = HalfPrecisionModel(model)
        inferred = tensor_types(infer_shapes(model).graph)
        self.types = {name: kind.elem_type for name, kind in inferred.items()}
        self.types |= {tensor.name: tensor.data_type for tensor in self.graph.initializer}
        self.wide_inputs: dict[str, list[bool]] = {}

    def is_float(self, name: str) -> bool:
        return self.types.get(name) == TensorProto.FLOAT

    def run(self) -> HalfPrecisionModel:
        self._choose_types()
        want_narrow: set[str] = set()
        want_wide = {entry.name for entry in self.graph.output}
        for node in self.graph.node:
            places = self.wide_inputs.get(node.name, [True] * len(node.input))
            for name, wide in zip(node.input, places, strict=True):
                (want_wide if wide else want_narrow).add(name)
            want_wide.update(tensors_read_by_subgraphs(node))
        narrow = {name for name in want_narrow if self.is_float(name)}
        self._convert_initializers(narrow, want_wide)
        nodes = [
            self._cast_node(entry.name, entry.name + self.suffix, self.kind)
            for entry in self.graph.input
            if entry.name in narrow and entry.name not in self.index.initializers
        ]
        for node in self.graph.node:
            nodes += self._rewrite_node(node, narrow, want_wide)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        del self.graph.value_info[:]  # their types are outdated; shape inference recreates them
        return self.result

    def _choose_types(self) -> None:
        """Choose the type of each node. Fill ``wide_inputs`` for narrow nodes, else ``kept``."""
        quantisers = []
        for node in self.graph.node:
            floats = [name for name in (*node.input, *node.output) if self.is_float(name)]
            unknown = [n for n in (*node.input, *node.output) if n and not self.types.get(n)]
            if not floats and not unknown:
                continue
            reason = self._reason_to_keep_float(node, unknown)
            if reason:
                self.result.kept[node.name] = reason
            else:
                self.wide_inputs[node.name] = self._wide_input_flags(node)
                if node.op_type == 'DequantizeLinear':
                    quantisers.append(node)
        for node in quantisers:
            readers = self.index.consumers.get(node.output[0], [])
            if readers and all(reader.name in self.result.kept for reader in readers):
                self.result.kept[node.name] = 'feeds only layers that stay in FP32'
                del self.wide_inputs[node.name]

    def _reason_to_keep_float(self, node: onnx.NodeProto, unknown: Iterable[str]) -> str:
        if node.name in self.keep:
            return self.keep[node.name]
        if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute):
            return f'{node.op_type} has a subgraph'
        for name in unknown:
            return f'ONNX cannot infer the type of {name!r}'
        if node.op_type in _OPERATORS_TYPED_BY_ATTRIBUTE:
            return f'{node.op_type} returns float32'
        schema = self._operator_schema(node)
        if schema is None:
            return f"{node.op_type} is not one of ONNX's operators"
        for position, name in enumerate(node.output):
            if self.is_float(name) and not self._operand_allows_half(schema.outputs, position):
                return f'{node.op_type} has no {self.precision}'
        for name in node.input if self.precision == 'fp16' else ():
            if self._overflows(name):
                return f'the constant {name!r} exceeds 65504, the largest number in FP16'
        return ''

    def _overflows(self, name: str) -> bool:
        """Return whether a tensor is a constant with finite numbers outside the range of FP16."""
        values = self._float_constant(name)
        if values is None:
            return False
        finite = values[np.isfinite(values)]  # infinity exists in every type
        return bool(finite.size and np.abs(finite).max() > _FP16_MAX)

    def _operator_schema(self, node: onnx.NodeProto) -> onnx.defs.OpSchema | None:
        # Look BF16 up in the newest opset: most ONNX operators have BF16 only from opset 22 on,
        # while TensorRT accepts BF16 in any opset.
        version = self.opset if self.precision == 'fp16' else onnx.defs.onnx_opset_version()
        try:
            return onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return None

    def _operand_allows_half(
        self, formal: Sequence[onnx.defs.OpSchema.FormalParameter], position: int
    ) -> bool:
        """Return whether the operand at a position may be narrow. The last type may repeat."""
        wanted = 'tensor(float16)' if self.precision == 'fp16' else 'tensor(bfloat16)'
        return wanted in formal[min(position, len(formal) - 1)].types

    def _wide_input_flags(self, node: onnx.NodeProto) -> list[bool]:
        """Return for each input whether it keeps its type, such as the scales of Resize."""
        schema = self._operator_schema(node)
        assert schema is not None
        return [
            not self.is_float(name) or not self._operand_allows_half(schema.inputs, position)
            for position, name in enumerate(node.input)
        ]

    def _float_constant(self, name: str) -> npt.NDArray[np.float32] | None:
        tensor = self.index.initializers.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT:
            return None
        values: npt.NDArray[np.float32] = numpy_helper.to_array(tensor)
        return values

    def _convert_initializers(self, narrow: set[str], wide: set[str]) -> None:
        kept = [t for t in self.graph.initializer if t.name not in narrow or t.name in wide]
        converted = []
        for name in sorted(narrow & set(self.index.initializers)):
            values = self._float_constant(name)
            assert values is not None
            converted.append(
                numpy_helper.from_array(values.astype(self.dtype), name + self.suffix)
            )
            if self.precision == 'fp16':
                self._note_lost_numbers(name, values)
        self.graph.ClearField('initializer')
        self.graph.initializer.extend([*kept, *converted])
        # Before IR version 4, initializers were also listed as inputs.
        removed = set(self.index.initializers) - {tensor.name for tensor in kept}
        left = [entry for entry in self.graph.input if entry.name not in removed]
        del self.graph.input[:]
        self.graph.input.extend(left)

    def _note_lost_numbers(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Report a constant that loses more than a few tiny numbers among large numbers.

        A tiny epsilon is a constant with one number, so it is reported.
        """
        lost = values[(np.abs(values) <= _FP16_MIN / 2) & (values != 0)]
        wide = lost.astype(np.float64), values.astype(np.float64).ravel()
        norm, whole = map(np.linalg.norm, wide)
        if lost.size > _MIN_REPORTED_SHARE * values.size and norm > _MIN_REPORTED_NORM * whole:
            self.result.notes.append(
                f'{lost.size} of {values.size} numbers in {name!r} become 0 in FP16'
            )

    def _cast_node(self, source: str, target: str, kind: int) -> onnx.NodeProto:
        self.result.casts += 1
        return helper.make_node('Cast', [source], [target], name=f'{target}_cast', to=kind)

    def _rewrite_node(
        self, node: onnx.NodeProto, narrow: set[str], wide: set[str]
    ) -> Iterable[onnx.NodeProto]:
        """Yield a node, and the Cast nodes for its outputs."""
        if node.name in self.wide_inputs:
            yield self._converted_copy(node)
            for name in node.output:
                if self.is_float(name) and name in wide:
                    yield self._cast_node(name + self.suffix, name, TensorProto.FLOAT)
        else:
            yield node
            for name in node.output:
                if name in narrow:
                    yield self._cast_node(name, name + self.suffix, self.kind)

    def _converted_copy(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return a copy of a node that reads and writes the narrow versions of its tensors."""
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for position, stays in enumerate(self.wide_inputs[node.name]):
            if not stays:
                changed.input[position] += self.suffix
        for attribute in changed.attribute:
            if node.op_type == 'Cast' and attribute.i == TensorProto.FLOAT:
                attribute.i = self.kind
        for position, name in enumerate(node.output):
            if self.is_float(name):
                changed.output[position] += self.suffix
        return changed
