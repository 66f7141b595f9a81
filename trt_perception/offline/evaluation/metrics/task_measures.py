# SPDX-License-Identifier: Apache-2.0
"""Selects the measure of a task by the name in ``Task.measure``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.model.tasks.task import Task
from trt_perception.offline.evaluation.metrics.keypoints import Keypoints
from trt_perception.offline.evaluation.metrics.masks import Masks
from trt_perception.offline.evaluation.metrics.measure import Measure
from trt_perception.offline.evaluation.metrics.oriented_boxes import OrientedBoxes

_MEASURE_CLASSES: Final = (Measure, Masks, Keypoints, OrientedBoxes)
#: Maps the name of a measure to its class.
MEASURES: Final[Mapping[str, type[Measure]]] = {each.kind: each for each in _MEASURE_CLASSES}


def measure_of(task: Task, sigmas: Sequence[float] = ()) -> Measure:
    """Return the measure for models of a task.

    Args:
        sigmas: sigmas of OKS, one for each keypoint or one for all; empty for the default: COCO's
            for 17 keypoints, else 0.05.

    Raises:
        ConfigError: the sigmas do not fit the task, or pycocotools is needed but not installed.
    """
    return MEASURES[task.measure].for_model(task.keypoint_names, sigmas)


def common_measure(tasks: Mapping[str, Task], sigmas: Sequence[float] = ()) -> Measure:
    """Return the measure that all models have in common.

    Args:
        tasks: maps the name of each model to its task; at least one entry.
        sigmas: sigmas of OKS, see ``measure_of``.

    Raises:
        ConfigError: the models have different measures, or the sigmas do not fit.
    """
    (first, task), *others = tasks.items()
    measure = measure_of(task, sigmas)
    for name, other in others:
        if measure_of(other, sigmas if other.keypoint_names else ()) != measure:
            raise ConfigError(
                f'{name} and {first}',
                f'the tasks {other} and {task}',
                expected='models of one task',
                fix='measure each model separately, or boxes only (evaluate_engine --boxes-only)',
            )
    return measure
