# SPDX-License-Identifier: Apache-2.0
"""The runtime's letterbox, so that training and runtime see equal images."""

from typing import NamedTuple

import cv2
import numpy as np

PAD_VALUE = 114


class Letterbox(NamedTuple):
    """The place of a source image in the network input, in pixels."""

    scale: float
    left: int
    top: int


def letterbox(image: np.ndarray, size_wh: tuple[int, int]) -> tuple[np.ndarray, Letterbox]:
    """Resize with a fixed aspect ratio, centred on grey.

    Args:
        image: (h, w, 3) uint8.
        size_wh: width and height of the network input.

    Returns:
        (size_wh[1], size_wh[0], 3) uint8, and the geometry to map boxes in both directions.
    """
    height, width = image.shape[:2]
    scale = min(size_wh[0] / width, size_wh[1] / height)
    resized_wh = (round(width * scale), round(height * scale))
    left = (size_wh[0] - resized_wh[0]) // 2
    top = (size_wh[1] - resized_wh[1]) // 2
    if resized_wh == size_wh == (width, height):
        return image, Letterbox(1.0, 0, 0)
    if resized_wh != (width, height):
        image = cv2.resize(image, resized_wh, interpolation=cv2.INTER_LINEAR)
    canvas = np.full((size_wh[1], size_wh[0], 3), PAD_VALUE, np.uint8)
    canvas[top : top + resized_wh[1], left : left + resized_wh[0]] = image
    return canvas, Letterbox(scale, left, top)


def to_network(xyxy: np.ndarray, geometry: Letterbox) -> np.ndarray:
    """Map boxes (n, 4) from source pixels to network pixels."""
    offset = np.array([geometry.left, geometry.top] * 2, xyxy.dtype)
    return xyxy * geometry.scale + offset


def to_source(xyxy: np.ndarray, geometry: Letterbox) -> np.ndarray:
    """Map boxes (n, 4) from network pixels to source pixels; the inverse of `to_network`."""
    offset = np.array([geometry.left, geometry.top] * 2, xyxy.dtype)
    return (xyxy - offset) / geometry.scale
