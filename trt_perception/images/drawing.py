"""Detections drawn into a picture, for people."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, NumberedMasks, oriented_corners

__all__ = ['draw_box', 'draw_detections']

_FONT = cv2.FONT_HERSHEY_SIMPLEX
# Keypoints that a network hardly believes in lie anywhere.
_SEEN = 0.25


def draw_detections(
    bgr: npt.NDArray[np.uint8],
    detections: Detections,
    class_names: Sequence[str],
    skeleton: Sequence[tuple[int, int]] = (),
) -> None:
    """Draw masks, boxes, as they are turned, class names, scores and keypoints in place.

    Keypoints of a score below 0.25 are left out, and the lines to them.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous.
        detections: in the picture's pixels.
        class_names: by class id.
        skeleton: pairs of keypoints to join.
    """
    numbered = detections.pictured
    if numbered is not None:
        _draw_masks(bgr, numbered, detections.class_ids.tolist())
    turned = None if detections.oriented is None else oriented_corners(detections.oriented)
    for index, class_id in enumerate(detections.class_ids.tolist()):
        label = f'{class_names[class_id]} {detections.scores[index]:.2f}'
        corners = None if turned is None else turned[index]
        draw_box(bgr, detections.xyxy[index], label, _color(class_id), corners=corners)
    if detections.keypoints is not None:
        for points, class_id in zip(detections.keypoints, detections.class_ids, strict=True):
            _draw_keypoints(bgr, points, skeleton, _color(int(class_id)))


def _draw_masks(
    bgr: npt.NDArray[np.uint8], numbered: NumberedMasks, class_ids: Sequence[int]
) -> None:
    """Tint each pixel by the class of the mask that it is in, of several the best one's."""
    numbers = np.empty(bgr.shape[:2], np.uint16)
    numbered.number(numbers)
    colors = np.array([(0, 0, 0), *map(_color, class_ids)], np.uint8)
    within = numbers > 0
    bgr[within] = bgr[within] // 2 + colors[numbers[within]] // 2


def _draw_keypoints(
    bgr: npt.NDArray[np.uint8],
    points: npt.NDArray[np.float32],
    skeleton: Sequence[tuple[int, int]],
    color: tuple[int, int, int],
) -> None:
    """Draw the lines and points of one object: float32 (k, 3), x, y and score."""
    thickness = _thickness(bgr)
    places = [(round(float(x)), round(float(y))) for x, y, _ in points]
    seen = points[:, 2] >= _SEEN
    for first, second in skeleton:
        if seen[first] and seen[second]:
            cv2.line(bgr, places[first], places[second], color, thickness, cv2.LINE_AA)
    for place, is_seen in zip(places, seen, strict=True):
        if is_seen:
            cv2.circle(bgr, place, 3 * thickness, color, cv2.FILLED, cv2.LINE_AA)
            cv2.circle(bgr, place, thickness, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)


def _thickness(bgr: npt.NDArray[np.uint8]) -> int:
    """Return the width of a line that suits the size of the picture."""
    return max(1, round(max(bgr.shape[:2]) / 640))


def draw_box(
    bgr: npt.NDArray[np.uint8],
    xyxy: Iterable[float],
    label: str,
    color: tuple[int, int, int],
    weight: int = 1,
    corners: npt.NDArray[np.float32] | None = None,
) -> None:
    """Draw one box and its label in place, as large as suits the picture.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous.
        xyxy: left, top, right, bottom in the picture's pixels.
        label: stands above the box, or inside where the picture ends, and as far to the left as
            it must to be seen whole; may be empty.
        color: BGR, bright: the label is black on it.
        weight: of the line, in units that grow with the picture.
        corners: float32 (4, 2) of a box that is not upright; the label stands at the upright one.
    """
    thickness = _thickness(bgr)
    size = 0.45 * thickness
    left, top, right, bottom = (round(float(side)) for side in xyxy)
    (width, height), below = cv2.getTextSize(label, _FONT, size, thickness)
    base = top - below if top >= height + below else top + height
    if corners is None:
        cv2.rectangle(bgr, (left, top), (right, bottom), color, weight * thickness)
    else:
        # OpenCV counts in 32 bits; what is so far away is outside any image.
        outline = np.rint(corners.clip(-(2.0**20), 2.0**20)).astype(np.int32)
        cv2.polylines(bgr, [outline], True, color, weight * thickness)
    if not label:
        return
    left = max(0, min(left, bgr.shape[1] - width))
    cv2.rectangle(bgr, (left, base - height), (left + width, base + below), color, cv2.FILLED)
    cv2.putText(bgr, label, (left, base), _FONT, size, (0, 0, 0), thickness, cv2.LINE_AA)


def _color(class_id: int) -> tuple[int, int, int]:
    """Return a bright BGR colour; neighbouring classes lie a golden angle apart."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.381966 % 1.0, 0.65, 1.0)
    return int(255 * blue), int(255 * green), int(255 * red)
