# SPDX-License-Identifier: Apache-2.0
"""Shapes of outputs follow from the number of classes and the task, as exporters write them."""

import pytest

from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, Pose
from trt_perception.model.tasks.segment import Segment

POSE = Pose(COCO_KEYPOINTS)  # 17 keypoints of 3 values

SHAPES = [
    ('dense', DETECT, 80, ('B', 84, 'N')),
    ('dense', DETECT, None, ('B', '4 + C', 'N')),
    ('dense', POSE, 1, ('B', 56, 'N')),
    ('dense', POSE, None, ('B', '55 + C', 'N')),
    ('dense', Obb(), 15, ('B', 20, 'N')),
    ('dense', Segment(32), 80, ('B', 116, 'N')),
    ('dense_objectness_transposed', DETECT, 80, ('B', 'N', 85)),
    ('yolox_raw', DETECT, 80, ('B', 'N', 85)),
    ('yolox_raw', DETECT, None, ('B', 'N', '5 + C')),
    ('nanodet_plus', DETECT, 80, ('B', 'N', 112)),
    ('end_to_end', DETECT, None, ('B', 'K', 6)),
    ('end_to_end', POSE, None, ('B', 'K', 57)),
    ('end_to_end', Segment(32), 80, ('B', 'K', 38)),
    ('rtdetr_ultralytics', DETECT, 80, ('B', 'Q', 84)),
    ('rtdetr', DETECT, None, ('B', 'Q', 'C')),
    ('rtdetr', DETECT, 91, ('B', 'Q', 91)),
    ('detr', DETECT, None, ('B', 'Q', 'C + 1')),
    ('detr', DETECT, 91, ('B', 'Q', 92)),
]


@pytest.mark.parametrize(('preset', 'task', 'classes', 'shape'), SHAPES)
def test_shape_follows_from_the_classes_and_the_task(preset, task, classes, shape):
    assert PRESETS[preset].decoder.outputs(classes, task)[0].shape == shape
