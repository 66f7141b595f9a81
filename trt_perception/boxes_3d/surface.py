# SPDX-License-Identifier: Apache-2.0
"""Finds the visible surface of an object in a depth image, and its box in space.

Coordinates are those of the camera's optical frame: x to the right, y down, z away from the
camera, in metres. Image boxes count pixels from the image's corner, so the centre of the first
pixel is at 0.5.

The surface of an object has the depths of the largest mode of a histogram, grown while
neighbouring bins hold points. scripts/benchmarks/boxes_3d.py compares this with percentiles on
synthetic scenes.
"""

from __future__ import annotations

import bisect
import itertools
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
# Bin 0 is for pixels that have no depth or are not of the object.
_FIRST_BIN: Final = (int(np.float32(_NEAREST_M).view(np.int32)) >> _BIN_BITS) - 1
_BINS: Final = (int(np.float32(_FARTHEST_M).view(np.int32)) >> _BIN_BITS) - _FIRST_BIN + 1
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
    """The depths in the image part that contains an object.

    Attributes:
        depths: float32 (rows, columns), metres. 0 for pixels that have no depth or are not of the
            object.
        is_inner: bool (rows, columns), whether a pixel is in the inner part of the box; None with
            a mask.
        left, top: column and row of the first pixel in the image.
        step: 1 for each pixel, 2 for each second one in both directions, and so on.
    """

    depths: _Floats
    is_inner: npt.NDArray[np.bool_] | None
    left: int
    top: int
    step: int


class _Lines(NamedTuple):
    """The columns or rows of a surface, along the box's own x or y.

    Attributes:
        numbers: intp, the line of each pixel. Broadcasts to the pixels of the region.
        length: number of lines.
        start: x or y in the middle of the first line, divided by the depth there.
        pitch: distance of two lines, in the unit of `start`.
    """

    numbers: npt.NDArray[np.intp]
    length: int
    start: float
    pitch: float


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
    # The factor keeps the largest depth below `far` in the last bin.
    parts = (region.depths - near) * ((1 - 1e-6) * _LINE_BINS / (far - near))
    bins = np.where(on_surface, parts, _LINE_BINS).astype(np.intp)
    lines = _lines(region, on_surface, camera, box.theta)
    (left, right), (top, bottom), (nearest, farthest) = _extents(lines, bins, span)
    cos, sin = math.cos(box.theta), math.sin(box.theta)
    x_middle, y_middle = (left + right) / 2, (top + bottom) / 2
    center = x_middle * cos - y_middle * sin, x_middle * sin + y_middle * cos
    size = right - left, bottom - top, max(farthest - nearest, min_depth_m)
    return Box3D((*center, (nearest + farthest) / 2), size, box.theta, span)


def _region(box: ImageBox, depth: DepthImage, mask: Mask | None) -> _Region | None:
    """Return the depths around an object; None if the box is outside the image."""
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
    x = np.arange(left, right, step, dtype=np.float32)[None]
    y = np.arange(top, bottom, step, dtype=np.float32)[:, None]
    along, across = x + 0.5 - box.x, y + 0.5 - box.y
    if box.theta:
        along, across = along * cos + across * sin, across * cos - along * sin
        is_object &= (abs(along) <= box.width / 2) & (abs(across) <= box.height / 2)
    if mask is not None:
        is_object &= mask.numbers[rows, columns] == mask.number
    is_inner = None
    if mask is None:
        inner_x, inner_y = box.width * _INNER / 2, box.height * _INNER / 2
        is_inner = (abs(along) <= inner_x) & (abs(across) <= inner_y)
    return _Region(np.where(is_object, depths, np.float32(0)), is_inner, left, top, step)


def _pixels(low: float, high: float, count: int) -> tuple[int, int]:
    """Return the first pixel whose centre is between two edges, and the one after the last."""
    return max(0, math.ceil(max(low, -1) - 0.5)), min(count, math.floor(min(high, count) + 0.5))


def _surface_span(region: _Region) -> tuple[float, float] | None:
    """Return the depths between which the surface is: from, and up to but not including.

    None if no pixel of the inner part has a depth.
    """
    bins = (region.depths.view(np.int32) >> _BIN_BITS) - _FIRST_BIN
    np.maximum(bins, 0, out=bins)
    if region.is_inner is not None:
        bins += region.is_inner * np.int32(_BINS)
    parts = np.bincount(bins.ravel(), minlength=2 * _BINS).reshape(2, _BINS)
    parts[:, 0] = 0
    if region.is_inner is not None and not parts[1].any():
        return None
    counts = parts[0] + parts[1]
    (used,) = counts.nonzero()
    if not len(used):
        return None
    first, last = int(used[0]), int(used[-1])
    counts = inner_counts = _add_neighbours(counts[first : last + 1])
    if region.is_inner is not None:
        inner_counts = _add_neighbours(parts[1, first : last + 1])
    mode = int(inner_counts.argmax())
    min_share = _MIN_SHARE_MASK if region.is_inner is None else _MIN_SHARE_BOX
    is_gap = counts < max(1.0, min_share * counts[mode])
    (before,), (after,) = is_gap[:mode].nonzero(), is_gap[mode:].nonzero()
    low = int(before[-1]) + 1 if len(before) else 0
    high = mode + int(after[0]) if len(after) else len(counts)
    edges = np.array([low, high], np.int32) + (_FIRST_BIN + first) << _BIN_BITS
    near, far = edges.view(np.float32).tolist()
    return near, far


def _add_neighbours(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of each bin and its two neighbours.

    Noise spreads a flat surface over neighbouring bins.
    """
    sums = counts.copy()
    sums[1:] += counts[:-1]
    sums[:-1] += counts[1:]
    return sums


def _lines(
    region: _Region, on_surface: npt.NDArray[np.bool_], camera: Pinhole, theta: float
) -> tuple[_Lines, _Lines]:
    """Return the columns and the rows of a region, along the axes of the box."""
    rows, columns = region.depths.shape
    pitch_x, pitch_y = region.step / camera.fx, region.step / camera.fy
    start_x, start_y = (region.left - camera.cx) / camera.fx, (region.top - camera.cy) / camera.fy
    in_row, in_column = np.arange(columns)[None], np.arange(rows)[:, None]
    if not theta:
        return (
            _Lines(in_row, columns, start_x, pitch_x),
            _Lines(in_column, rows, start_y, pitch_y),
        )
    x, y = start_x + pitch_x * in_row, start_y + pitch_y * in_column
    cos, sin = math.cos(theta), math.sin(theta)
    return (
        _turned_lines(x * cos + y * sin, on_surface, pitch_x),
        _turned_lines(y * cos - x * sin, on_surface, pitch_y),
    )


def _turned_lines(
    tangents: npt.NDArray[np.float64], on_surface: npt.NDArray[np.bool_], pitch: float
) -> _Lines:
    """Return lines that begin at the first pixel of the surface."""
    start = float(tangents[on_surface].min())
    # Pixels before the first line are not on the surface, so they may be in any line.
    numbers = np.maximum((tangents - start) * (1 / pitch) + 0.5, 0).astype(np.intp)
    return _Lines(numbers, int(numbers.max()) + 1, start, pitch)


def _extents(
    both_lines: tuple[_Lines, _Lines],
    bins: npt.NDArray[np.intp],
    span: tuple[float, float],
) -> list[tuple[float, float]]:
    """Return the least and the largest x, y and z of a surface, in metres.

    The surface consists of lines of pixels, columns and rows. The depth of a line is the mode of
    its points, and the depth at an end is the median there. So a few points of the background do
    not count; far from the image's centre, a wrong depth would also move a point sideways.

    Args:
        both_lines: columns and rows.
        bins: the depth of each pixel, as one of _LINE_BINS equal parts of `span`; _LINE_BINS for
            pixels that are not on the surface.
        span: the depths between which the surface is.
    """
    near, far = span
    bin_m = (far - near) / _LINE_BINS
    width = _LINE_BINS + 1
    table = np.concatenate(
        [
            np.bincount((lines.numbers * width + bins).ravel(), minlength=lines.length * width)
            for lines in both_lines
        ]
    )
    table[_LINE_BINS::width] = 0
    sums = _add_neighbours(table).reshape(-1, width)[:, :_LINE_BINS]
    table = table.reshape(-1, width)
    # `reduce`, `nonzero` and `sort` of arrays are in C. NumPy's functions of the same purpose are
    # in Python, and take a tenth of the time of this function.
    points = np.add.reduce(table, 1)
    modes = sums.argmax(1)
    # A line along the floor has no clear mode. Neither have lines along a turned side.
    is_clear = np.maximum.reduce(sums, 1) >= _MIN_MODE * points
    extents, depths = [], []
    first_line = 0
    for lines in both_lines:
        own = slice(first_line, first_line + lines.length)
        first_line += lines.length
        own_points, own_table = points[own], table[own]
        (used,) = own_points.nonzero()
        ordered = own_points.copy()
        ordered.sort()
        long_line = int(ordered[-1 - int(used[-1] - used[0] + 1) // 4])
        is_full = own_points >= max(1.0, _MIN_LINE * long_line)
        (full,), (clear,) = is_full.nonzero(), (is_full & is_clear[own]).nonzero()
        surface = clear if 2 * len(clear) >= len(full) else full
        first, last = int(surface[0]), int(surface[-1])
        reach = max(1, (last - first + 1) // _EDGE_LINES)
        # A pixel reaches half a pitch beyond its centre.
        ends = [
            (lines.start + (first - 0.5) * lines.pitch)
            * (near + bin_m * _median(own_table[first : first + reach])),
            (lines.start + (last + 0.5) * lines.pitch)
            * (near + bin_m * _median(own_table[last - reach + 1 : last + 1])),
        ]
        # Far from the image's centre, the left end of a surface that comes nearer to the right is
        # farther to the right in space. No extent is smaller than a pixel.
        low, high = sorted(ends)
        extents.append((low, max(high, low + lines.pitch * near)))
        depths += modes[own][clear if len(clear) else surface].tolist()
    extents.append((near + bin_m * (min(depths) + 0.5), near + bin_m * (max(depths) + 0.5)))
    return extents


def _median(lines: npt.NDArray[np.int64]) -> float:
    """Return the median of the points of some lines in bins; the first bin begins at 0."""
    counts = np.add.reduce(lines, 0).tolist()
    sums = list(itertools.accumulate(counts))
    half = sums[-1] / 2
    index = bisect.bisect_left(sums, half)
    return float(index + (half - sums[index] + counts[index]) / counts[index])
