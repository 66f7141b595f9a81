# SPDX-License-Identifier: Apache-2.0
"""Shapes of a digit besides its box: mask, oriented box and corners.

They are measured on the drawn ink before occlusion, and use no random numbers.
"""

from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """The shape of one digit. Lengths are source pixels.

    Attributes:
        mask: (h, w) bool, ink inside the picture, in the digit's upright box.
        oriented: (5,) float32: centre x, centre y, width, height, and the angle in radians,
            clockwise in the picture.
        corners: (4, 2) float32, x and y. Corners may lie outside the picture.
    """

    mask: np.ndarray
    oriented: np.ndarray
    corners: np.ndarray


CORNERS = ('top_left', 'top_right', 'bottom_right', 'bottom_left')  # named as in the upright digit
UNIT = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)


def shape_of(ink, xyxy: np.ndarray, size_wh: tuple[int, int], threshold: float) -> Shape:
    """Return the shape of a digit.

    Args:
        ink: a `scenes.Ink`: coverage, place, and transformation.
        xyxy: (4,) the digit's truth box, whole pixels inside the picture.
        size_wh: width and height of the picture.
        threshold: least coverage of an inked pixel.

    Returns:
        The mask fills `xyxy`. The oriented box has the digit's rotation angle, and is tight around
        the ink inside the picture. For the corners, a tight box is put around all ink of the
        upright digit. The digit's rotation, shear and scaling then move the four corners, which
        usually form no rectangle.
    """
    inked = ink.alpha >= threshold
    points = np.argwhere(inked)[:, ::-1] + (ink.left + 0.5, ink.top + 0.5)  # pixels' centres
    x0, y0, x1, y1 = xyxy.astype(int)
    mask = inked[y0 - ink.top : y1 - ink.top, x0 - ink.left : x1 - ink.left]
    inside = ((points > 0) & (points < size_wh)).all(axis=1)
    cos, sin = np.cos(ink.angle), np.sin(ink.angle)
    turn = np.array([[cos, -sin], [sin, cos]])
    low, high = extent(points[inside], turn)
    oriented = [*(turn @ ((low + high) / 2)), *(high - low), ink.angle]
    low, high = extent(points, ink.linear)
    corners = (low + UNIT * (high - low)) @ ink.linear.T
    return Shape(mask, np.array(oriented, np.float32), corners.astype(np.float32))


def extent(points: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map square pixels back through `linear`; return their smallest and largest coordinates.

    Args:
        points: (n, 2) centres of the pixels.
        linear: (2, 2), maps a point of the upright frame to the picture.
    """
    back = np.linalg.inv(linear)
    before = points @ back.T
    half = np.abs(back).sum(axis=1) / 2
    return before.min(axis=0) - half, before.max(axis=0) + half


def oriented_corners(oriented: np.ndarray) -> np.ndarray:
    """Return the corners of oriented boxes (n, 5): (n, 4, 2), in the order of `CORNERS`."""
    centre, size, angle = oriented[:, :2], oriented[:, 2:4], oriented[:, 4]
    across = np.stack([np.cos(angle), np.sin(angle)], 1) * size[:, :1] / 2
    down = np.stack([-np.sin(angle), np.cos(angle)], 1) * size[:, 1:] / 2
    places = [-across - down, across - down, across + down, -across + down]
    return centre[:, None] + np.stack(places, 1)
