# SPDX-License-Identifier: Apache-2.0
"""Record and measure the results of tasks beyond boxes: masks, oriented boxes and keypoints."""

from __future__ import annotations

import json

import numpy as np
from sensor_msgs.msg import Image, PointCloud2

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.table import TASKS
from trt_perception.offline.evaluation.metrics.keypoints import OKS_SIGMA, Keypoints
from trt_perception.offline.evaluation.metrics.masks import Masks
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.metrics.oriented_boxes import OrientedBoxes

#: The name and message type of the additional topic of a task.
TOPICS = {'segment': ('masks', Image), 'pose': ('keypoints', PointCloud2)}


class NumberedMasks:
    """Masks from an image whose pixels hold the number of a mask.

    The class has the interface of ``trt_perception.images.detections.Masks``. The mask with the
    better score is on top. So the worse of two overlapping masks lacks the common pixels.
    """

    def __init__(self, numbers, xyxy):
        self.numbers = numbers
        self.xyxy = xyxy
        self.size_wh = numbers.shape[1], numbers.shape[0]

    def __len__(self):
        return len(self.xyxy)

    def one(self, index):
        """Return left and top of a mask's box in pixels, and the mask inside the box."""
        left, top, right, bottom = np.ceil(self.xyxy[index]).astype(int).tolist()
        return left, top, self.numbers[top:bottom, left:right] == index + 1

    def number(self, out):
        """Write the number of each pixel's mask to ``out``."""
        out[:] = self.numbers


def with_task_message(task, found, message, task_message, keypoints):
    """Return detections with the additional results of their task.

    Args:
        task: the model's task.
        found: the boxes of one image.
        message: the message of the detections; None if there is none.
        task_message: the message of the task's topic for the same image; None if there is none.
        keypoints: number of keypoints per object.

    Raises:
        RuntimeError: the model has another number of keypoints.
    """
    what = found.xyxy, found.scores, found.class_ids
    if task == 'segment' and task_message is not None:
        numbers = np.frombuffer(task_message.data, '<u2').reshape(
            task_message.height, task_message.width
        )
        return Detections(*what, masks=NumberedMasks(numbers, found.xyxy))
    if task == 'pose':
        points = np.zeros((0, keypoints, 3), np.float32)
        if task_message is not None and len(found):
            points = np.frombuffer(task_message.data, '<f4').reshape(len(found), -1, 3)
        if points.shape[1] != keypoints:
            raise RuntimeError(
                f'the model finds {points.shape[1]} keypoints per object, but the objects of the '
                f'scenes have {keypoints}'
            )
        return Detections(*what, points)
    if task == 'obb':
        oriented = np.zeros((0, 5), np.float32)
        if len(found):
            oriented = np.array([oriented_of(one.bbox) for one in message.detections], np.float32)
        corners = oriented_corners(oriented)
        xyxy = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
        return Detections(xyxy, *what[1:], oriented=oriented)
    return found


def oriented_of(box):
    """Return centre, size and angle of a message's box."""
    center = box.center
    return center.position.x, center.position.y, box.size_x, box.size_y, center.theta


def keypoints_of(truth_file):
    """Return the truth's names of an object's keypoints, and the pairs that a line joins."""
    category = json.loads(truth_file.read_text(encoding='utf-8'))['categories'][0]
    return category['keypoints'], [(a - 1, b - 1) for a, b in category['skeleton']]


def task_of(name, truth_file):
    """Return a task by its name. Poses have the truth's keypoints."""
    if name == 'pose':
        keypoints, skeleton = keypoints_of(truth_file)
        return Pose(KeypointSpec(tuple(keypoints), 3, tuple(skeleton)))
    return TASKS[name]()


def measure_of(task, truth_file):
    """Return the measure that compares objects of a task with the truth."""
    if task == 'pose':
        names, _ = keypoints_of(truth_file)
        return Keypoints.for_model(names, (OKS_SIGMA,))
    return {'detect': BOXES, 'segment': Masks(), 'obb': OrientedBoxes()}[task]
