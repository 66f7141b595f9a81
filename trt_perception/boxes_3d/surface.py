"""Finds the visible surface of an object in a depth image, and its box in space.

Coordinates are those of the camera's optical frame: x to the right, y down, z away from the
camera, in metres. Image boxes count pixels from the image's corner, so the centre of the first
pixel is at 0.5.

The surface of an object has the depths of the largest mode of a histogram, grown while
neighbouring bins hold points. scripts/benchmarks/boxes_3d.py compares this with percentiles on
synthetic scenes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.boxes_3d.calibration import Pinhole
from trt_perception.boxes_3d.depth_image import DepthImage

_Floats = npt.NDArray[np.float32]
# Share of the box's width and height, around its centre, where a mode may be the object.
_INNER: Final = 0.7
# Positive floats have the order of their bits. These bits leave 32 bins for each factor of two in
# depth, so a bin spans 2.2 to 3.1 % of the depth. Noise of stereo cameras is smaller below 10 m.
_BIN_BITS: Final = 18
# A bin with less than this share of the mode's points ends the surface, in a box and in a mask. In
# a box, with less, the floor that continues an object would count; with more, tops and sides that
# are seen at an angle would be missing.
_MIN_SHARE_BOX: Final = 0.02
_MIN_SHARE_MASK: Final = 0.005
# A line of pixels with less than this share of the points of a long line is not of the surface.
_MIN_LINE: Final = 0.05
# The mode of a line is clear if it has this share of the line's points.
_MIN_MODE: Final = 0.5
# The depth at an edge is that of this share of the lines, and at least of one.
_EDGE_LINES: Final = 15
# Depths of a line are sorted into this many bins.
_LINE_BINS: Final = 32
# A larger region is read with a step, so that time does not grow with the size of an object.
_MAX_PIXELS: Final = 2000
# Other depths count as unknown. No camera measures them.
_NEAREST_M: Final = 1e-3
_FARTHEST_M: Final = 1e5
# No image box has larger numbers.
_LARGEST: Final = 1e6


class ImageBox(NamedTuple):
    """A box in an image, in pixels. `theta` (radians) turns it clockwise on the image."""

    x: float
    y: float
    width: float
    height: float
    theta: float = 0.0


@dataclass(frozen=True)
class Box3D:
    """A box around the visible surface of an object.

    Attributes:
        center: x, y, z of the middle of the surface's extent, in metres.
        size: extent along the box's own x and y, and along z, in metres.
        theta: angle about the optical axis, in radians.
        depth_range: nearest and farthest depth that count as surface, in metres.
    """

    center: tuple[float, float, float]
    size: tuple[float, float, float]
    theta: float
    depth_range: tuple[float, float]


class Mask(NamedTuple):
    """The pixels of an object: those of `numbers`, (height, width), that have its number."""

    numbers: npt.NDArray[np.unsignedinteger[Any] | np.bool_]
    number: int = 1


class _Region(NamedTuple):
    """The depths of an object's pixels, and the pixels' places.

    Attributes:
        depths: float32 (n,), metres, all valid.
        x, y: float32 (n,), pixels from the centre of the first pixel, as in camera matrices.
        is_inner: bool (n,), whether a pixel is in the inner part of the box; None with a mask.
        step: 1 for each pixel, 2 for each second one in both directions, and so on.
    """

    depths: _Floats
    x: _Floats
    y: _Floats
    is_inner: npt.NDArray[np.bool_] | None
    step: int


def find_surface(
    box: ImageBox,
    depth: DepthImage,
    camera: Pinhole,
    *,
    mask: Mask | None = None,
    min_points: int = 20,
    min_depth_m: float = 0.05,
) -> Box3D | None:
    """Return the box around the visible surface of an object.

    Args:
        box: the object in the image. Any numbers are allowed.
        depth: of the same size as the image.
        mask: of the same size as the image; None if unknown.
        min_points: smallest number of pixels on the surface.
        min_depth_m: smallest extent along z, in metres.

    Returns:
        None if fewer than `min_points` pixels of the surface have a depth.
    """
    region = _region(box, depth, mask)
    if region is None:
        return None
    span = _surface_span(region)
    if span is None:
        return None
    near, far = span
    on_surface = (region.depths >= near) & (region.depths < far)
    if np.count_nonzero(on_surface) * region.step**2 < min_points:
        return None
    z = region.depths[on_surface]
    x = (region.x[on_surface] - camera.cx) / camera.fx
    y = (region.y[on_surface] - camera.cy) / camera.fy
    cos, sin = math.cos(box.theta), math.sin(box.theta)
    if box.theta:
        x, y = x * cos + y * sin, y * cos - x * sin
    bins = ((z - near) * (_LINE_BINS / (far - near))).astype(np.int32)
    np.minimum(bins, _LINE_BINS - 1, out=bins)
    pitches = region.step / camera.fx, region.step / camera.fy
    (left, right), (top, bottom), (nearest, farthest) = _extents((x, y), bins, pitches, span)
    x_middle, y_middle = (left + right) / 2, (top + bottom) / 2
    center = x_middle * cos - y_middle * sin, x_middle * sin + y_middle * cos
    size = right - left, bottom - top, max(farthest - nearest, min_depth_m)
    return Box3D((*center, (nearest + farthest) / 2), size, box.theta, span)


def _region(box: ImageBox, depth: DepthImage, mask: Mask | None) -> _Region | None:
    """Return the pixels of an object that have a depth; None if there are none."""
    if not all(-_LARGEST < number < _LARGEST for number in box):  # also False for NaN
        return None
    height, width = depth.values.shape
    cos, sin = math.cos(box.theta), math.sin(box.theta)
    reach_x = (abs(box.width * cos) + abs(box.height * sin)) / 2
    reach_y = (abs(box.width * sin) + abs(box.height * cos)) / 2
    left, right = _pixels(box.x - reach_x, box.x + reach_x, width)
    top, bottom = _pixels(box.y - reach_y, box.y + reach_y, height)
    if left >= right or top >= bottom:
        return None
    step = max(1, round(math.sqrt((right - left) * (bottom - top) / _MAX_PIXELS)))
    rows, columns = slice(top, bottom, step), slice(left, right, step)
    depths = depth.metres(rows, columns)
    is_object = (depths > _NEAREST_M) & (depths < _FARTHEST_M)
    x = np.arange(left, right, step, dtype=np.float32)
    y = np.arange(top, bottom, step, dtype=np.float32)
    along, across = x[None] + 0.5 - box.x, y[:, None] + 0.5 - box.y
    if box.theta:
        along, across = along * cos + across * sin, across * cos - along * sin
        is_object &= (abs(along) <= box.width / 2) & (abs(across) <= box.height / 2)
    if mask is not None:
        is_object &= mask.numbers[rows, columns] == mask.number
    if not is_object.any():
        return None
    is_inner = None
    if mask is None:
        inner_x, inner_y = box.width * _INNER / 2, box.height * _INNER / 2
        is_inner = ((abs(along) <= inner_x) & (abs(across) <= inner_y))[is_object]
    columns_of, rows_of = (np.broadcast_to(each, depths.shape) for each in (x, y[:, None]))
    return _Region(depths[is_object], columns_of[is_object], rows_of[is_object], is_inner, step)


def _pixels(low: float, high: float, count: int) -> tuple[int, int]:
    """Return the first pixel whose centre is between two edges, and the one after the last."""
    return max(0, math.ceil(max(low, -1) - 0.5)), min(count, math.floor(min(high, count) + 0.5))


def _surface_span(region: _Region) -> tuple[float, float] | None:
    """Return the depths between which the surface is: from, and up to but not including.

    None if no pixel of the inner part has a depth.
    """
    bins = region.depths.view(np.int32) >> _BIN_BITS
    first = int(bins.min())
    counts = inner_counts = np.bincount(bins - first)
    if region.is_inner is not None:
        if not region.is_inner.any():
            return None
        inner_counts = np.bincount(bins[region.is_inner] - first)
    # Noise spreads a flat surface over neighbouring bins.
    counts, inner_counts = (np.convolve(each, (1, 1, 1))[1:-1] for each in (counts, inner_counts))
    mode = int(inner_counts.argmax())
    min_share = _MIN_SHARE_MASK if region.is_inner is None else _MIN_SHARE_BOX
    is_gap = counts < max(1.0, min_share * counts[mode])
    before, after = np.flatnonzero(is_gap[:mode]), np.flatnonzero(is_gap[mode:])
    low = int(before[-1]) + 1 if len(before) else 0
    high = mode + int(after[0]) if len(after) else len(counts)
    edges = np.array([first + low, first + high], np.int32) << _BIN_BITS
    near, far = edges.view(np.float32).tolist()
    return near, far


def _extents(
    tangents: tuple[_Floats, _Floats],
    bins: npt.NDArray[np.int32],
    pitches: tuple[float, float],
    span: tuple[float, float],
) -> list[tuple[float, float]]:
    """Return the least and the largest x, y and z of a surface, in metres.

    The surface consists of lines of pixels, columns and rows. The depth of a line is the mode of
    its points, and the depth at an end is the median there. So a few points of the background do
    not count; far from the image's centre, a wrong depth would also move a point sideways.

    Args:
        tangents: x and y of each point, divided by its depth.
        bins: the depth of each point, as one of _LINE_BINS equal parts of `span`.
        pitches: distance of two columns and of two rows, in the unit of `tangents`.
        span: the depths between which all points are.
    """
    near, far = span
    bin_m = (far - near) / _LINE_BINS
    starts = [float(each.min()) for each in tangents]
    places = np.empty((2, len(bins)), np.int64)
    for place, each, start, pitch in zip(places, tangents, starts, pitches, strict=True):
        place[:] = (each - (start - pitch / 2)) * (1 / pitch)
    columns, rows = (places.max(1) + 1).tolist()
    places[1] += columns
    places *= _LINE_BINS
    places += bins
    table = np.bincount(places.ravel(), minlength=(columns + rows) * _LINE_BINS)
    table = table.reshape(-1, _LINE_BINS)
    points = table.sum(1)
    smooth = table.copy()
    smooth[:, 1:] += table[:, :-1]
    smooth[:, :-1] += table[:, 1:]
    modes = smooth.argmax(1)
    # A line along the floor has no clear mode. Neither have lines along a turned side.
    is_clear = smooth.max(1) >= _MIN_MODE * points
    extents, depths = [], []
    for axis, lines in enumerate((slice(columns), slice(columns, None))):
        own_points = points[lines]
        long_line = int(np.sort(own_points)[-1 - len(own_points) // 4])
        is_full = own_points >= max(1.0, _MIN_LINE * long_line)
        clear, full = np.flatnonzero(is_full & is_clear[lines]), np.flatnonzero(is_full)
        surface = clear if 2 * len(clear) >= len(full) else full
        first, last = int(surface[0]), int(surface[-1])
        reach = max(1, (last - first + 1) // _EDGE_LINES)
        own_table, start, pitch = table[lines], starts[axis], pitches[axis]
        # A pixel reaches half a pitch beyond its centre.
        ends = [
            (start + (first - 0.5) * pitch)
            * (near + bin_m * _median(own_table[first : first + reach].sum(0))),
            (start + (last + 0.5) * pitch)
            * (near + bin_m * _median(own_table[last - reach + 1 : last + 1].sum(0))),
        ]
        # Far from the image's centre, the left end of a surface that comes nearer to the right is
        # farther to the right in space. No extent is smaller than a pixel.
        low, high = sorted(ends)
        extents.append((low, max(high, low + pitch * near)))
        own_modes = modes[lines][clear if len(clear) else surface]
        depths += [int(own_modes.min()), int(own_modes.max())]
    extents.append((near + bin_m * (min(depths) + 0.5), near + bin_m * (max(depths) + 0.5)))
    return extents


def _median(counts: npt.NDArray[np.int64]) -> float:
    """Return the median of a histogram in bins; the first bin begins at 0."""
    sums = counts.cumsum()
    half = sums[-1] / 2
    index = int(np.searchsorted(sums, half))
    return index + float((half - sums[index] + counts[index]) / counts[index])
