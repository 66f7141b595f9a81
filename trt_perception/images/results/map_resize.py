# SPDX-License-Identifier: Apache-2.0
"""Resize the maps that a network outputs to the pixels of the image.

A map has one value or one vector per cell of a grid over the network's input. The part of the grid
with the image is cut out, without its padding, and resized to the size of the image.
"""

from __future__ import annotations

import operator
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputShapeError
from trt_perception.images.frame import MAX_SIDE
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.image_limits import row_strips

#: How values between the cells are computed. ``bilinear`` and ``bicubic`` have half-pixel centres,
#: as torch's ``interpolate`` with ``align_corners=False``. With ``bilinear_aligned``, the centres
#: of the corner pixels are the centres of the corner cells, as with ``align_corners=True``.
Upsampling = Literal['nearest', 'bilinear', 'bicubic', 'bilinear_aligned']
UPSAMPLINGS: Final[tuple[Upsampling, ...]] = (
    'nearest',
    'bilinear',
    'bicubic',
    'bilinear_aligned',
)


def check_map_size(values: npt.NDArray[Any]) -> None:
    """Check that a map of the network's output can be resized.

    Args:
        values: the map; its last axes are rows and columns.

    Raises:
        OutputShapeError: a side has no cells, or more than OpenCV resizes.
    """
    rows, columns = values.shape[-2:]
    if not (1 <= rows <= MAX_SIDE and 1 <= columns <= MAX_SIDE):
        raise OutputShapeError(
            "the model's output",
            f'a map of {columns} x {rows} cells',
            expected=f'1 to {MAX_SIDE} cells on each side',
            fix='export the model again with fixed shapes',
        )


def checked_size(size_wh: tuple[int, int] | None, letterbox: Letterbox) -> tuple[int, int]:
    """Return the size that a caller wants, or the size of the image.

    Raises:
        ValueError: the size is not two whole numbers from 1 to MAX_SIDE.
    """
    if size_wh is None:
        return letterbox.source_wh
    try:
        width, height = map(operator.index, size_wh)
        if min(width, height) >= 1 and max(width, height) <= MAX_SIDE:
            return width, height
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f'the size of a map must be (width, height), each from 1 to {MAX_SIDE} (got {size_wh!r})'
    )


def resize_map(
    values: npt.NDArray[Any], size_wh: tuple[int, int], upsampling: Upsampling
) -> npt.NDArray[Any]:
    """Resize a map to another size.

    Args:
        values: uint8 or float32 (rows, columns).
        size_wh: new width and height in pixels.
        upsampling: one of UPSAMPLINGS. Maps of ids need ``nearest``.

    Returns:
        Values of the same type, (height, width).
    """
    if upsampling == 'bilinear_aligned':
        return _resize_aligned(values, size_wh)
    if values.shape == size_wh[::-1]:
        return values
    # Import OpenCV only when resizing, because reading a manifest must stay fast.
    import cv2

    # OpenCV's bicubic kernel has a = -0.75, as torch's without antialiasing.
    filters = {
        'nearest': cv2.INTER_NEAREST,
        'bilinear': cv2.INTER_LINEAR,
        'bicubic': cv2.INTER_CUBIC,
    }
    return cv2.resize(values, size_wh, interpolation=filters[upsampling])


def _resize_aligned(values: npt.NDArray[Any], size_wh: tuple[int, int]) -> npt.NDArray[Any]:
    """Resize bilinearly with aligned corners, which OpenCV does not support."""
    rows, columns = values.shape
    row_places, row_shares = _aligned_places(rows, size_wh[1])
    column_places, column_shares = _aligned_places(columns, size_wh[0])
    resized = np.empty(size_wh[::-1], values.dtype)
    for strip in row_strips(size_wh):
        lines = _interpolate(values, row_places[strip], row_shares[strip, None], 0)
        resized[strip] = _interpolate(lines, column_places, column_shares, 1)
    return resized


def _aligned_places(
    cells: int, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the cell in front of each pixel of an axis, and the weight of the following cell."""
    places = np.linspace(0, cells - 1, size) if size > 1 else np.zeros(1)
    first = places.astype(np.int64)
    return first, (places - first).astype(np.float32)


def _interpolate(
    values: npt.NDArray[Any],
    first: npt.NDArray[np.int64],
    share: npt.NDArray[np.float32],
    axis: int,
) -> npt.NDArray[Any]:
    """Interpolate between the values at `first` and the values that follow along an axis."""
    following = values.take(np.minimum(first + 1, values.shape[axis] - 1), axis)
    found = values.take(first, axis)
    found += (following - found) * share
    return found


def without_shared_memory(resized: npt.NDArray[Any], source: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous map that the caller may change, and that stays when `source` changes.

    Args:
        resized: a result of `resize_map`. It is returned itself if it has its own memory.
    """
    if resized.flags.c_contiguous and not np.may_share_memory(resized, source):
        return resized
    return resized.copy()


def image_extents(
    shape: tuple[int, int], letterbox: Letterbox
) -> tuple[list[tuple[int, int]], bool]:
    """Return the rows and columns of a map that cover the image, without padding.

    Args:
        shape: rows and columns of the map, which covers the whole input of the network.

    Returns:
        (first row, number of rows), (first column, number of columns); then whether these are
        cells. If the padding ends inside a cell, they are pixels of the network's input.
    """
    width, height = letterbox.network_wh
    pixels = [
        (letterbox.pad_top, letterbox.resized_wh[1]),
        (letterbox.pad_left, letterbox.resized_wh[0]),
    ]
    cells = []
    for count, side, (begin, length) in zip(shape, (height, width), pixels, strict=True):
        if begin * count % side or length * count % side:
            return pixels, False
        cells.append((begin * count // side, length * count // side))
    return cells, True


def image_part(
    values: npt.NDArray[Any], letterbox: Letterbox, upsampling: Upsampling
) -> npt.NDArray[Any]:
    """Return the part of a map that covers the image, without the padding of the input.

    If the padding ends inside a cell, the map is first resized to the network's input, so that the
    cut is between two pixels.

    Args:
        values: uint8 or float32 (rows, columns), over the whole input of the network.
    """
    rows, columns = values.shape
    ((top, height), (left, width)), is_in_cells = image_extents((rows, columns), letterbox)
    if not is_in_cells:
        values = resize_map(values, letterbox.network_wh, upsampling)
    return values[top : top + height, left : left + width]
