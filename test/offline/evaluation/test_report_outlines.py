# SPDX-License-Identifier: Apache-2.0
"""SVG paths of objects enclose the pixels of their masks and boxes."""

import re

import cv2
import numpy as np

from support.optional_packages import needs
from trt_perception.offline.evaluation.report.outlines import Outline, svg_path


def filled(path, size_wh):
    """Return the pixels inside the closed lines of a path."""
    canvas = np.zeros(size_wh[::-1], np.uint8)
    for line in re.findall(r'M([^MZ]+)Z', path):
        points = np.array([pair.split(',') for pair in line.split()], np.float64)
        cv2.fillPoly(canvas, [np.rint(points).astype(np.int32)], 1)
    return canvas


def share(one, other):
    return (one & other).sum() / (one | other).sum()


@needs('pycocotools')
def test_path_of_a_mask_covers_its_pixels():
    from pycocotools import mask as coco_masks

    inside = np.zeros((240, 320), np.uint8)
    cv2.ellipse(inside, (90, 120), (60, 90), 20, 0, 360, 1, cv2.FILLED)
    cv2.circle(inside, (250, 60), 40, 1, cv2.FILLED)
    runs = coco_masks.encode(np.asfortranarray(inside))
    path = svg_path(Outline((0, 0, 320, 240), mask=runs))
    assert share(filled(path, (320, 240)), inside) > 0.95
    assert len(path.split()) <= 4 * 40


def test_path_of_an_oriented_box_has_its_corners():
    corners = np.array([(10, 20), (60, 40), (50, 70), (0, 50)], np.float32)
    assert svg_path(Outline((0, 20, 60, 70), corners)) == 'M10,20 60,40 50,70 0,50Z'


def test_keypoints_are_dots_and_an_upright_box_has_no_path():
    assert svg_path(Outline((0, 0, 9, 9), points=[(1, 2), (3.6, 4)])) == 'M1,2h0M4,4h0'
    assert svg_path(Outline((0, 0, 9, 9))) == ''
