# SPDX-License-Identifier: Apache-2.0
"""Converts detections to COCO's results format.

Format: https://cocodataset.org/#format-results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.offline.evaluation.coco.run_lengths import RunLengthDetections

# Minimum score of a visible keypoint.
_MIN_VISIBLE_SCORE: Final = 0.5


def coco_rows(
    image_id: int,
    detections: Detections,
    category_ids: Sequence[int | None],
) -> list[dict[str, Any]]:
    """Return detections in COCO's results format: image_id, category_id, bbox and score.

    Metrics are computed from these rows, so a saved copy of the rows gives the same figures.

    Args:
        detections: detections in source pixels.
        category_ids: category of each class of the model. Detections of a class without
            category (None) are left out.

    Returns:
        ``bbox`` is left, top, width, height in source pixels, rounded to 1e-4. ``score`` is
        rounded to 1e-7. Poses also have ``keypoints``: x, y and COCO's visibility, which is 2 from
        a score of 0.5 on, else 1; and ``keypoint_scores``. Oriented boxes have an upright ``bbox``
        and also ``oriented_bbox``: centre x, centre y, width, height, angle in radians. Their
        ``segmentation`` is one polygon of the corners. ``RunLengthDetections`` have run lengths as
        ``segmentation``. With ids, ``track_id`` is the id, or None without a confirmed track.
    """
    xywh: npt.NDArray[np.float64] = detections.xyxy.astype(np.float64)
    xywh[:, 2:] -= xywh[:, :2]
    boxes: list[list[float]] = xywh.round(4).tolist()
    scores: list[float] = detections.scores.astype(np.float64).round(7).tolist()
    ids = [category_ids[class_id] for class_id in detections.class_ids]
    rows: list[dict[str, Any]] = [
        {'image_id': image_id, 'category_id': category_id, 'bbox': box, 'score': score}
        for category_id, box, score in zip(ids, boxes, scores, strict=True)
    ]
    if detections.keypoints is not None:
        _add_keypoints(rows, detections.keypoints.astype(np.float64))
    if detections.oriented is not None:
        corners = oriented_corners(detections.oriented).astype(np.float64).reshape(-1, 8)
        turned = detections.oriented.astype(np.float64)
        for row, outline, box in zip(rows, corners.round(4), turned.round(6), strict=True):
            row['oriented_bbox'] = box.tolist()
            row['segmentation'] = [outline.tolist()]
    if isinstance(detections, RunLengthDetections):
        for row, runs in zip(rows, detections.runs, strict=True):
            row['segmentation'] = runs
    if detections.ids is not None:
        for row, id_ in zip(rows, detections.ids.tolist(), strict=True):
            row['track_id'] = id_ if id_ > 0 else None
    return [row for row in rows if row['category_id'] is not None]


def _add_keypoints(rows: Sequence[dict[str, Any]], points: npt.NDArray[np.float64]) -> None:
    """Add keypoints (n, k, 3), which hold x, y and score, to the rows of n objects."""
    visible = np.where(points[:, :, 2] >= _MIN_VISIBLE_SCORE, 2, 1)
    places = points[:, :, :2].round(4)
    for row, xy, flags, scores in zip(rows, places, visible, points[:, :, 2], strict=True):
        pairs = zip(xy.tolist(), flags.tolist(), strict=True)
        row['keypoints'] = [value for (x, y), flag in pairs for value in (x, y, flag)]
        row['keypoint_scores'] = scores.round(7).tolist()
