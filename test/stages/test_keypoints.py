# SPDX-License-Identifier: Apache-2.0
"""Keypoints keep their box, from the network outputs to image pixels."""

from dataclasses import replace

import numpy as np
import pytest

from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import count_candidates, decode

NETWORK = (64, 48)
SOURCE = (128, 64)  # the network input has half this size, with 8 rows of padding above and below
FORMS = [('dense', 3), ('dense', 2), ('dense_transposed', 3), ('end_to_end', 3), ('end_to_end', 2)]
# Centre x, centre y, width, height, score and class in network pixels, worst first.
BOXES = [
    (40.0, 20.0, 8.0, 8.0, 0.3, 1),
    (20.0, 30.0, 8.0, 8.0, 0.5, 0),
    (20.0, 30.5, 8.0, 8.0, 0.9, 0),  # suppresses the previous box if the decoder has NMS
    (50.0, 20.0, 8.0, 8.0, 0.1, 0),  # below the threshold
]


def keypoints_of(index, values):
    """Return two keypoints in network pixels, which differ between the boxes."""
    keypoints = np.array([[10.0 + index, 12.0, 0.25], [30.0, 20.0 + index, 0.75]], np.float32)
    return keypoints[:, :values]


def decode_boxes(name, values, change=None, class_filter=()):
    """Return the detections of BOXES."""
    rows = []
    for index, (x, y, width, height, score, label) in enumerate(BOXES):
        points = keypoints_of(index, values).ravel()
        if name == 'end_to_end':
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2, score, label]
        else:
            box = [
                x,
                y,
                width,
                height,
                *(score if label == class_id else 0 for class_id in (0, 1)),
            ]
        rows.append([*box, *points])
    output = np.array(rows, np.float32)
    if change is not None:
        output[change[0], change[1]] = change[2]
    output = output.T if name == 'dense' else output
    spec = ModelSpec(
        TensorSpec('images', (1, 3, 48, 64), 'float32'),
        (TensorSpec('output0', (1, *output.shape), 'float32'),),
        Preprocessing(NETWORK),
        PRESETS[name].decoder,
        ('cat', 'dog'),
        has_manifest=True,
        task=Pose(KeypointSpec(('a', 'b'), values)),
    )
    thresholds = Thresholds(class_ids=class_filter)
    letterbox = Letterbox.fit(SOURCE, NETWORK, 'letterbox')
    (found,) = decode([output[None]], spec, [letterbox], [thresholds], DecodingLimits(9))
    assert count_candidates([output[None]], spec, thresholds) >= len(found)
    return found


def expected(indices, values):
    """Return the keypoints of some boxes in source pixels."""
    points = np.ones((len(indices), 2, 3), np.float32)
    for place, index in enumerate(indices):
        points[place, :, :values] = keypoints_of(index, values)
    points[:, :, :2] = (points[:, :, :2] - [0, 8]) * 2
    return points


@pytest.mark.parametrize(('name', 'values'), FORMS)
def test_keypoints_stay_with_their_boxes(name, values):
    order = [2, 1, 0] if name == 'end_to_end' else [2, 0]
    found = decode_boxes(name, values)
    assert found.scores.tolist() == pytest.approx([BOXES[index][4] for index in order])
    assert found.keypoints.dtype == np.float32
    assert np.allclose(found.keypoints, expected(order, values), atol=1e-5)
    found = decode_boxes(name, values, class_filter=(1,))
    assert np.allclose(found.keypoints, expected([0], values), atol=1e-5)


@pytest.mark.parametrize('name', ['dense', 'end_to_end'])
def test_keypoints_are_clipped_to_the_image(name):
    """Column 6 is x of the first keypoint, column 7 its y, column 8 its score."""
    for column, value, place, clipped in [
        (6, -5, (0, 0), 0),
        (6, 1e30, (0, 0), 128),
        (7, 3, (0, 1), 0),
        (7, 47, (0, 1), 64),
        (8, 1.05, (0, 2), 1),
        (8, -0.5, (0, 2), 0),
    ]:
        found = decode_boxes(name, 3, (2, column, value))
        assert found.keypoints[0][place] == clipped


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', ['dense', 'end_to_end'])
def test_box_with_an_invalid_keypoint_is_removed_before_nms(name, bad):
    found = decode_boxes(name, 3, (2, 9, bad))
    assert found.scores.tolist() == pytest.approx([0.5, 0.3])
    assert np.allclose(found.keypoints, expected([1, 0], 3), atol=1e-5)


def test_empty_result_has_an_empty_keypoint_array():
    found = decode_boxes('dense', 3, (slice(None), slice(4, 6), 0))
    assert len(found) == 0
    assert found.keypoints.shape == (0, 2, 3)


def test_selected_detections_keep_their_keypoints():
    found = decode_boxes('end_to_end', 3)
    some = found.take(np.array([2, 0]))
    assert np.array_equal(some.keypoints, found.keypoints[[2, 0]])
    assert np.array_equal(some.xyxy, found.xyxy[[2, 0]])
    assert len(found.take(found.scores > 0.4)) == 2
    assert replace(found, keypoints=None).take(np.array([1])).keypoints is None


@pytest.mark.parametrize('shape', [(2, 2, 3), (1, 2, 2), (1, 6)])
def test_keypoints_of_a_wrong_shape_are_refused(shape, golden_messages):
    detections = decode_boxes('end_to_end', 3).take(np.array([0]))
    with golden_messages.raises(ValueError):
        Detections(
            detections.xyxy, detections.scores, detections.class_ids, np.zeros(shape, np.float32)
        )
