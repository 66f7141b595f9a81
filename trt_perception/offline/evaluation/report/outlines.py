"""Draws one detected or annotated object: box, mask, keypoints or oriented box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.images.drawing import draw_box
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.library import pycocotools_module
from trt_perception.offline.evaluation.coco.run_lengths import RunLengthDetections, RunLengths

_Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Outline:
    """Drawable shapes of an object, in pixels of the image.

    Attributes:
        corners: float32 (4, 2), corners of an oriented box; None for other objects.
        mask: run lengths; None without masks.
        points: x and y of the labelled keypoints, (k, 2); empty without keypoints.
    """

    xyxy: tuple[float, ...]
    corners: npt.NDArray[np.float32] | None = None
    mask: RunLengths | None = None
    points: Sequence[Sequence[float]] = ()


def detection_outline(found: Detections, index: int) -> Outline:
    """Return the drawable shapes of a detection."""
    return Outline(
        tuple(map(float, found.xyxy[index])),
        None if found.oriented is None else oriented_corners(found.oriented[index : index + 1])[0],
        found.runs[index] if isinstance(found, RunLengthDetections) else None,
        () if found.keypoints is None else found.keypoints[index, :, :2].tolist(),
    )


def ground_truth_outline(box: AnnotatedObject) -> Outline:
    """Return the drawable shapes of an annotated object."""
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
    """Draw one object into a canvas.

    Args:
        canvas: uint8 (height, width, 3), BGR, contiguous.
        scale: canvas pixels per image pixel.
        label: text as in ``draw_box``.
        color: BGR.
        weight: line width in pixels.
    """
    if outline.mask is not None:
        size = canvas.shape[1], canvas.shape[0]
        inside = pycocotools_module('mask').decode(outline.mask)
        mask = cv2.resize(inside, size, interpolation=cv2.INTER_NEAREST)
        # Draw only contours, so that two masks of one object remain visible.
        borders, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(canvas, borders, -1, color, weight)
    corners = None if outline.corners is None else outline.corners * np.float32(scale)
    box = [side * scale for side in outline.xyxy]
    draw_box(canvas, box, label, color, weight, corners)
    # OpenCV uses 32-bit coordinates. The limit is outside any image.
    places = np.rint(np.array(outline.points).reshape(-1, 2) * scale).clip(-(2**20), 2**20)
    for x, y in places.astype(int).tolist():
        cv2.circle(canvas, (x, y), 2 + 2 * weight, color, cv2.FILLED, cv2.LINE_AA)
        cv2.circle(canvas, (x, y), weight, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)
