"""Scales that TensorRT takes: positive, and large enough for FP16.

TensorRT refuses a scale that is not positive, and what is not quantised computes in FP16, whose
numbers near 0 are multiples of 2**-24. Weights are known, so any scale does for zeros, and one
that FP16 cannot hold is raised. Data are known from images only: where they were always 0, no
scale is known, and the layers that read them stay in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from trt_perception.building.graph.graph_index import GraphIndex, broadcast_scale, channel_axis
from trt_perception.errors import EngineError

__all__ = ['check_weights', 'fit_scales', 'is_usable', 'unquantisable_layers']

#: FP16's numbers near 0 are multiples of this.
_STEP: Final = 2.0**-24
# From here on FP16's own rounding of a scale moves no value by more than half a level of INT8.
_EXACT: Final = 2.0**-17
# With a smaller range INT8's levels would lie closer together than FP16's numbers.
_LEAST_RANGE: Final = 127.5 * _STEP
# Twice this value, the distance from minimum to maximum, must still be finite in FP32.
_MOST_RANGE: Final = float(np.finfo(np.float32).max) / 2
_ANY: Final = 1.0  # scale of data that is all zero: every scale gives zeros

_Array = npt.NDArray[np.generic]


def is_usable(scale: _Array) -> npt.NDArray[np.bool_]:
    """Return for each scale whether it is a positive number."""
    numbers = scale.astype(np.float64)
    usable: npt.NDArray[np.bool_] = np.isfinite(numbers) & (numbers > 0)
    return usable


def check_weights(layers: Iterable[onnx.NodeProto], index: GraphIndex) -> None:
    """Refuse layers whose weights are not numbers, before their results are blamed.

    Raises:
        EngineError: weights hold NaN or infinity.
    """
    for node in layers:
        weights = index.constant(node.input[1])
        if weights is not None and not np.isfinite(weights).all():
            raise EngineError(
                f'the weights {node.input[1]!r} of {node.name!r}',
                'hold NaN or infinity',
                fix='export the model again, from weights of a training that went well',
            )


def unquantisable_layers(
    layers: Iterable[onnx.NodeProto], ranges: Mapping[str, float], index: GraphIndex
) -> dict[str, str]:
    """Return by node why a layer cannot be quantised, none of those that can.

    Args:
        layers: with constant weights.
        ranges: by tensor that they read, the magnitude that the largest integer would stand for.
        index: of their graph.
    """
    found: dict[str, str] = {}
    for node in layers:
        weights = index.constant(node.input[1])
        reason = _no_scale(f'its data {node.input[0]!r}', ranges[node.input[0]])
        if weights is not None and np.abs(weights).max(initial=0) > _MOST_RANGE:
            reason = reason or 'its weights are too large for a scale in FP32'
        if reason:
            found[node.name] = reason
    return found


def _no_scale(data: str, largest: float) -> str:
    if not largest:
        return f'{data} are always 0 on these images, so no scale is known'
    if largest < _LEAST_RANGE:
        return f'{data} have the range {largest:.1e}, where FP16 has no more steps than INT8'
    if largest > _MOST_RANGE:
        return f'{data} have the range {largest:.1e}, too much for a scale in FP32'
    return ''


def fit_scales(model: onnx.ModelProto) -> None:
    """Raise the scales that FP16 cannot hold, and round stored weights anew, in place.

    A scale below 2**-17 becomes the next multiple of 2**-24. One that is not a positive number
    becomes 1 where it belongs to weights that are 0; elsewhere it stays.

    Args:
        model: with Q/DQ nodes, or without any.
    """
    index = GraphIndex(model.graph)
    replacement = _Replacement(model.graph, index)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type in ('QuantizeLinear', 'DequantizeLinear'):
            readers.setdefault(node.input[1], []).append(node)
    for name, nodes in readers.items():
        old = index.constant(name)
        if old is None or not all(_fits(old, node, index) for node in nodes):
            continue
        new = _fitted(old, nodes, index)
        if np.array_equal(new, old, equal_nan=True):
            continue
        for node in nodes:
            stored = index.constant(node.input[0])
            if node.op_type == 'DequantizeLinear' and stored is not None:
                axis = channel_axis(node, stored.ndim)
                replacement.replace([node], 0, _rounded(stored, old, new, axis))
        replacement.replace(nodes, 1, new)
    replacement.remove_unused()


class _Replacement:
    """Gives nodes of a graph other constants to read."""

    def __init__(self, graph: onnx.GraphProto, index: GraphIndex) -> None:
        self._graph = graph
        self._names = {
            *index.initializers,
            *index.producer,
            *(entry.name for entry in graph.input),
        }
        self._replaced: set[str] = set()

    def replace(self, nodes: Sequence[onnx.NodeProto], place: int, value: _Array) -> None:
        """Let nodes that read one constant at an input read this value there."""
        old = nodes[0].input[place]
        name = f'{old}_fitted'
        while name in self._names:
            name += '_'
        self._names.add(name)
        self._replaced.add(old)
        self._graph.initializer.append(numpy_helper.from_array(value, name))
        for node in nodes:
            node.input[place] = name

    def remove_unused(self) -> None:
        """Remove the constants that were replaced and that no node reads any more."""
        used = GraphIndex(self._graph).consumers
        gone = self._replaced.difference(used)
        kept = [tensor for tensor in self._graph.initializer if tensor.name not in gone]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)


def _fits(scale: _Array, node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Return whether it is one scale, or one for each channel, as far as that is known."""
    data = index.constant(node.input[0])
    if scale.ndim > 1 or scale.size < 2 or data is None:
        return scale.ndim < 2
    return data.ndim > 0 and data.shape[channel_axis(node, data.ndim)] == scale.size


def _fitted(old: _Array, nodes: Iterable[onnx.NodeProto], index: GraphIndex) -> _Array:
    """Return a scale as it shall be; the same one where nothing is to do or can be done."""
    wide = old.astype(np.float64)
    new = wide.copy()
    if old.dtype == np.float32:
        small = (wide > 0) & (wide < _EXACT)
        new[small] = np.ceil(wide[small] / _STEP) * _STEP
    unusable = ~is_usable(old)
    if unusable.any() and all(_zeros(node, index, old)[unusable].all() for node in nodes):
        new[unusable] = _ANY
    return new.astype(old.dtype)


def _zeros(node: onnx.NodeProto, index: GraphIndex, scale: _Array) -> npt.NDArray[np.bool_]:
    """Return for each scale of a Q or DQ node whether it belongs to weights that are all 0."""
    name = node.input[0]
    maker = index.producer.get(name)
    if maker is not None and maker.op_type == 'QuantizeLinear':
        name = maker.input[0]
    weights = index.constant(name)
    if weights is None:
        return np.zeros(scale.shape, bool)
    nothing = weights.astype(np.float32) == 0
    axis = channel_axis(node, weights.ndim)
    if weights.ndim and scale.size == weights.shape[axis] > 1:
        nothing = nothing.all(axis=tuple(i for i in range(weights.ndim) if i != axis))
    else:
        nothing = nothing.all()
    return np.broadcast_to(nothing, scale.shape)


def _rounded(stored: _Array, old: _Array, new: _Array, axis: int) -> _Array:
    """Return stored numbers that stand, with a new scale, for what they stood for."""
    usable = is_usable(old)
    ratio = np.divide(
        old.astype(np.float64), new.astype(np.float64), out=np.ones(old.shape), where=usable
    )
    # Only ever smaller, so the type holds them.
    numbers = stored.astype(np.float64) * broadcast_scale(ratio, axis, stored.ndim)
    if np.issubdtype(stored.dtype, np.integer):
        numbers = np.rint(numbers)
    rounded: _Array = numbers.astype(stored.dtype)
    return rounded
