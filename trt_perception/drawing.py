"""Detections drawn into a picture, for people."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.detections import Detections

__all__ = ['draw_detections']

_FONT = cv2.FONT_HERSHEY_SIMPLEX


def draw_detections(
    bgr: npt.NDArray[np.uint8], detections: Detections, class_names: Sequence[str]
) -> None:
    """Draw boxes, class names and scores in place.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous.
        detections: in the picture's pixels.
        class_names: by class id.
    """
    thickness = max(1, round(max(bgr.shape[:2]) / 640))
    size = 0.45 * thickness
    for box, score, class_id in zip(
        detections.xyxy, detections.scores, detections.class_ids, strict=True
    ):
        left, top, right, bottom = (round(float(side)) for side in box)
        color = _color(int(class_id))
        label = f'{class_names[class_id]} {score:.2f}'
        (width, height), below = cv2.getTextSize(label, _FONT, size, thickness)
        # The label stands above the box, or inside where the picture ends.
        base = top - below if top >= height + below else top + height
        cv2.rectangle(bgr, (left, top), (right, bottom), color, thickness)
        cv2.rectangle(bgr, (left, base - height), (left + width, base + below), color, cv2.FILLED)
        cv2.putText(bgr, label, (left, base), _FONT, size, (0, 0, 0), thickness, cv2.LINE_AA)


def _color(class_id: int) -> tuple[int, int, int]:
    """Return a bright BGR colour; neighbouring classes lie a golden angle apart."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.381966 % 1.0, 0.65, 1.0)
    return int(255 * blue), int(255 * green), int(255 * red)
