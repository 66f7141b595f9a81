# SPDX-License-Identifier: Apache-2.0
"""Grids of cells over the network's input: one grid for each stride, one anchor for each cell.

Anchors are in the order of the strides, and in row-major order within a grid.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from trt_perception.errors import OutputShapeError
from trt_perception.files.json_section import JsonSection
from trt_perception.model.candidates import Floats

# Strides of the grids of usual detectors.
_STRIDE_SETS: Final = (
    (8, 16, 32),
    (8, 16, 32, 64),
    (4, 8, 16, 32),
    (4, 8, 16),
    (8, 16),
    (16, 32),
    (8,),
    (16,),
)


def read_strides(section: JsonSection, key: str) -> tuple[int, ...]:
    """Read the strides of grids from a manifest.

    A stride is the distance between two cells of a grid, in network pixels.

    Raises:
        ManifestError: the value is not 1 to 8 whole numbers from 1 to 1024.
    """
    strides = section.items(key)
    whole = all(type(side) is int and 1 <= side <= 1024 for side in strides)
    if not whole or not 1 <= len(strides) <= 8:
        raise section.wrong_value_error(key, strides, '1 to 8 whole numbers from 1 to 1024')
    return tuple(strides)


def cell_count(strides: Sequence[int], network_wh: tuple[int, int]) -> int:
    """Return the number of cells of all grids. Cells that the edge of the input cuts also count.

    Args:
        strides: network pixels between two cells of each grid.
        network_wh: width and height of the network's input in pixels.
    """
    width, height = network_wh
    return sum(-(-width // stride) * -(-height // stride) for stride in strides)


def count_anchors_per_cell(anchors: int, input_size: tuple[int, int] | None) -> int | None:
    """Return the number of anchors per grid cell that explains the number of anchors.

    Args:
        anchors: number of anchors; negative if dynamic.
        input_size: width and height in pixels; None if dynamic.

    Returns:
        1 (YOLOv8, YOLOX) or 3 (YOLOv5, 7); 0 if no usual grids have this number of anchors; None
        if an argument is dynamic.
    """
    if input_size is None or anchors < 0:
        return None
    for per_cell in (1, 3):
        for strides in _STRIDE_SETS:
            if anchors == per_cell * cell_count(strides, input_size):
                return per_cell
    return 0


def check_anchor_count(anchors: int, strides: Sequence[int], network_wh: tuple[int, int]) -> None:
    """Check that there are as many anchors as cells.

    Raises:
        OutputShapeError: the number of anchors differs from the number of cells.
    """
    count = cell_count(strides, network_wh)
    if count != anchors:
        raise OutputShapeError(
            "the model's output",
            f'{anchors} anchors',
            expected=f'{count}, the cells of grids with strides {list(strides)} on '
            f'{network_wh[0]} x {network_wh[1]}',
            fix='correct "strides" in the manifest, or model.decoder',
        )


@functools.lru_cache(maxsize=4)
def grid_cells(strides: tuple[int, ...], network_wh: tuple[int, int]) -> Floats:
    """Return column, row and stride of each cell in anchor order: float32 (N, 3)."""
    parts = []
    for stride in strides:
        columns, rows = -(-network_wh[0] // stride), -(-network_wh[1] // stride)
        row, column = np.mgrid[:rows, :columns].reshape(2, -1)
        parts.append(np.stack([column, row, np.full(columns * rows, stride)], axis=1))
    every: Floats = np.concatenate(parts).astype(np.float32)
    return every
