# SPDX-License-Identifier: Apache-2.0
"""Test the places of keypoints on surfaces."""

import math

import numpy as np

from trt_perception.boxes_3d.calibration import Pinhole
from trt_perception.boxes_3d.depth_image import DepthImage
from trt_perception.boxes_3d.keypoints import place_keypoints
from trt_perception.boxes_3d.surface import ImageBox, find_surface

CAMERA = Pinhole(100, 120, 32, 24, 64, 48)


def placed(*keypoints):
    values = np.full((48, 64), 5, np.float32)
    values[10:40, 20:40] = 2
    values[12:16, 22:26] = np.nan
    depth = DepthImage(values, 1.0)
    surface = find_surface(ImageBox(30, 25, 20, 30), depth, CAMERA)
    return place_keypoints(np.array(keypoints, np.float32), depth, CAMERA, surface)


def test_keypoint_on_the_surface_projects_to_its_pixel():
    [[x, y, z, score]] = placed((30.5, 30.25, 0.9))
    assert (z, score) == (2, np.float32(0.9))
    assert math.isclose(100 * x / z + 32 + 0.5, 30.5, rel_tol=1e-6)
    assert math.isclose(120 * y / z + 24 + 0.5, 30.25, rel_tol=1e-6)


def test_depth_beside_a_keypoint_counts_where_its_own_is_unknown_or_of_the_background():
    found = placed((22.5, 13.5, 0.9), (19.5, 20, 0.9))
    assert found[:, 2].tolist() == [2, 2]


def test_keypoint_away_from_the_surface_has_no_place():
    outside = (-3, 5, 0.1), (64, 5, 0.2), (math.nan, 5, 0.3), (math.inf, 1, 0.4)
    values = placed((5, 5, 0.9), *outside)
    assert np.isnan(values[:, :3]).all()
    np.testing.assert_allclose(values[:, 3], [0.9, 0.1, 0.2, 0.3, 0.4])
