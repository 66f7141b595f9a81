# SPDX-License-Identifier: Apache-2.0
"""Trace the outlines of masks, with bounded time and a bounded number of points."""

from __future__ import annotations

import math
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import NumberedMasks

# The outlines of an image, and of a mask, have at most this many points.
_MAX_POINTS: Final = 32_768
_MAX_MASK_POINTS: Final = 512
# The masks of an image, and one mask, are traced on at most this many pixels. Larger masks are
# traced on each 2nd, 3rd, … pixel of each row and column.
_MAX_PIXELS: Final = 2**21
_MAX_MASK_PIXELS: Final = 2**16
# Noisy masks have many lines, and each takes 2 µs. After this many lines in an image, the masks
# with lower scores are not traced.
_MAX_TRACED_LINES: Final = 16_384
# Distance between a simplified line and the traced line, in traced pixels.
_TOLERANCE: Final = 1.0
# Simplifying takes 0.1 µs for each traced point. Only noisy masks have more traced points for each
# point that may remain.
_MAX_TRACED_POINTS: Final = 8

_Line = npt.NDArray[np.int32]


def mask_outlines(
    masks: NumberedMasks, xyxy: npt.NDArray[np.float32], size_wh: tuple[int, int]
) -> list[list[npt.NDArray[np.float64]]]:
    """Return the outlines of each mask, as drawings show it: the better mask covers the others.

    Outlines are simplified, and parts and holes of a few pixels are left out, because masks can be
    noisy. docs/view.md states the limits.

    Args:
        masks: the masks of an image, best score first.
        xyxy: float32 (n, 4), the boxes of the masks in pixels of the image, inside the image. A
            mask is empty outside its box.
        size_wh: width and height of the image in pixels.

    Returns:
        For each mask, closed lines around its parts and around the holes of its parts. A line is
        float64 (k, 2), x and y in pixels of the image. It runs through the middle of the mask's
        outermost pixels.
    """
    numbers = np.empty(size_wh[::-1], np.uint16)
    masks.number(numbers)
    corners = np.concatenate([np.floor(xyxy[:, :2]), np.ceil(xyxy[:, 2:])], axis=1).astype(int)
    count = max(1, len(xyxy))
    max_pixels = min(_MAX_MASK_PIXELS, _MAX_PIXELS // count)
    max_points = min(_MAX_MASK_POINTS, _MAX_POINTS // count)
    outlines: list[list[npt.NDArray[np.float64]]] = []
    traced_lines = 0
    for number, (left, top, right, bottom) in enumerate(corners.tolist(), 1):
        area = (right - left) * (bottom - top)
        if area <= 0 or traced_lines > _MAX_TRACED_LINES:
            outlines.append([])
            continue
        step = math.ceil(math.sqrt(area / max_pixels))
        mask = numbers[top:bottom:step, left:right:step] == number
        found = _trace(mask)
        traced_lines += len(found)
        # OpenCV counts from the middle of the first pixel, the package from its corner.
        outlines.append(
            [step * line + (left + 0.5, top + 0.5) for line in _simplify(found, max_points)]
        )
    return outlines


def _trace(mask: npt.NDArray[np.bool_]) -> list[_Line]:
    """Return the lines around the parts of a mask and around their holes, without noise.

    The lines have all pixels, so that their lengths can be compared.
    """
    # Each pixel gets the value of most pixels in its 3x3 neighbourhood. Without this filter, noisy
    # masks have five times as many lines. The result equals that of cv2.medianBlur, which needs
    # five times as long for masks that are narrower than 64 pixels.
    smooth = cv2.blur(mask.view(np.uint8), (3, 3), borderType=cv2.BORDER_REPLICATE)
    found: Any = cv2.findContours(smooth, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)[0]
    return [line[:, 0] for line in found]


def _simplify(lines: list[_Line], max_points: int) -> list[_Line]:
    """Return the lines with fewer points.

    The longest lines get most points. Lines for which fewer than three points remain are left out.
    """
    length = sum(map(len, lines))
    stride = math.ceil(length / (_MAX_TRACED_POINTS * max_points))
    simplified = []
    for line in lines:
        allowed = max_points * len(line) // length
        if allowed >= 3:
            simplified.append(_simplify_line(np.ascontiguousarray(line[::stride]), allowed))
    return simplified


def _simplify_line(line: _Line, max_points: int) -> _Line:
    simple: Any = line
    tolerance = _TOLERANCE
    while len(simple := cv2.approxPolyDP(simple, tolerance, True)) > max_points:
        tolerance *= 2
    simplified: _Line = simple[:, 0]
    return simplified
