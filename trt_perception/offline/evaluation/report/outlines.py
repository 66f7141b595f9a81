# SPDX-License-Identifier: Apache-2.0
"""Drawable shapes of annotated and detected objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, oriented_corners
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.library import pycocotools_module
from trt_perception.offline.evaluation.coco.run_lengths import RunLengthDetections, RunLengths

# Limits of the path of a mask, so that a page stays small.
_MAX_CONTOURS: Final = 4
_MAX_CONTOUR_POINTS: Final = 40


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


def svg_path(outline: Outline) -> str:
    """Return the shape as data of an SVG path, in pixels of the image; empty for upright boxes.

    A mask becomes its largest contours, with at most 40 points each.
    """
    lines: list[npt.NDArray[np.floating]] = []
    if outline.corners is not None:
        lines.append(outline.corners)
    if outline.mask is not None:
        inside = pycocotools_module('mask').decode(outline.mask)
        borders, _ = cv2.findContours(inside, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        largest = sorted(borders, key=cv2.contourArea, reverse=True)[:_MAX_CONTOURS]
        for border in largest:
            step = -(-len(border) // _MAX_CONTOUR_POINTS)
            lines.append(border[::step, 0].astype(np.float64))
    texts = [f'M{" ".join(f"{x:.0f},{y:.0f}" for x, y in line.tolist())}Z' for line in lines]
    # A line without length is drawn as a dot, because its ends are round.
    texts += [f'M{x:.0f},{y:.0f}h0' for x, y in outline.points]
    return ''.join(texts)
