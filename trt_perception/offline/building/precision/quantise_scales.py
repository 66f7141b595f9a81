# SPDX-License-Identifier: Apache-2.0
"""Adjusts scales so that TensorRT accepts them: positive, and large enough for FP16.

TensorRT refuses scales that are not positive. It computes the other layers in FP16, whose smallest
numbers are multiples of 2**-24. Scales of weights can be changed: any scale represents zeros, and
a scale that FP16 cannot represent is raised. Scales of data come from images. If a tensor was
always 0, its scale is unknown, and the layers that read it stay in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from trt_perception.errors import EngineError
from trt_perception.offline.building.graph.graph_index import (
    GraphIndex,
    broadcast_scale,
    channel_axis,
)

#: Numbers near 0 in FP16 are multiples of this step.
_FP16_STEP: Final = 2.0**-24
# From this scale on, rounding the scale to FP16 moves a value by at most half an INT8 level.
_MIN_EXACT_SCALE: Final = 2.0**-17
# In a smaller range, the levels of INT8 would lie closer together than the numbers in FP16.
_MIN_RANGE: Final = 127.5 * _FP16_STEP
# The distance from minimum to maximum, twice this value, must be finite in FP32.
_MAX_RANGE: Final = float(np.finfo(np.float32).max) / 2
_ZERO_WEIGHTS_SCALE: Final = 1.0  # any scale represents weights that are all 0

_Array = npt.NDArray[np.generic]


def usable_scale_mask(scale: _Array) -> npt.NDArray[np.bool_]:
    """Return for each scale whether it is a positive finite number."""
    numbers = scale.astype(np.float64)
    usable: npt.NDArray[np.bool_] = np.isfinite(numbers) & (numbers > 0)
    return usable


def check_weights(layers: Iterable[onnx.NodeProto], index: GraphIndex) -> None:
    """Refuse layers whose weights are not finite. Later errors would name other tensors.

    Raises:
        EngineError: weights contain NaN or infinity.
    """
    for node in layers:
        weights = index.constant(node.input[1])
        if weights is not None and not np.isfinite(weights).all():
            raise EngineError(
                f'the weights {node.input[1]!r} of {node.name!r}',
                'contain NaN or infinity',
                fix='export the model again, from a training that converged',
            )


def unquantisable_layers(
    layers: Iterable[onnx.NodeProto], ranges: Mapping[str, float], index: GraphIndex
) -> dict[str, str]:
    """Return the layers that cannot be quantised, each with the reason.

    Args:
        ranges: maps each tensor that the layers read to the magnitude of the largest integer.
        index: index of their graph.
    """
    found: dict[str, str] = {}
    for node in layers:
        weights = index.constant(node.input[1])
        reason = _range_problem(f'its data {node.input[0]!r}', ranges[node.input[0]])
        if weights is not None and np.abs(weights).max(initial=0) > _MAX_RANGE:
            reason = reason or 'its weights are too large for a scale in FP32'
        if reason:
            found[node.name] = reason
    return found


def _range_problem(data: str, largest: float) -> str:
    if not largest:
        return f'{data} are always 0 on these images, so their scale is unknown'
    if largest < _MIN_RANGE:
        return f'{data} have the range {largest:.1e}, where FP16 has no more steps than INT8'
    if largest > _MAX_RANGE:
        return f'{data} have the range {largest:.1e}, too large for a scale in FP32'
    return ''


def adjust_scales(model: onnx.ModelProto) -> None:
    """Raise scales that FP16 cannot represent, and rescale stored weights, in place.

    A scale below 2**-17 becomes the next multiple of 2**-24. A scale that is not a positive number
    becomes 1 if all its weights are 0; otherwise it is kept.

    Args:
        model: any model; without Q/DQ nodes it is not changed.
    """
    index = GraphIndex(model.graph)
    replacement = _ConstantReplacer(model.graph, index)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type in ('QuantizeLinear', 'DequantizeLinear'):
            readers.setdefault(node.input[1], []).append(node)
    for name, nodes in readers.items():
        old = index.constant(name)
        if old is None or not all(_has_valid_shape(old, node, index) for node in nodes):
            continue
        new = _adjusted_scale(old, nodes, index)
        if np.array_equal(new, old, equal_nan=True):
            continue
        for node in nodes:
            stored = index.constant(node.input[0])
            if node.op_type == 'DequantizeLinear' and stored is not None:
                axis = channel_axis(node, stored.ndim)
                replacement.replace([node], 0, _rescale_weights(stored, old, new, axis))
        replacement.replace(nodes, 1, new)
    replacement.remove_unused()


class _ConstantReplacer:
    """Replaces constants that nodes of a graph read."""

    def __init__(self, graph: onnx.GraphProto, index: GraphIndex) -> None:
        self._graph = graph
        self._names = {
            *index.initializers,
            *index.producer,
            *(entry.name for entry in graph.input),
        }
        self._replaced: set[str] = set()

    def replace(self, nodes: Sequence[onnx.NodeProto], place: int, value: _Array) -> None:
        """Let nodes read this value instead of the constant that they share as an input."""
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
        """Remove the replaced constants that no node reads any more."""
        used = GraphIndex(self._graph).consumers
        gone = self._replaced.difference(used)
        kept = [tensor for tensor in self._graph.initializer if tensor.name not in gone]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)


def _has_valid_shape(scale: _Array, node: onnx.NodeProto, index: GraphIndex) -> bool:
    """Return whether there is one scale, or one for each channel if the channels are known."""
    data = index.constant(node.input[0])
    if scale.ndim > 1 or scale.size < 2 or data is None:
        return scale.ndim < 2
    return data.ndim > 0 and data.shape[channel_axis(node, data.ndim)] == scale.size


def _adjusted_scale(old: _Array, nodes: Iterable[onnx.NodeProto], index: GraphIndex) -> _Array:
    """Return the adjusted scale; the same scale if no change is needed or possible."""
    wide = old.astype(np.float64)
    new = wide.copy()
    if old.dtype == np.float32:
        small = (wide > 0) & (wide < _MIN_EXACT_SCALE)
        new[small] = np.ceil(wide[small] / _FP16_STEP) * _FP16_STEP
    unusable = ~usable_scale_mask(old)
    if unusable.any() and all(
        _zero_weight_mask(node, index, old)[unusable].all() for node in nodes
    ):
        new[unusable] = _ZERO_WEIGHTS_SCALE
    return new.astype(old.dtype)


def _zero_weight_mask(
    node: onnx.NodeProto, index: GraphIndex, scale: _Array
) -> npt.NDArray[np.bool_]:
    """Return for each scale of a Q or DQ node whether it belongs to weights that are all 0."""
    name = node.input[0]
    producer = index.producer.get(name)
    if producer is not None and producer.op_type == 'QuantizeLinear':
        name = producer.input[0]
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


def _rescale_weights(stored: _Array, old: _Array, new: _Array, axis: int) -> _Array:
    """Return the integers or FP8 numbers that represent the same weights with a new scale."""
    usable = usable_scale_mask(old)
    ratio = np.divide(
        old.astype(np.float64), new.astype(np.float64), out=np.ones(old.shape), where=usable
    )
    # Scales only grow, so the stored numbers shrink and stay in the range of the type.
    numbers = stored.astype(np.float64) * broadcast_scale(ratio, axis, stored.ndim)
    if np.issubdtype(stored.dtype, np.integer):
        numbers = np.rint(numbers)
    rounded: _Array = numbers.astype(stored.dtype)
    return rounded
