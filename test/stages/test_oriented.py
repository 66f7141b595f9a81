# SPDX-License-Identifier: Apache-2.0
"""Oriented boxes: their overlap, NMS, and conversion to image pixels."""

import math

import cv2
import numpy as np
import pytest

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.nms import oriented_non_maximum_suppression, prob_iou

NETWORK = (64, 48)
SOURCE = (128, 64)  # the network input has half this size, with 8 rows of padding above and below


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 5)


def random_boxes(count, seed=3):
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            rng.uniform(0, 60, (count, 2)),
            rng.uniform(2, 30, (count, 2)),
            rng.normal(0, 3, (count, 1)),
        ],
        axis=1,
    ).astype(np.float32)


def by_definition(first, second):
    """Return 1 - the Hellinger distance of two normal distributions, from their matrices."""

    def distribution(box):
        x, y, width, height, angle = map(float, box)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        return np.array([x, y]), turn @ np.diag([width**2 / 12, height**2 / 12]) @ turn.T

    (mean, matrix), (other_mean, other_matrix) = distribution(first), distribution(second)
    covariance = (matrix + other_matrix) / 2
    offset = mean - other_mean
    distance = offset @ np.linalg.solve(covariance, offset) / 8 + 0.5 * math.log(
        np.linalg.det(covariance) / math.sqrt(np.linalg.det(matrix) * np.linalg.det(other_matrix))
    )
    return 1 - math.sqrt(max(0.0, 1 - math.exp(-distance)))


def test_overlap_is_that_of_normal_distributions():
    oriented = random_boxes(40)
    found = prob_iou(oriented, oriented[:30])
    assert found.shape == (40, 30)
    assert found.dtype == np.float32
    expected = [[by_definition(one, other) for other in oriented[:30]] for one in oriented]
    assert np.abs(found - np.array(expected)).max() < 2e-3  # the square root is steep near 1
    assert prob_iou(boxes(), oriented).shape == (0, 40)


def test_box_overlaps_itself_fully_after_a_half_turn():
    oriented = boxes(
        (10, 20, 30, 5, 0.4), (10, 20, 30, 5, 0.4 + np.pi), (10, 20, 5, 30, 0.4 - np.pi / 2)
    )
    assert prob_iou(oriented, oriented).min() > 0.998


def suppress_in_plain_python(oriented, class_ids, threshold, limit, agnostic):
    """Suppress each box that overlaps a better box, even if the better box is suppressed."""
    overlap = prob_iou(oriented, oriented)
    kept = [
        index
        for index in range(len(oriented))
        if not any(
            overlap[better, index] > np.float32(threshold)
            and (agnostic or class_ids[better] == class_ids[index])
            for better in range(index)
        )
    ]
    return kept[:limit]


@pytest.mark.parametrize('agnostic', [False, True])
@pytest.mark.parametrize('limit', [1, 20, 500])
@pytest.mark.parametrize('count', [0, 1, 127, 128, 129, 300])
def test_suppression_agrees_with_plain_python(count, limit, agnostic):
    oriented = random_boxes(count)
    class_ids = np.random.default_rng(4).integers(0, 3, count).astype(np.int32)
    kept = oriented_non_maximum_suppression(
        oriented, class_ids, 0.45, limit, class_agnostic=agnostic
    )
    assert kept.dtype == np.int64
    assert kept.tolist() == suppress_in_plain_python(oriented, class_ids, 0.45, limit, agnostic)


def test_suppressed_boxes_suppress_others():
    """Each of three boxes in a row overlaps its neighbour. Only the first box remains."""
    oriented = boxes((10, 10, 20, 8, 0.2), (13, 10, 20, 8, 0.2), (16, 10, 20, 8, 0.2))
    overlap = prob_iou(oriented, oriented)
    assert overlap[0, 1] > 0.65 > overlap[0, 2]
    kept = oriented_non_maximum_suppression(oriented, np.zeros(3, np.int32), 0.65, 9)
    assert kept.tolist() == [0]


def decode_oriented(name, rows, angles, scores, change=None):
    """Return the detections of boxes (centre x, centre y, width, height) in network pixels."""
    if name == 'dense':
        output = np.column_stack([rows, scores, angles]).astype(np.float32)
    else:
        output = np.column_stack([rows, scores, np.zeros(len(rows)), angles]).astype(np.float32)
    if change is not None:
        output[change[0], change[1]] = change[2]
    output = output.T if name == 'dense' else output
    spec = ModelSpec(
        TensorSpec('images', (1, 3, 48, 64), 'float32'),
        (TensorSpec('output0', (1, *output.shape), 'float32'),),
        Preprocessing(NETWORK),
        PRESETS[name].decoder,
        ('ship',),
        has_manifest=True,
        task=Obb(),
    )
    letterbox = Letterbox.fit(SOURCE, NETWORK, 'letterbox')
    (found,) = decode([output[None]], spec, [letterbox], [Thresholds()], DecodingLimits(9))
    return found


FORMS = ['dense', 'end_to_end']


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize(
    ('angle', 'expected'),
    [(0.0, 0.0), (0.5, 0.5), (2.0, 2.0 - np.pi), (-1.0, -1.0), (10.0, 10 - 3 * np.pi)],
)
def test_boxes_are_mapped_to_image_pixels(name, angle, expected):
    found = decode_oriented(name, [[30, 24, 20, 10]], [angle], [0.9])
    assert np.allclose(found.oriented, [[60, 32, 40, 20, expected]], atol=1e-4)
    outline = cv2.boxPoints(((60, 32), (40, 20), math.degrees(expected)))
    low, high = outline.min(axis=0), outline.max(axis=0)
    assert np.allclose(found.xyxy, [[*low, *high]], atol=1e-3)


@pytest.mark.parametrize('name', FORMS)
def test_box_with_its_centre_outside_the_image_keeps_its_geometry(name):
    found = decode_oriented(name, [[66, 5, 30, 10]], [0.0], [0.9])
    assert np.allclose(found.oriented, [[132, -6, 60, 20, 0]])
    assert np.allclose(found.xyxy, [[102, 0, 128, 4]])


def test_boxes_that_do_not_touch_the_image_are_dropped():
    """The expected result comes from OpenCV, which intersects each box with the image."""
    rng = np.random.default_rng(6)
    count = 400
    rows = np.concatenate(
        [rng.uniform((-30, -30), (94, 78), (count, 2)), rng.uniform(2, 40, (count, 2))], axis=1
    )
    angles = rng.uniform(-np.pi / 2, np.pi / 2, count)
    image = ((64, 32), (128, 64), 0)
    touching = []
    for (x, y, width, height), angle in zip(rows, angles, strict=True):
        areas = []
        for margin in (0, 1):
            size = 2 * width + margin, 2 * height + margin
            box = ((2 * x, 2 * (y - 8)), size, math.degrees(angle))
            _, common = cv2.rotatedRectangleIntersection(box, image)
            areas.append(0 if common is None else cv2.contourArea(cv2.convexHull(common)))
        touching.append(areas)
    # Omit boxes that are closer to the border of the image than OpenCV's accuracy.
    clear = [index for index, (area, larger) in enumerate(touching) if area > 1 or not larger]
    touching = [area for area, _ in touching]
    outlines = oriented_corners(boxes(*np.column_stack([rows, angles])))
    beside = (outlines.max(axis=1) > (0, 8)) & (outlines.min(axis=1) < (64, 40))
    cornered = [at for at in clear if touching[at] == 0 and beside[at].all()]
    assert len(cornered) > 5, 'some upright boxes touch the image, but not the box itself'
    assert 50 < sum(touching[at] == 0 for at in clear) < 350

    for at in clear:
        found = decode_oriented('end_to_end', [rows[at]], [angles[at]], [0.9])
        assert len(found) == (touching[at] > 0), at


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('angle', [1e4, -1e7, 1e12, 3e38])
def test_angle_is_reduced_to_a_half_turn(name, angle):
    found = decode_oriented(name, [[30, 24, 20, 10]], [angle], [0.9])
    assert abs(found.oriented[0, 4]) <= np.float32(np.pi / 2)
    assert np.isfinite(oriented_corners(found.oriented)).all()


@pytest.mark.parametrize('name', FORMS)
def test_invalid_box_is_removed(name):
    angle = 5 if name == 'dense' else 6
    rows = [[30, 24, 20, 10], [30, 24, 20, 10], [30, 24, 0, 10], [30, 24, 20, -1]]
    scores = [0.9, 0.8, 0.7, 0.6]
    for bad in (np.nan, np.inf):
        found = decode_oriented(name, rows, [0.1] * 4, scores, (0, angle, bad))
        assert found.scores.tolist() == pytest.approx([0.8])


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('size', [3e38, 1e38])
def test_box_with_a_size_beyond_float32_is_removed(name, size):
    found = decode_oriented(name, [[30, 24, size, 10], [30, 24, 20, 10]], [0.1] * 2, [0.9, 0.8])
    assert np.isfinite(found.oriented).all()
    assert found.scores.tolist() == pytest.approx([0.8] if size > 2e38 else [0.9, 0.8])


def test_suppression_depends_on_the_angle():
    rows, scores = [[30, 24, 30, 4], [30, 24, 30, 4], [31, 24, 30, 4]], [0.9, 0.8, 0.7]
    found = decode_oriented('dense', rows, [0.0, np.pi / 2, np.pi], scores)
    assert found.scores.tolist() == pytest.approx([0.9, 0.8]), 'crossed boxes are two objects'
    assert len(decode_oriented('end_to_end', rows, [0.0, np.pi / 2, np.pi], scores)) == 3


def test_corners_of_oriented_boxes_equal_opencv():
    oriented = random_boxes(20)
    for box, corners in zip(oriented, oriented_corners(oriented), strict=True):
        x, y, width, height, angle = map(float, box)
        expected = cv2.boxPoints(((x, y), (width, height), math.degrees(angle)))
        distance = np.linalg.norm(corners[:, None] - expected[None], axis=2)
        assert distance.min(axis=1).max() < 1e-3
    assert oriented_corners(boxes()).shape == (0, 4, 2)


def test_empty_output_gives_an_empty_result():
    found = decode_oriented('dense', [[30, 24, 20, 10]], [0.1], [0.1])
    assert found.oriented.shape == (0, 5)


def test_oriented_boxes_of_a_wrong_shape_are_refused(golden_messages):
    detections = decode_oriented('dense', [[30, 24, 20, 10]], [0.1], [0.9])
    with golden_messages.raises(ValueError):
        Detections(
            detections.xyxy,
            detections.scores,
            detections.class_ids,
            oriented=np.zeros((1, 4), np.float32),
        )
