# SPDX-License-Identifier: Apache-2.0
"""The task of oriented boxes, which are rotated around their centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.detections import oriented_corners
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.task import Floats, Task


@dataclass(frozen=True)
class Obb(Task):
    """Oriented boxes. The angle in radians follows the scores of a row."""

    name: ClassVar[str] = 'obb'
    measure: ClassVar[str] = 'oriented boxes'
    is_oriented: ClassVar[bool] = True

    @property
    def task_value_count(self) -> int:
        """Return 1, for the angle."""
        return 1

    def check_preprocessing(self, model_name: str, preprocessing: Preprocessing) -> None:
        """Refuse resizing that stretches images, because stretching changes angles."""
        if preprocessing.resize == 'stretch':
            raise EngineError(
                model_name,
                'oriented boxes with resize stretch',
                expected='a resize that keeps the aspect ratio, because stretching changes angles',
                fix='set model.resize to letterbox, as in training',
            )

    def nms_boxes(self, xyxy: Floats, task_values: Floats | None) -> Floats:
        """Return centre x, centre y, width, height and angle: float32 (n, 5)."""
        assert task_values is not None
        center, size = (xyxy[:, :2] + xyxy[:, 2:]) * np.float32(0.5), xyxy[:, 2:] - xyxy[:, :2]
        return np.concatenate([center, size, task_values[:, :1]], axis=1)

    def boxes_in_source(self, boxes: Floats, letterbox: Letterbox) -> tuple[Floats, Floats | None]:
        """Return the upright boxes around oriented boxes, and the oriented boxes.

        Oriented boxes are not clipped. If a box does not touch the image, its upright box becomes
        empty. Both axes of a letterbox have nearly the same ratio, so the size is scaled along the
        box's own axes. Angles that differ by half a turn describe the same box, so angles become
        -π/2 to π/2.

        Args:
            boxes: float32 (n, 5), network pixels, as ``nms_boxes`` returns them.

        Returns:
            float32 (n, 4), source pixels, clipped to the image; and the field ``oriented``:
            float32 (n, 5), centre x, centre y, width, height in source pixels, and angle in
            radians.
        """
        center = letterbox.points_to_source(boxes[:, :2])
        turns = np.floor(boxes[:, 4] / np.float32(np.pi) + np.float32(0.5))
        # If the angle has very many turns, float32 loses the fraction of a turn. Clip the result.
        quarter = np.float32(np.pi / 2)
        angles = (boxes[:, 4] - turns * np.float32(np.pi)).clip(-quarter, quarter)
        size = boxes[:, 2:4] * letterbox.ratio
        oriented = np.concatenate([center, size, angles[:, None]], axis=1)
        corners = oriented_corners(oriented)
        limit = np.array(letterbox.source_wh, np.float32)
        sides = [corners.min(axis=1), corners.max(axis=1)]
        upright = np.concatenate([side.clip(0, limit) for side in sides], axis=1)
        # Values may overflow float32. A box with such values becomes empty, too.
        kept = np.isfinite(oriented).all(axis=1) & (size > 0).all(axis=1)
        kept[kept] = _touches_image(oriented[kept], letterbox.source_wh)
        upright[~kept] = 0
        return upright, oriented


def _touches_image(oriented: Floats, size_wh: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return whether the image overlaps each box along both axes of the box: bool (n,).

    If the upright box around the oriented box also overlaps the image, the oriented box and the
    image have common points.

    Args:
        oriented: float32 (n, 5), source pixels.
    """
    corners = np.array([(x, y) for x in (0, size_wh[0]) for y in (0, size_wh[1])], np.float64)
    boxes = oriented.astype(np.float64)
    cos, sin = np.cos(boxes[:, 4]), np.sin(boxes[:, 4])
    axes = np.stack([np.stack([cos, sin], axis=1), np.stack([-sin, cos], axis=1)], axis=1)
    # Positions of the image's corners along the axes of each box, (n, 2 axes, 4 corners).
    places = np.einsum('nad,ncd->nac', axes, corners[None] - boxes[:, None, :2])
    half = boxes[:, 2:4] / 2
    is_reached = (places.min(axis=2) < half) & (places.max(axis=2) > -half)
    touches: npt.NDArray[np.bool_] = is_reached.all(axis=1)
    return touches
