"""Rewrite a float32 graph so that its nodes compute in FP16 or BF16, all but the named ones.

A strongly typed TensorRT network runs each layer in the types that the graph says. Each tensor has
up to two versions: the float32 one keeps its name, the narrow one gets a suffix; one Cast stands
between them where both are wanted. Inputs and outputs of the graph stay float32. Values that a
type cannot hold are never cut silently: the node that needs them stays float32.
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

from trt_perception.building.graph.graph_index import (
    GraphIndex,
    opset_version,
    outer_tensors,
    tensor_types,
)
from trt_perception.building.graph.mac_count import infer_shapes

__all__ = ['HALF_TYPES', 'HalfPrecisionModel', 'convert_to_half']

#: By the name of a precision: ONNX's type, NumPy's type, and what its tensors' names end with.
HALF_TYPES: Final[Mapping[str, tuple[int, npt.DTypeLike, str]]] = {
    'fp16': (TensorProto.FLOAT16, np.float16, '_fp16'),
    'bf16': (TensorProto.BFLOAT16, ml_dtypes.bfloat16, '_bf16'),
}
_FP16_LARGEST: Final = 65504.0
_FP16_SMALLEST: Final = 2.0**-24  # half of it and below becomes 0
_REPORTED_FROM: Final = 0.01  # of a constant's numbers
# Their result has the type that an attribute says; float32, and a Cast where it is wanted narrow.
_TYPED_BY_ATTRIBUTE: Final = frozenset(
    ('Bernoulli', 'ConstantOfShape', 'EyeLike', 'Multinomial', 'RandomNormal', 'RandomUniform')
)


@dataclass
class HalfPrecisionModel:
    """A rewritten model.

    Attributes:
        model: its inputs and outputs as before.
        kept: by node, why it stays float32; nodes without floating-point numbers are not named.
        notes: what rounding does to constants, one sentence each.
        casts: how many Cast nodes were added.
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
        model: its nodes named, not changed.
        precision: ``fp16`` or ``bf16``.
        keep: by node name, why it stays float32.

    Raises:
        EngineError: the types or shapes of the model contradict each other.
    """
    result = copy.deepcopy(model)
    _constants_to_initializers(result.graph)
    return _Rewriting(result, precision, keep).run()


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes of floats into initializers: only those are converted below."""
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


class _Rewriting:
    """One conversion: first who computes in what, then the graph that follows from it."""

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
        self._decide()
        want_narrow: set[str] = set()
        want_wide = {entry.name for entry in self.graph.output}
        for node in self.graph.node:
            places = self.wide_inputs.get(node.name, [True] * len(node.input))
            for name, wide in zip(node.input, places, strict=True):
                (want_wide if wide else want_narrow).add(name)
            want_wide.update(outer_tensors(node))
        narrow = {name for name in want_narrow if self.is_float(name)}
        self._convert_initializers(narrow, want_wide)
        nodes = list(self._input_casts(narrow))
        for node in self.graph.node:
            nodes += self._rewritten(node, narrow, want_wide)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        del self.graph.value_info[:]  # of types that are no more; whoever needs them infers them
        return self.result

    def _decide(self) -> None:
        """Fill ``wide_inputs`` for each narrow node, and ``kept`` for the others with floats."""
        quantisers = []
        for node in self.graph.node:
            floats = [name for name in (*node.input, *node.output) if self.is_float(name)]
            unknown = [n for n in (*node.input, *node.output) if n and not self.types.get(n)]
            if not floats and not unknown:
                continue
            reason = self._reason_to_keep(node, unknown)
            if reason:
                self.result.kept[node.name] = reason
            else:
                self.wide_inputs[node.name] = self._wide_places(node)
                if node.op_type == 'DequantizeLinear':
                    quantisers.append(node)
        for node in quantisers:
            readers = self.index.consumers.get(node.output[0], [])
            if readers and all(reader.name in self.result.kept for reader in readers):
                self.result.kept[node.name] = 'feeds layers kept in FP32 only'
                del self.wide_inputs[node.name]

    def _reason_to_keep(self, node: onnx.NodeProto, unknown: Iterable[str]) -> str:
        if node.name in self.keep:
            return self.keep[node.name]
        if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute):
            return f'{node.op_type} has a subgraph'
        for name in unknown:
            return f'ONNX cannot infer the type of {name!r}'
        if node.op_type in _TYPED_BY_ATTRIBUTE:
            return f'{node.op_type} makes float32'
        schema = self._schema(node)
        if schema is None:
            return f'{node.op_type} is not an operator of ONNX'
        for place, name in enumerate(node.output):
            if self.is_float(name) and not self._allows(schema.outputs, place):
                return f'{node.op_type} has no {self.precision}'
        for name in node.input if self.precision == 'fp16' else ():
            if self._overflows(name):
                return f'the constant {name!r} exceeds 65504, the most that FP16 holds'
        return ''

    def _overflows(self, name: str) -> bool:
        """Return whether a tensor is a constant that FP16 cannot hold."""
        values = self._values(name)
        if values is None:
            return False
        finite = values[np.isfinite(values)]  # an infinity is one in every type
        return bool(finite.size and np.abs(finite).max() > _FP16_LARGEST)

    def _schema(self, node: onnx.NodeProto) -> onnx.defs.OpSchema | None:
        # ONNX gave BF16 to most operators in opset 22 only; TensorRT reads them in any.
        version = self.opset if self.precision == 'fp16' else onnx.defs.onnx_opset_version()
        try:
            return onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return None

    def _allows(self, formal: Sequence[onnx.defs.OpSchema.FormalParameter], place: int) -> bool:
        """Return whether an operand may have the narrow type; a variadic one stands last."""
        wanted = 'tensor(float16)' if self.precision == 'fp16' else 'tensor(bfloat16)'
        return wanted in formal[min(place, len(formal) - 1)].types

    def _wide_places(self, node: onnx.NodeProto) -> list[bool]:
        """Return for each input whether it stays as it is, such as the scales of Resize."""
        schema = self._schema(node)
        assert schema is not None
        return [
            not self.is_float(name) or not self._allows(schema.inputs, place)
            for place, name in enumerate(node.input)
        ]

    def _values(self, name: str) -> npt.NDArray[np.float32] | None:
        tensor = self.index.initializers.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT:
            return None
        values: npt.NDArray[np.float32] = numpy_helper.to_array(tensor)
        return values

    def _convert_initializers(self, narrow: set[str], wide: set[str]) -> None:
        kept = [t for t in self.graph.initializer if t.name not in narrow or t.name in wide]
        made = []
        for name in sorted(narrow & set(self.index.initializers)):
            values = self._values(name)
            assert values is not None
            made.append(numpy_helper.from_array(values.astype(self.dtype), name + self.suffix))
            if self.precision == 'fp16':
                lost = int(((np.abs(values) <= _FP16_SMALLEST / 2) & (values != 0)).sum())
                # Single small weights next to large ones change nothing; an epsilon does.
                if lost > _REPORTED_FROM * values.size:
                    self.result.notes.append(
                        f'{lost} of {values.size} numbers of {name!r} are 0 in FP16'
                    )
        self.graph.ClearField('initializer')
        self.graph.initializer.extend([*kept, *made])
        # Before IR version 4 initializers stood among the inputs too.
        gone = set(self.index.initializers) - {tensor.name for tensor in kept}
        left = [entry for entry in self.graph.input if entry.name not in gone]
        del self.graph.input[:]
        self.graph.input.extend(left)

    def _input_casts(self, narrow: set[str]) -> Iterable[onnx.NodeProto]:
        for entry in self.graph.input:
            if entry.name in narrow and entry.name not in self.index.initializers:
                yield self._cast(entry.name, entry.name + self.suffix, self.kind)

    def _cast(self, source: str, target: str, kind: int) -> onnx.NodeProto:
        self.result.casts += 1
        return helper.make_node('Cast', [source], [target], name=f'{target}_cast', to=kind)

    def _rewritten(
        self, node: onnx.NodeProto, narrow: set[str], wide: set[str]
    ) -> Iterable[onnx.NodeProto]:
        """Yield a node and the casts that its results need."""
        if node.name in self.wide_inputs:
            yield self._narrow_node(node)
            for name in node.output:
                if self.is_float(name) and name in wide:
                    yield self._cast(name + self.suffix, name, TensorProto.FLOAT)
        else:
            yield node
            for name in node.output:
                if name in narrow:
                    yield self._cast(name, name + self.suffix, self.kind)

    def _narrow_node(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return a node that reads and makes the narrow version of each tensor that has one."""
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        for place, stays in enumerate(self.wide_inputs[node.name]):
            if not stays:
                changed.input[place] += self.suffix
        for attribute in changed.attribute:
            if node.op_type == 'Cast' and attribute.i == TensorProto.FLOAT:
                attribute.i = self.kind
        for place, name in enumerate(node.output):
            if self.is_float(name):
                changed.output[place] += self.suffix
        return changed
