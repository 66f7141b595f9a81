"""The measure of each task, by the name that the task gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.evaluation.metrics.keypoints import Keypoints
from trt_perception.evaluation.metrics.masks import Masks
from trt_perception.evaluation.metrics.measure import Measure
from trt_perception.evaluation.metrics.oriented_boxes import OrientedBoxes
from trt_perception.model.tasks.task import Task

__all__ = ['MEASURES', 'common_measure', 'measure_of']

_MEASURE_CLASSES: Final = (Measure, Masks, Keypoints, OrientedBoxes)
#: By name.
MEASURES: Final[Mapping[str, type[Measure]]] = {each.kind: each for each in _MEASURE_CLASSES}


def measure_of(task: Task, sigmas: Sequence[float] = ()) -> Measure:
    """Return what tells how good a model is.

    Args:
        task: of the model.
        sigmas: for OKS, one for each keypoint or one for all; empty: COCO's for 17 keypoints, else
            0.05.

    Raises:
        ConfigError: the sigmas do not fit, or pycocotools is needed and not installed.
    """
    return MEASURES[task.measure].for_model(task.keypoint_names, sigmas)


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
