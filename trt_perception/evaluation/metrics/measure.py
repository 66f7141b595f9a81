"""What of an object accuracy is measured by: its box, mask, keypoints or oriented box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.model.tasks.task import Task

__all__ = ['BOXES', 'OKS_SIGMA', 'Measure', 'common_measure', 'measure_of']

#: COCO's, by keypoint of a person (https://cocodataset.org/#keypoints-eval).
_COCO_SIGMAS: Final = (
    *(0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062),
    *(0.107, 0.107, 0.087, 0.087, 0.089, 0.089),
)
#: For any other keypoints where nobody says: about the median of COCO's.
OKS_SIGMA: Final = 0.05

_KINDS: Final = {
    'detect': 'boxes',
    'segment': 'masks',
    'pose': 'keypoints',
    'obb': 'oriented boxes',
}


@dataclass(frozen=True)
class Measure:
    """What is compared.

    Attributes:
        kind: ``boxes``, ``masks``, ``keypoints`` or ``oriented boxes``.
        keypoints: names of an object's keypoints, in the model's order; empty for other kinds.
        sigmas: how exactly each keypoint can be annotated, for OKS: the standard deviation as a
            share of the root of the object's area.
    """

    kind: str = 'boxes'
    keypoints: tuple[str, ...] = ()
    sigmas: tuple[float, ...] = ()


#: Boxes, whatever else there is.
BOXES: Final = Measure()


def measure_of(task: Task, sigmas: Sequence[float] = ()) -> Measure:
    """Return what tells how good a model is.

    Args:
        task: of the model.
        sigmas: for OKS, one for each keypoint or one for all; none: COCO's for 17 keypoints, else
            0.05.

    Raises:
        ConfigError: the model has no keypoints or another number, or one is out of range.
    """
    names = task.keypoint_names
    if not names:
        if sigmas:
            raise ConfigError('--oks-sigma', 'the model has no keypoints', fix='leave it out')
        return Measure(_KINDS[task.name])
    if not sigmas:
        sigmas = _COCO_SIGMAS if len(names) == len(_COCO_SIGMAS) else (OKS_SIGMA,)
    if len(sigmas) == 1:
        sigmas = tuple(sigmas) * len(names)
    if len(sigmas) != len(names):
        raise ConfigError(
            '--oks-sigma',
            f'{len(sigmas)} values',
            expected=f'one value, or one for each of the {len(names)} keypoints',
        )
    if wrong := [sigma for sigma in sigmas if not (math.isfinite(sigma) and 0 < sigma <= 1)]:
        raise ConfigError('--oks-sigma', str(wrong[0]), expected='above 0, at most 1')
    return Measure(_KINDS[task.name], names, tuple(sigmas))


def common_measure(tasks: Mapping[str, Task], sigmas: Sequence[float] = ()) -> Measure:
    """Return what tells how good several models are.

    Args:
        tasks: by the model's name, at least one.
        sigmas: as in ``measure_of``.

    Raises:
        ConfigError: they say different things of an object, or the sigmas do not fit.
    """
    (first, task), *others = tasks.items()
    measure = measure_of(task, sigmas)
    for name, other in others:
        if measure_of(other, sigmas if other.keypoint_names else ()) != measure:
            raise ConfigError(
                f'{name} and {first}',
                f'the tasks {other} and {task}',
                expected='models of one task',
                fix='measure each by itself, or boxes only (evaluate_engine --boxes-only)',
            )
    return measure
