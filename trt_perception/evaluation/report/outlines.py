"""One object drawn in one colour: its box, mask, keypoints or oriented box, found or annotated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.evaluation.coco.annotations import AnnotatedObject
from trt_perception.evaluation.coco.library import pycocotools
from trt_perception.evaluation.coco.run_lengths import MaskedDetections, RunLengths
from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.images.drawing import draw_box

__all__ = ['Outline', 'detection_outline', 'draw_outline', 'ground_truth_outline']

_Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Outline:
    """What is drawn of an object, in pixels of the image.

    Attributes:
        xyxy: the upright box.
        corners: float32 (4, 2) of an oriented box, else None.
        mask: else None.
        points: x and y of the keypoints that are known, (k, 2); empty without.
    """

    xyxy: tuple[float, ...]
    corners: npt.NDArray[np.float32] | None = None
    mask: RunLengths | None = None
    points: Sequence[Sequence[float]] = ()


def detection_outline(found: Detections, index: int) -> Outline:
    """Return what is drawn of a detection."""
    return Outline(
        tuple(map(float, found.xyxy[index])),
        None if found.oriented is None else oriented_corners(found.oriented[index : index + 1])[0],
        found.runs[index] if isinstance(found, MaskedDetections) else None,
        () if found.keypoints is None else found.keypoints[index, :, :2].tolist(),
    )


def ground_truth_outline(box: AnnotatedObject) -> Outline:
    """Return what is drawn of an annotated object."""
    left, top, width, height = box.xywh
    turned = None if box.oriented is None else np.array([box.oriented], np.float32)
    points = np.array(box.keypoints or (), np.float64).reshape(-1, 3)
    return Outline(
        (left, top, left + width, top + height),
        None if turned is None else oriented_corners(turned)[0],
        box.mask,
        points[points[:, 2] > 0, :2].tolist(),
    )


def draw_outline(
    canvas: _Image,
    outline: Outline,
    scale: float,
    label: str,
    color: tuple[int, int, int],
    weight: int = 1,
) -> None:
    """Draw one object in place.

    Args:
        canvas: uint8 (height, width, 3), BGR, contiguous.
        outline: what is drawn.
        scale: pixels of the canvas for one of the image.
        label: as in ``draw_box``.
        color: BGR.
        weight: of the lines.
    """
    if outline.mask is not None:
        size = canvas.shape[1], canvas.shape[0]
        inside = pycocotools('mask').decode(outline.mask)
        mask = cv2.resize(inside, size, interpolation=cv2.INTER_NEAREST)
        # Not filled: two masks of one object are to be told apart.
        borders, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(canvas, borders, -1, color, weight)
    corners = None if outline.corners is None else outline.corners * np.float32(scale)
    box = [side * scale for side in outline.xyxy]
    draw_box(canvas, box, label, color, weight, corners)
    # OpenCV counts in 32 bits; what is so far away is outside any image.
    places = np.rint(np.array(outline.points).reshape(-1, 2) * scale).clip(-(2**20), 2**20)
    for x, y in places.astype(int).tolist():
        cv2.circle(canvas, (x, y), 2 + 2 * weight, color, cv2.FILLED, cv2.LINE_AA)
        cv2.circle(canvas, (x, y), weight, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)
