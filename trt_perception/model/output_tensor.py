"""The output tensors that a decoder reads, and which of a model's outputs they are.

A text in a shape stands for any size, which is the same wherever that text stands:

    B   images of a batch        N   anchors, with a row for each
    C   classes                  Q   queries of a transformer
    K   final boxes              M   as many as there are in the image, or in the batch
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from trt_perception.model.tensors import FLOAT_DTYPES, TensorSpec

__all__ = ['OutputTensor', 'assign_outputs', 'class_side', 'outputs_text']


@dataclass(frozen=True)
class OutputTensor:
    """One output that a decoder reads.

    Attributes:
        name: what the tensor holds.
        shape: a number for each fixed dimension, a text for each other dimension.
        dtypes: allowed data types.
        tensor_names: the names that exporters give the tensor. If shapes leave a choice, an output
            with one of these names is chosen.
        by_name: the output must have one of these names, because shapes do not tell.
    """

    name: str
    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    tensor_names: tuple[str, ...] = ()
    by_name: bool = False


def class_side(classes: int | None, before: int = 0) -> int | str:
    """Return the size of an axis that holds the classes behind some other values.

    Args:
        classes: the number of class names; None if unknown.
        before: the number of other values.
    """
    if classes is None:
        return f'{before} + C' if before else 'C'
    return before + classes


def outputs_text(wanted: Sequence[OutputTensor], batch: int = 1) -> str:
    """Return outputs for messages: ``output float32/float16 (1, 84, N)``."""
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
) -> tuple[int, ...] | None:
    """Find the outputs that a decoder reads.

    Args:
        wanted: the outputs that the decoder reads.
        outputs: in the model's order, -1 for an open dimension.
        allow_dynamic: a dynamic dimension matches any number of a wanted shape.

    Returns:
        The index of each wanted output; None if the outputs do not fit, or fit in several ways.
    """
    if not wanted or len(outputs) < len(wanted):
        return None
    # A name helps where shapes leave a choice; where they contradict it, it means something else.
    return _assigned(wanted, outputs, allow_dynamic, by_name=True) or _assigned(
        wanted, outputs, allow_dynamic, by_name=False
    )


def _assigned(
    wanted: Sequence[OutputTensor],
    outputs: Sequence[TensorSpec],
    allow_dynamic: bool,
    *,
    by_name: bool,
) -> tuple[int, ...] | None:
    choices = [_choices(one, outputs, by_name) for one in wanted]
    found = [
        picked
        for picked in itertools.islice(itertools.product(*choices), 10_000)
        if len(set(picked)) == len(picked)
        and _consistent(wanted, [outputs[index] for index in picked], allow_dynamic)
    ]
    named = all(
        len(choice) == 1 and _named(one, outputs[choice[0]])
        for one, choice in zip(wanted, choices, strict=True)
    )
    # An output that nobody reads is fine next to outputs that are known by name, not else.
    if len(found) != 1 or (len(outputs) != len(wanted) and not named):
        return None
    return found[0]


def _choices(one: OutputTensor, outputs: Sequence[TensorSpec], by_name: bool) -> list[int]:
    fitting = [
        index
        for index, tensor in enumerate(outputs)
        if tensor.dtype in one.dtypes and len(tensor.shape) == len(one.shape)
    ]
    named = [index for index in fitting if _named(one, outputs[index])]
    return named if one.by_name or (named and by_name) else fitting


def _named(one: OutputTensor, tensor: TensorSpec) -> bool:
    return tensor.name.removesuffix(':0') in one.tensor_names


def _consistent(
    wanted: Sequence[OutputTensor], tensors: Sequence[TensorSpec], allow_dynamic: bool
) -> bool:
    """Whether every letter has one size and every number is met; -1 may be any size."""
    sizes: dict[str, int] = {}
    for one, tensor in zip(wanted, tensors, strict=True):
        for size, side in zip(one.shape, tensor.shape, strict=True):
            if side == -1:
                if isinstance(size, int) and not allow_dynamic:
                    return False
                continue
            expected = size if isinstance(size, int) else sizes.setdefault(size, side)
            if side != expected:
                return False
    return True
