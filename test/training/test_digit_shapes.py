# SPDX-License-Identifier: Apache-2.0
"""Tests of masks, oriented boxes and corners of drawn digits, also in the demo's truth file."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def shapes():
    # Import only this file. Other modules of the folder have general names such as "model".
    spec = importlib.util.spec_from_file_location('shapes', ROOT / 'training' / 'shapes.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw_quadrilateral(corners, linear, angle, left=0, top=0, size=(240, 240)):
    """Return ink that fills a quadrilateral.

    Integer coordinates are edges of pixels here, but centres of pixels in OpenCV.
    """
    alpha = np.zeros(size, np.float32)
    fixed = ((corners - (left, top) - 0.5) * 256).round().astype(np.int32)
    cv2.fillConvexPoly(alpha, fixed, 1.0, shift=8)
    return SimpleNamespace(alpha=alpha, left=left, top=top, linear=np.array(linear), angle=angle)


def bounding_box(ink, size_wh):
    y, x = np.nonzero(ink.alpha >= 0.4)
    low = np.maximum([x.min() + ink.left, y.min() + ink.top], 0)
    high = np.minimum([x.max() + 1 + ink.left, y.max() + 1 + ink.top], size_wh)
    return np.concatenate([low, high]).astype(np.float32)


def rotation(degrees):
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[cos, -sin], [sin, cos]])


UPRIGHT = np.array([[-30, -50], [30, -50], [30, 50], [-30, 50]], np.float64)


def rectangle_at(x, y):
    return np.add(UPRIGHT, (x, y))


@pytest.mark.parametrize('degrees', [0, 7, 25, -25])
def test_rotated_rectangle_gives_its_own_shape(shapes, degrees):
    corners = UPRIGHT @ rotation(degrees).T + (120, 110)
    ink = draw_quadrilateral(corners, rotation(degrees), np.radians(degrees))
    shape = shapes.shape_of(ink, bounding_box(ink, (300, 300)), (300, 300), 0.4)
    expected = [120, 110, 60, 100]
    np.testing.assert_allclose(shape.oriented[:4], expected, atol=2.5)
    assert shape.oriented[4] == pytest.approx(np.radians(degrees))
    np.testing.assert_allclose(shape.corners, corners, atol=2.5)
    np.testing.assert_allclose(
        shapes.oriented_corners(shape.oriented[None])[0], shape.corners, atol=1e-3
    )
    assert shape.mask.sum() == pytest.approx(6000, rel=0.05)


def test_oriented_box_of_upright_ink_equals_the_upright_box_exactly(shapes):
    ink = draw_quadrilateral(rectangle_at(100, 90), np.eye(2) * 1.7, 0.0, left=13, top=21)
    box = bounding_box(ink, (300, 300))
    shape = shapes.shape_of(ink, box, (300, 300), 0.4)
    center, size = shape.oriented[:2], shape.oriented[2:4]
    np.testing.assert_array_equal(np.concatenate([center - size / 2, center + size / 2]), box)
    np.testing.assert_allclose(shape.corners[[0, 2]].ravel(), box, atol=1e-4)
    assert shape.mask.shape == (box[3] - box[1], box[2] - box[0])
    assert shape.mask.all()


def test_corners_follow_shear_and_scale(shapes):
    linear = rotation(12) @ [[1.0, 0.2], [0.0, 1.0]] @ np.diag([1.3, 0.8])
    corners = UPRIGHT @ linear.T + (120, 110)
    ink = draw_quadrilateral(corners, linear, np.radians(12))
    shape = shapes.shape_of(ink, bounding_box(ink, (300, 300)), (300, 300), 0.4)
    np.testing.assert_allclose(shape.corners, corners, atol=3)


def test_only_the_corners_extend_beyond_the_picture(shapes):
    ink = draw_quadrilateral(rectangle_at(10, 90), np.eye(2), 0.0, left=-90, top=0)
    box = bounding_box(ink, (300, 300))
    shape = shapes.shape_of(ink, box, (300, 300), 0.4)
    assert box[0] == 0
    assert shape.corners[0, 0] < -10  # the corner outside the picture
    assert shape.oriented[0] - shape.oriented[2] / 2 == pytest.approx(0)
    assert shape.mask.shape[1] == box[2]


def read_truth():
    return json.loads((ROOT / 'demo' / 'truth.json').read_text())


def test_masks_of_the_demo_fill_their_boxes():
    annotations = read_truth()['annotations']
    assert len(annotations) == 430
    boxes = coco_masks.toBbox([one['segmentation'] for one in annotations])
    np.testing.assert_array_equal(boxes, [one['bbox'] for one in annotations])


def test_outlines_of_the_demo_are_tight_around_the_ink(shapes):
    for one in read_truth()['annotations']:
        mask = coco_masks.decode(one['segmentation'])
        contour = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]
        points = np.concatenate(contour)[:, 0].astype(np.float32) + 0.5
        oriented = np.array([one['oriented_bbox']], np.float32)
        outlines = [shapes.oriented_corners(oriented)[0].astype(np.float32)]
        if one['num_keypoints'] == 4 and one['hidden'] < 0.31:
            outlines.append(np.array(one['keypoints'], np.float32).reshape(4, 3)[:, :2])
        for outline in outlines:
            for first, second in zip(outline, np.roll(outline, -1, 0), strict=True):
                direction = (second - first) / np.linalg.norm(second - first)
                inward_distances = (points - first) @ [-direction[1], direction[0]]
                # The centre of a pixel is 0.5 pixels from its sides, 0.71 from its corners.
                assert 0.45 < inward_distances.min() < 0.75, one['id']


def test_digits_of_the_demo_have_uniform_angles_up_to_25_degrees():
    angles = np.degrees([one['oriented_bbox'][4] for one in read_truth()['annotations']])
    assert np.abs(angles).max() <= 25
    assert np.abs(angles).max() > 24
    assert np.std(angles) == pytest.approx(50 / np.sqrt(12), rel=0.1)  # uniform
