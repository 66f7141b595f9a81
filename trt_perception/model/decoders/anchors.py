# SPDX-License-Identifier: Apache-2.0
"""Families with a box and class scores for each anchor. NMS follows.

On a GPU, the kernels of ``stages/kernels/decode.cu`` decode the families that have an
``anchor_row_layout``, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trt_perception.files.json_records import integer_reader
from trt_perception.model.candidates import Candidates, cxcywh_to_xyxy
from trt_perception.model.decoder import AnchorRowLayout, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.grids import check_anchor_count, grid_cells, read_strides
from trt_perception.model.output_tensor import Axis, OutputTensor


@dataclass(frozen=True)
class Dense(ObjectDecoder):
    """Dense outputs: a box with class scores for each anchor, as most YOLOs export them.

        (B, 4 + C, N)   YOLOv8, 9, 11, 12
        (B, N, 5 + C)   YOLOv5, 7, and YOLOX with grid decoding in the model: transposed, with
                        objectness

    Scores are after sigmoid. Task values (keypoints, an angle or mask coefficients) follow them.

    Attributes:
        objectness: whether an objectness score precedes the class scores, and multiplies them.
        transposed: whether the output is (B, N, C) instead of (B, C, N).
    """

    family = 'dense'
    documented_outputs = 'one output with N anchors as rows'
    documented_boxes = 'centre x, centre y, width, height in network pixels'
    documented_scores = 'probabilities, multiplied by the objectness if present'
    needs_nms = True
    allows_task_values = True

    objectness: bool = False
    transposed: bool = False

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        row = Axis(self._first_class, has_task_values=True)
        return (OutputTensor('output', ('B', 'N', row) if self.transposed else ('B', row, 'N')),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins."""
        rows = arrays[0].T if self.transposed else arrays[0]
        task_value_count = image.task.task_value_count
        behind = len(rows) - task_value_count
        classes = rows[self._first_class : behind].astype(np.float32, copy=False)
        class_ids = classes.argmax(axis=0)
        scores = classes[class_ids, np.arange(classes.shape[1])]
        if self.objectness:
            scores = scores * rows[4].astype(np.float32, copy=False)
        chosen = image.find_passing(scores, class_ids)
        boxes = rows[:4, chosen].astype(np.float32).T
        task_values = rows[behind:, chosen].astype(np.float32).T if task_value_count else None
        prototypes = arrays[1] if image.task.has_masks else None
        return Candidates(
            cxcywh_to_xyxy(boxes), scores[chosen], class_ids[chosen], task_values, prototypes
        )

    def anchor_row_layout(self) -> AnchorRowLayout:
        return AnchorRowLayout(self.objectness, self.transposed)

    @property
    def _first_class(self) -> int:
        """The index of the first class score in a row."""
        return 5 if self.objectness else 4


@dataclass(frozen=True)
class GridDecoder(ObjectDecoder):
    """One anchor for each cell of some grids, whose rows are in row-major order within a grid.

    Attributes:
        strides: network pixels between two cells of each grid, finest grid first.
    """

    documented_outputs = 'one output with the cells of all grids as rows, finest grid first'
    needs_nms = True

    strides: Annotated[tuple[int, ...], read_strides]

    def grid_strides(self) -> tuple[int, ...]:
        return self.strides


@dataclass(frozen=True)
class YoloxRaw(GridDecoder):
    """YOLOX without grid decoding in the model, as its own exporter writes it by default.

    Class scores and objectness are after sigmoid, and a score is their product. The box of a cell
    is

        centre = (value + (column, row)) * stride,   size = exp(value) * stride   [network pixels]

    Source: Ge et al., YOLOX: Exceeding YOLO Series in 2021, arXiv 2107.08430.
    """

    family = 'yolox_raw'
    documented_boxes = 'offset to the cell and logarithm of the size, in strides'
    documented_scores = 'probabilities times objectness'
    tensors = (OutputTensor('output', ('B', 'N', Axis(5))),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins.

        Raises:
            OutputShapeError: the number of anchors differs from the number of grid cells.
        """
        (output,) = arrays
        check_anchor_count(len(output), self.strides, image.network_wh)
        cell = grid_cells(self.strides, image.network_wh)
        class_ids = output[:, 5:].argmax(axis=1)
        scores = output[np.arange(len(output)), 5 + class_ids] * output[:, 4]
        chosen = image.find_passing(scores, class_ids)
        stride = cell[chosen, 2:]
        centre = (output[chosen, :2] + cell[chosen, :2]) * stride
        size = np.exp(output[chosen, 2:4]) * stride
        boxes = cxcywh_to_xyxy(np.concatenate([centre, size], axis=1))
        return Candidates(boxes, scores[chosen], class_ids[chosen])

    def anchor_row_layout(self) -> AnchorRowLayout:
        return AnchorRowLayout(objectness=True, transposed=True, strides=self.strides)


@dataclass(frozen=True)
class Nanodet(GridDecoder):
    """NanoDet-Plus, exported by its own repository.

    A row holds the class scores after sigmoid, then R + 1 logits for each of the sides left, top,
    right and bottom. The softmax of these logits is a distribution over 0 … R. Its expected value
    is the distance of the side from the cell, in strides:

        left, top = (column, row) * stride - distance * stride
        right, bottom = (column, row) * stride + distance * stride   [network pixels]

    Boxes are clipped to the network's input. Source: Li et al., Generalized Focal Loss, arXiv
    2006.04388.

    Attributes:
        reg_max: R, the largest distance of a side from its cell, in strides.
    """

    family = 'nanodet'
    documented_boxes = (
        'distances of left, top, right, bottom from the cell, in strides, each as `reg_max` + 1 '
        'logits'
    )

    reg_max: Annotated[int, integer_reader(1, 64)]

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        return (OutputTensor('output', ('B', 'N', Axis(4 * (self.reg_max + 1)))),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins.

        Raises:
            OutputShapeError: the number of anchors differs from the number of grid cells.
        """
        (rows,) = arrays
        check_anchor_count(len(rows), self.strides, image.network_wh)
        bins = self.reg_max + 1
        scores, logits = np.split(rows, [rows.shape[1] - 4 * bins], axis=1)
        class_ids = scores.argmax(axis=1)
        best = scores[np.arange(len(rows)), class_ids]
        chosen = image.find_passing(best, class_ids)
        sides = logits[chosen].reshape(-1, 4, bins)
        raised = np.exp(sides - sides.max(axis=2, keepdims=True))
        expected = raised @ np.arange(bins, dtype=np.float32) / raised.sum(axis=2)
        cell = grid_cells(self.strides, image.network_wh)[chosen]
        stride = cell[:, 2:]
        distance, centre = expected * stride, cell[:, :2] * stride
        xyxy = np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1)
        limit = np.array(image.network_wh * 2, np.float32)
        return Candidates(xyxy.clip(0, limit), best[chosen], class_ids[chosen])
