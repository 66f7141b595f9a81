"""Detections drawn into a picture, for people."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.detections import Detections

__all__ = ['draw_box', 'draw_detections']

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
    for box, score, class_id in zip(
        detections.xyxy, detections.scores, detections.class_ids, strict=True
    ):
        label = f'{class_names[class_id]} {score:.2f}'
        draw_box(bgr, box, label, _color(int(class_id)))


def draw_box(
    bgr: npt.NDArray[np.uint8],
    xyxy: Iterable[float],
    label: str,
    color: tuple[int, int, int],
    weight: int = 1,
) -> None:
    """Draw one box and its label in place, as large as suits the picture.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous.
        xyxy: left, top, right, bottom in the picture's pixels.
        label: stands above the box, or inside where the picture ends, and as far to the left as
            it must to be seen whole; may be empty.
        color: BGR, bright: the label is black on it.
        weight: of the line, in units that grow with the picture.
    """
    thickness = max(1, round(max(bgr.shape[:2]) / 640))
    size = 0.45 * thickness
    left, top, right, bottom = (round(float(side)) for side in xyxy)
    (width, height), below = cv2.getTextSize(label, _FONT, size, thickness)
    base = top - below if top >= height + below else top + height
    cv2.rectangle(bgr, (left, top), (right, bottom), color, weight * thickness)
    if not label:
        return
    left = max(0, min(left, bgr.shape[1] - width))
    cv2.rectangle(bgr, (left, base - height), (left + width, base + below), color, cv2.FILLED)
    cv2.putText(bgr, label, (left, base), _FONT, size, (0, 0, 0), thickness, cv2.LINE_AA)


def _color(class_id: int) -> tuple[int, int, int]:
    """Return a bright BGR colour; neighbouring classes lie a golden angle apart."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.381966 % 1.0, 0.65, 1.0)
    return int(255 * blue), int(255 * green), int(255 * red)
