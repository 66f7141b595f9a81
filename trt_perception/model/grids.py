"""Grids of cells over the network's input: one grid for each stride, one anchor for each cell.

Anchors are in the order of the strides, and in row-major order within a grid.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from trt_perception.errors import OutputShapeError
from trt_perception.files.json_section import JsonSection
from trt_perception.model.candidates import Floats


def read_strides(section: JsonSection, key: str) -> tuple[int, ...]:
    """Read the strides of grids from a manifest.

    A stride is the distance between two cells of a grid, in network pixels.

    Raises:
        ManifestError: the value is not 1 to 8 whole numbers from 1 to 1024.
    """
    strides = section.items(key)
    whole = all(type(side) is int and 1 <= side <= 1024 for side in strides)
    if not whole or not 1 <= len(strides) <= 8:
        raise section.refusal(key, strides, '1 to 8 whole numbers from 1 to 1024')
    return tuple(strides)


def cell_count(strides: Sequence[int], network_wh: tuple[int, int]) -> int:
    """Return the number of cells of all grids. Cells that the edge of the input cuts also count.

    Args:
        strides: network pixels between two cells of each grid.
        network_wh: width and height of the network's input in pixels.
    """
    width, height = network_wh
    return sum(-(-width // stride) * -(-height // stride) for stride in strides)


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
