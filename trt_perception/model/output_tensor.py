# SPDX-License-Identifier: Apache-2.0
"""Describes the output tensors that a decoder reads, and finds them among a model's outputs.

A letter in a shape stands for any size. The same letter stands for the same size in all shapes:

    B   images of a batch        N   anchors: one row for each anchor
    C   classes                  Q   queries of a transformer
    K   final boxes              M   objects: their number varies with the image or batch
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trt_perception.model.tensors import FLOAT_DTYPES, TensorSpec


class Axis(NamedTuple):
    """The content of an axis whose size depends on the number of classes or of task values.

    Attributes:
        before: number of values before the class scores, such as 4 for a box.
        has_classes: whether the axis has one score for each class.
        after: number of values after the class scores.
        has_task_values: whether the axis also has the task values of an object, such as keypoints.
    """

    before: int = 0
    has_classes: bool = True
    after: int = 0
    has_task_values: bool = False

    def size(self, class_count: int | None, task_value_count: int) -> int | str:
        """Return the number of values, such as 84, or ``4 + C`` for an unknown class count.

        Args:
            class_count: the number of class names; None if unknown.
        """
        before = self.before + (task_value_count if self.has_task_values else 0)
        if not self.has_classes:
            return before + self.after
        if class_count is None:
            return ' + '.join(str(part) for part in (before, 'C', self.after) if part)
        return before + class_count + self.after


@dataclass(frozen=True)
class OutputTensor:
    """One output that a decoder reads.

    Attributes:
        shape: a number for each fixed dimension, a letter or word for each other dimension. A
            decoder's table of outputs may have an Axis, which ``with_sizes`` replaces.
        tensor_names: usual names of the tensor. If several outputs have the shape, an output with
            one of these names is preferred.
        must_match_name: whether the output must have one of ``tensor_names``, because other
            outputs may have the same shape.
    """

    name: str
    shape: tuple[int | str | Axis, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    tensor_names: tuple[str, ...] = ()
    must_match_name: bool = False

    def with_sizes(self, class_count: int | None, task_value_count: int) -> OutputTensor:
        """Return the output with the size of each Axis. See ``Axis.size`` for the arguments."""
        shape = (
            axis.size(class_count, task_value_count) if isinstance(axis, Axis) else axis
            for axis in self.shape
        )
        return replace(self, shape=tuple(shape))


def outputs_text(wanted: Sequence[OutputTensor], batch: int = 1) -> str:
    """Describe outputs for messages, such as ``output float32/float16 (1, 84, N)``."""
    return ', '.join(
        f'{output.name} {"/".join(output.dtypes)} ({", ".join(map(str, output.shape))})'
        for output in wanted
    ).replace('(B, ', f'({batch}, ')


@functools.lru_cache(maxsize=64)
def assign_outputs(
    wanted: tuple[OutputTensor, ...],
    outputs: tuple[TensorSpec, ...],
    *,
    allow_dynamic: bool = True,
    shapes_decide: bool = True,
) -> tuple[int, ...] | None:
    """Find the outputs that a decoder reads. The model may have other outputs, which stay unused.

    Args:
        outputs: all outputs in the model's order, with -1 for a dynamic dimension.
        allow_dynamic: whether a dynamic dimension of an output matches any number.
        shapes_decide: whether shapes may decide which outputs stay unused. False while the decoder
            is not known, because some decoder fits a part of almost any outputs.

    Returns:
        The index of each wanted output; None if the outputs do not match, or match in several
        ways.
    """
    found = possible_assignments(wanted, outputs, allow_dynamic=allow_dynamic)
    if len(found) != 1:
        return None
    (indices,) = found
    are_named = all(
        _has_known_name(output, outputs[index])
        for output, index in zip(wanted, indices, strict=True)
    )
    has_unused = len(outputs) != len(wanted)
    return indices if shapes_decide or are_named or not has_unused else None


def possible_assignments(
    wanted: Sequence[OutputTensor],
    outputs: Sequence[TensorSpec],
    *,
    allow_dynamic: bool = True,
) -> list[tuple[int, ...]]:
    """Return all ways in which outputs match: the index of each wanted output.

    If outputs with known names match, only these. See ``assign_outputs`` for the arguments.
    """
    if not wanted or len(outputs) < len(wanted):
        return []
    # If several outputs have the same shape, the names decide. If the named outputs do not match,
    # another exporter uses these names for other outputs, so try again without names.
    named = _assign(wanted, outputs, allow_dynamic, prefer_known_names=True)
    if len(named) == 1:
        return named
    return _assign(wanted, outputs, allow_dynamic, prefer_known_names=False) or named


def _assign(
    wanted: Sequence[OutputTensor],
    outputs: Sequence[TensorSpec],
    allow_dynamic: bool,
    *,
    prefer_known_names: bool,
) -> list[tuple[int, ...]]:
    choices = [
        _possible_outputs(wanted_output, outputs, prefer_known_names) for wanted_output in wanted
    ]
    return [
        indices
        for indices in itertools.islice(itertools.product(*choices), 10_000)
        if len(set(indices)) == len(indices)
        and shapes_match(
            wanted, [outputs[index].shape for index in indices], allow_dynamic=allow_dynamic
        )
    ]


def _possible_outputs(
    wanted_output: OutputTensor, outputs: Sequence[TensorSpec], prefer_known_names: bool
) -> list[int]:
    fitting = [
        index
        for index, tensor in enumerate(outputs)
        if tensor.dtype in wanted_output.dtypes and len(tensor.shape) == len(wanted_output.shape)
    ]
    named = [index for index in fitting if _has_known_name(wanted_output, outputs[index])]
    return named if wanted_output.must_match_name or (named and prefer_known_names) else fitting


def _has_known_name(wanted_output: OutputTensor, tensor: TensorSpec) -> bool:
    return tensor.name.removesuffix(':0') in wanted_output.tensor_names


def shapes_match(
    wanted: Sequence[OutputTensor],
    shapes: Sequence[tuple[int, ...]],
    *,
    allow_dynamic: bool = True,
    batch: int | None = None,
) -> bool:
    """Return whether each letter has one size and each number matches. -1 matches any size.

    Args:
        shapes: the shape of each of these outputs.
        allow_dynamic: whether -1 also matches a number.
        batch: the size of the letter B; None for any size.
    """
    sizes: dict[str | Axis, int] = {} if batch is None else {'B': batch}
    for wanted_output, shape in zip(wanted, shapes, strict=True):
        if len(shape) != len(wanted_output.shape):
            return False
        for size, side in zip(wanted_output.shape, shape, strict=True):
            if side == -1:
                if isinstance(size, int) and not allow_dynamic:
                    return False
                continue
            expected = size if isinstance(size, int) else sizes.setdefault(size, side)
            if side != expected:
                return False
    return True
