# SPDX-License-Identifier: Apache-2.0
"""Positions and weights of the cells that make a pixel of a map, for the kernels.

For each axis, they describe the same resizing as ``image_part`` and ``resize_map``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.map_resize import Upsampling, image_extents

#: Number of cells that make a pixel, for each axis, if the map is resized once.
AXIS_TAPS: Final = {'nearest': 1, 'bilinear': 2, 'bicubic': 4, 'bilinear_aligned': 2}


def tap_dtype(count: int) -> np.dtype[np.void]:
    """Return the layout of ``struct CellTaps`` in ``maps.cu`` with `count` cells."""
    return np.dtype([('place', '<i4', (count,)), ('weight', '<f4', (count,))])


def cell_taps(
    letterbox: Letterbox,
    cells_wh: tuple[int, int],
    size_wh: tuple[int, int],
    upsampling: Upsampling,
    count: int,
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return the cells of each column, and of each row, of a map.

    Args:
        cells_wh: columns and rows of the network's output. It covers the network's input.
        size_wh: width and height of the map in pixels.
        count: cells for each pixel and axis, at least as many as AXIS_TAPS. If the padding of the
            image ends inside a cell, the map is resized twice, which needs AXIS_TAPS squared.

    Returns:
        Arrays of ``tap_dtype(count)``: columns (width,), rows (height,). Unused cells have weight
        0.
    """
    columns, rows = cells_wh
    extents, is_in_cells = image_extents((rows, columns), letterbox)
    found = []
    for cells, network, (begin, length), size in zip(
        (rows, columns), letterbox.network_wh[::-1], extents, size_wh[::-1], strict=True
    ):
        if is_in_cells:
            places, weights = _taps(length, size, upsampling)
            places += begin
        else:
            inner_places, inner_weights = _taps(cells, network, upsampling)
            places, weights = _taps(length, size, upsampling)
            places += begin
            weights = (weights[..., None] * inner_weights[places]).reshape(size, -1)
            places = inner_places[places].reshape(size, -1)
        taps = np.zeros(size, tap_dtype(count))
        used = places.shape[1]
        taps['place'] = places[:, :1]
        # A cell with weight 0 must not be read, because it may be infinite.
        taps['place'][:, :used] = np.where(weights != 0, places, places[:, :1])
        taps['weight'][:, :used] = weights
        found.append(taps)
    return found[1], found[0]


def _taps(
    cells: int, size: int, upsampling: Upsampling
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return places and weights, (size, n), that resize an axis of `cells` cells to `size`."""
    last = cells - 1
    if upsampling == 'nearest':
        # OpenCV computes the scale in the same way.
        first = np.floor(np.arange(size) * (1 / (size / cells))).astype(np.int32)
        return np.minimum(first, last)[:, None], np.ones((size, 1), np.float32)
    if upsampling == 'bilinear_aligned':
        positions = np.linspace(0, last, size) if size > 1 else np.zeros(1)
    else:
        scale = 1 / (size / cells)
        positions = ((np.arange(size) + 0.5) * scale - 0.5).astype(np.float32)
    if upsampling != 'bicubic':
        positions = np.clip(positions, 0, last)
    first = np.floor(positions).astype(np.int32)
    share = (positions - first).astype(np.float32)[:, None]
    if upsampling != 'bicubic':
        places = np.concatenate([first[:, None], first[:, None] + 1], 1)
        return np.minimum(places, last), np.concatenate([1 - share, share], 1)
    weights = _bicubic_weights(share)
    places = np.clip(first[:, None] + np.arange(-1, 3, dtype=np.int32), 0, last)
    # The first cell of a pixel needs a weight other than 0, as the second of the four has.
    order = [1, 0, 2, 3]
    return places[:, order], weights[:, order]


def _bicubic_weights(share: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights of the four cells around a position, as OpenCV computes them."""
    a, one = np.float32(-0.75), np.float32(1)
    far, rest = share + one, one - share
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * share - (a + 3)) * share * share + one,
        ((a + 2) * rest - (a + 3)) * rest * rest + one,
    ]
    return np.concatenate([*weights, one - weights[0] - weights[1] - weights[2]], 1)
