"""YOLOX without its grid decoding inside, as its own exporter writes it by default.

Shape (B, N, 5 + C), for C classes and one anchor for each cell of grids of 8, 16 and 32 network
pixels (or other strides), finest grid first, each row by row. Scores and objectness are after
sigmoid; their product counts. With the cell's column and row and its stride the box is

    centre = (value + (column, row)) * stride,   size = exp(value) * stride   [network pixels]

(Ge et al., YOLOX: Exceeding YOLO Series in 2021, arXiv 2107.08430). The family needs NMS. The
GPU does the same by the kernels of the dense one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.candidates import Candidates, corners
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.selection import passing

__all__ = ['check_cells', 'yolox_raw_candidates']

Floats = npt.NDArray[np.float32]


def yolox_raw_candidates(
    output: Floats, strides: Sequence[int], network_wh: tuple[int, int], thresholds: Thresholds
) -> Candidates:
    """Return the anchors above the threshold with their best class, the first of equals.

    Args:
        output: float32 (N, 5 + C) of one image.
        strides: of the grids, in the order of the anchors.
        network_wh: size of the network's input.
        thresholds: what need not be looked at further.

    Raises:
        EngineError: the grids have another number of cells than N.
    """
    check_cells(len(output), strides, network_wh)
    cells = _cells(tuple(strides), network_wh)
    class_ids = output[:, 5:].argmax(axis=1)
    scores = output[np.arange(len(output)), 5 + class_ids] * output[:, 4]
    chosen = passing(scores, class_ids, thresholds)
    stride = cells[chosen, 2:]
    centre = (output[chosen, :2] + cells[chosen, :2]) * stride
    size = np.exp(output[chosen, 2:4]) * stride
    boxes = corners(np.concatenate([centre, size], axis=1))
    return Candidates(boxes, scores[chosen], class_ids[chosen])


def check_cells(anchors: int, strides: Sequence[int], network_wh: tuple[int, int]) -> None:
    """Hold the number of anchors to that of the cells.

    Raises:
        EngineError: they differ.
    """
    count = len(_cells(tuple(strides), network_wh))
    if count != anchors:
        raise EngineError(
            "the model's output",
            f'{anchors} anchors',
            expected=f'{count}, the cells of grids with strides {list(strides)} on '
            f'{network_wh[0]} x {network_wh[1]}',
            fix='correct "strides" in the manifest, or model.decoder',
        )


@functools.lru_cache(maxsize=4)
def _cells(strides: tuple[int, ...], network_wh: tuple[int, int]) -> Floats:
    """Return column, row and stride of every cell: float32 (N, 3)."""
    parts = []
    for stride in strides:
        columns, rows = -(-network_wh[0] // stride), -(-network_wh[1] // stride)
        row, column = np.mgrid[:rows, :columns].reshape(2, -1)
        parts.append(np.stack([column, row, np.full(columns * rows, stride)], axis=1))
    cells: Floats = np.concatenate(parts).astype(np.float32)
    return cells
