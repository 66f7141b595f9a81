# SPDX-License-Identifier: Apache-2.0
"""Completes a task that the user has set by its name only."""

from __future__ import annotations

from dataclasses import replace

from trt_perception.errors import EngineError
from trt_perception.model.recognition.decoder_search import find_decoders_by_shape
from trt_perception.model.recognition.manifest_command import manifest_advice
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, KeypointSpec, Pose
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import ModelInfo


def requested_task(
    model: ModelInfo,
    found: Task,
    class_names: tuple[str, ...],
    name: str,
    keypoint_names: tuple[str, ...] = (),
) -> Task:
    """Return the task of this name, completed from the outputs.

    Args:
        found: the task that metadata or outputs show. Returned unchanged if it has this name.
        class_names: names of the classes, in the order of the network's outputs; empty if unknown.
        keypoint_names: names of the keypoints, in the order of the outputs. If empty, objects of a
            class ``person`` have COCO's keypoints.

    Raises:
        EngineError: the outputs do not show the values that the task needs.
    """
    if name == Pose.name and keypoint_names:
        return _pose_task(model, class_names, keypoint_names)
    if name == found.name:
        return found
    if name != Pose.name:
        return TASKS[name]().complete_from_outputs(model)
    if class_names and 'person' not in class_names:
        raise EngineError(
            model.name,
            'task pose without names of keypoints; only models with the class "person" have '
            'default names, the names of COCO',
            fix=manifest_advice(model, name, '--keypoint-names', 'NAME', 'NAME'),
        )
    return Pose(COCO_KEYPOINTS)


def _pose_task(
    model: ModelInfo, class_names: tuple[str, ...], keypoint_names: tuple[str, ...]
) -> Task:
    """Return the task with three values for each keypoint, or two if only two fit the outputs."""
    pose = Pose(KeypointSpec(keypoint_names, 3))
    if find_decoders_by_shape(model, len(class_names) or None, pose):
        return pose
    return replace(pose, keypoints=replace(pose.keypoints, values=2))
