# SPDX-License-Identifier: Apache-2.0
"""Compare camera matrices with projections by OpenCV."""

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from trt_perception.boxes_3d.calibration import Calibration
from trt_perception.errors import ImageError

K = (1050.0, 0, 641.5, 0, 1040.0, 355.5, 0, 0, 1)
P = (1000.0, 0, 630.5, 0, 0, 1000.0, 350.5, 0, 0, 0, 1, 0)
FULL = Calibration((1280, 720), (), K, P)
POINTS = np.random.default_rng(1).uniform((-1, -1, 2), (1, 1, 5), (20, 3))


@pytest.mark.parametrize(
    ('changes', 'size_wh'),
    [
        ({}, (1280, 720)),
        ({'projection': [0.0] * 12}, (1280, 720)),
        ({'binning': (2, 4)}, (640, 180)),
        ({'region': (100, 40, 640, 480)}, (640, 480)),
        ({'region': (100, 40, 640, 480), 'binning': (2, 2)}, (320, 240)),
    ],
)
def test_pixels_of_the_camera_are_those_of_the_full_image_binned_and_cut(changes, size_wh):
    calibration = replace(FULL, **changes)
    matrix = calibration.projection if any(calibration.projection) else K
    columns = 4 if len(matrix) == 12 else 3
    full = np.array(matrix, float).reshape(3, columns)[:, :3]
    pixels, _ = cv2.projectPoints(POINTS, np.zeros(3), np.zeros(3), full, None)
    left, top, *_ = calibration.region
    expected = (pixels[:, 0] - (left, top)) / [max(1, bin) for bin in calibration.binning]

    camera = calibration.pinhole()
    found = POINTS[:, :2] / POINTS[:, 2:] * (camera.fx, camera.fy) + (camera.cx, camera.cy)
    np.testing.assert_allclose(found, expected)
    assert (camera.width, camera.height) == size_wh


@pytest.mark.parametrize(
    'changes',
    [
        {'projection': [0.0] * 12, 'matrix': [0.0] * 9},
        {'projection': [math.inf] * 12},
        {'projection': [math.nan] * 12},
        {'projection': [-1000.0, *P[1:]]},
        {'size_wh': (0, 0)},
        {'binning': (2**32 - 1, 1)},
        {'projection': [1e-6, *P[1:]]},
        {'projection': [1e-300] * 12},
        {'projection': [1e300] * 12},
        {'projection': [*P[:5], 20.0, *P[6:]]},
        {'projection': [*P[:2], -1e9, *P[3:]]},
        {'region': (2**32 - 1, 0, 1280, 720)},
    ],
)
def test_cameras_without_calibration_are_refused(changes, golden_messages):
    with pytest.raises(ImageError) as caught:
        replace(FULL, **changes).pinhole()
    assert caught.value.reason == 'bad_calibration'
    golden_messages.add(caught.value)


def test_distortion_is_a_mistake(golden_messages):
    assert FULL.find_distortion() is None
    assert replace(FULL, distortion=(0.0, -1e-4, 0, 0, 0)).find_distortion() is None
    mistake = replace(FULL, distortion=(0.1, -0.25, 0, 0, 0)).find_distortion()
    golden_messages.add(mistake)
    assert mistake.reason == 'distortion'
