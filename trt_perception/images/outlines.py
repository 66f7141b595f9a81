# SPDX-License-Identifier: Apache-2.0
"""Trace the outlines of masks."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import NumberedMasks


def mask_outlines(
    masks: NumberedMasks, xyxy: npt.NDArray[np.float32], size_wh: tuple[int, int]
) -> list[list[npt.NDArray[np.float64]]]:
    """Return the outlines of each mask, as drawings show it: the better mask covers the others.

    Args:
        masks: the masks of an image.
        xyxy: float32 (n, 4), the boxes of the masks in pixels of the image, inside the image. A
            mask is empty outside its box.
        size_wh: width and height of the image in pixels.

    Returns:
        For each mask, closed lines around its parts and around the holes of its parts. A line is
        float64 (k, 2), x and y in pixels of the image. It runs through the middle of the mask's
        outermost pixels, so the line around a single pixel is one point.
    """
    numbers = np.empty(size_wh[::-1], np.uint16)
    masks.number(numbers)
    corners = np.concatenate([np.floor(xyxy[:, :2]), np.ceil(xyxy[:, 2:])], axis=1).astype(int)
    outlines = []
    for number, (left, top, right, bottom) in enumerate(corners.tolist(), 1):
        mask = (numbers[top:bottom, left:right] == number).astype(np.uint8)
        found, _ = cv2.findContours(
            mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top)
        )
        # OpenCV counts from the middle of the first pixel, the package from its corner.
        outlines.append([line[:, 0].astype(np.float64) + 0.5 for line in found])
    return outlines
