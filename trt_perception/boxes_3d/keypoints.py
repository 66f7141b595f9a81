# SPDX-License-Identifier: Apache-2.0
"""Finds the places of keypoints on the visible surface of an object."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.boxes_3d.calibration import Pinhole
from trt_perception.boxes_3d.depth_image import DepthImage
from trt_perception.boxes_3d.surface import Box3D

# Pixels on each side of a keypoint whose depths count.
_REACH: Final = 2


def place_keypoints(
    keypoints: npt.NDArray[np.float32], depth: DepthImage, camera: Pinhole, surface: Box3D
) -> npt.NDArray[np.float32]:
    """Return x, y, z (metres) and score of the keypoints of an object, float32 (k, 4).

    The depth of a keypoint is the median of those pixels around it that are on the object's
    surface. A keypoint without such pixels has x, y and z NaN.

    Args:
        keypoints: float32 (k, 3): x and y in pixels from the image's corner, and score.
        surface: the box of the object.
    """
    width, height = depth.size_wh
    near, far = surface.depth_range
    placed = np.full((len(keypoints), 4), np.nan, np.float32)
    placed[:, 3] = keypoints[:, 2]
    with np.errstate(invalid='ignore'):
        inside = (keypoints[:, :2] >= 0).all(1) & (keypoints[:, :2] < (width, height)).all(1)
    for index in np.flatnonzero(inside).tolist():
        x, y = keypoints[index, :2].tolist()
        rows, columns = (
            slice(max(0, int(middle) - _REACH), int(middle) + _REACH + 1) for middle in (y, x)
        )
        depths = depth.metres(rows, columns)
        depths = depths[(depths >= near) & (depths < far)]
        if depths.size:
            z = float(np.median(depths))
            placed[index, :3] = (
                (x - 0.5 - camera.cx) / camera.fx * z,
                (y - 0.5 - camera.cy) / camera.fy * z,
                z,
            )
    return placed
