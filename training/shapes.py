"""What a digit is besides its box: its mask, the box along its drawn angle, and its corners.

All are read off the ink as drawn, before anything is laid over it, and cost no random number.
"""

from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """One digit; lengths in source pixels."""

    mask: np.ndarray  # (h, w) bool, ink inside the picture, in the digit's upright box
    oriented: np.ndarray  # (5,) float32 cx, cy, w, h, angle in radians, clockwise as seen
    corners: np.ndarray  # (4, 2) float32 x, y, some may lie outside the picture


CORNERS = ('top_left', 'top_right', 'bottom_right', 'bottom_left')  # of the upright digit
UNIT = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)


def shape_of(ink, xyxy: np.ndarray, size_wh: tuple[int, int], threshold: float) -> Shape:
    """The shape of a digit.

    Args:
        ink: a `scenes.Ink`: its coverage, its place, and how it was drawn.
        xyxy: (4,) its truth box, whole pixels inside the picture.
        size_wh: of the picture.
        threshold: a pixel is inked from this coverage on.

    Returns:
        The mask fills `xyxy`. The oriented box is tight around the ink inside the picture, along
        the angle by which the digit was turned. The corners are those of the box that is tight
        around all of the ink before the digit was turned, sheared and scaled, and follow all that:
        mostly no rectangle.
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
    """Least and largest coordinates of square pixels before `linear` (2, 2) was applied.

    Args:
        points: (n, 2) the pixels' centres.
        linear: what takes a point of the frame to the picture.
    """
    back = np.linalg.inv(linear)
    before = points @ back.T
    half = np.abs(back).sum(axis=1) / 2
    return before.min(axis=0) - half, before.max(axis=0) + half


def oriented_corners(oriented: np.ndarray) -> np.ndarray:
    """Corners of oriented boxes (n, 5): (n, 4, 2), in the order of `CORNERS`."""
    centre, size, angle = oriented[:, :2], oriented[:, 2:4], oriented[:, 4]
    across = np.stack([np.cos(angle), np.sin(angle)], 1) * size[:, :1] / 2
    down = np.stack([-np.sin(angle), np.cos(angle)], 1) * size[:, 1:] / 2
    places = [-across - down, across - down, across + down, -across + down]
    return centre[:, None] + np.stack(places, 1)
