# SPDX-License-Identifier: Apache-2.0
"""Shapes of the objects in one image, and the overlap of their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.run_lengths import RunLengthDetections, RunLengths

Floats = npt.NDArray[np.float64]
# Empty mask of objects whose masks were not read.
_NO_MASK: RunLengths = {'size': [0, 0], 'counts': ''}


@dataclass(frozen=True)
class Shapes:
    """Shapes of annotated or detected objects in one image, in pixels of the image.

    Attributes:
        xyxy: float64 (n, 4), the upright boxes.
        areas: float64 (n,), square pixels. OKS relates distances to these areas.
        masks: run lengths of each object; empty without masks.
        keypoints: float64 (n, k, 3): x, y, and a value above 0 if labelled; k is 0 without
            keypoints.
        oriented: float64 (n, 5) as ``Detections.oriented``; empty without oriented boxes.
    """

    xyxy: Floats
    areas: Floats
    masks: Sequence[RunLengths]
    keypoints: Floats
    oriented: Floats

    @classmethod
    def from_detections(cls, found: Detections) -> Shapes:
        """Return the shapes of detections. All their keypoints count as labelled."""
        count = len(found)
        xyxy = found.xyxy.astype(np.float64)
        points: Floats = np.zeros((count, 0, 3))
        if found.keypoints is not None:
            points = found.keypoints.astype(np.float64)
            points[:, :, 2] = 1
        turned = np.zeros((0, 5)) if found.oriented is None else found.oriented
        return cls(
            xyxy,
            (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1),
            found.runs if isinstance(found, RunLengthDetections) else (),
            points,
            turned.astype(np.float64),
        )

    @classmethod
    def from_annotations(cls, objects: Sequence[AnnotatedObject]) -> Shapes:
        """Return the shapes of annotated objects. A shape that was not read overlaps nothing."""
        xywh = np.array([one.xywh for one in objects], np.float64).reshape(-1, 4)
        most = max((len(one.keypoints or ()) for one in objects), default=0)
        points = [one.keypoints or (0.0,) * most for one in objects]
        turned = [one.oriented or (0.0,) * 5 for one in objects]
        return cls(
            np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
            np.array([one.area for one in objects], np.float64),
            [one.mask or _NO_MASK for one in objects],
            np.array(points, np.float64).reshape(len(objects), most // 3, 3),
            np.array(turned, np.float64).reshape(-1, 5),
        )


def box_iou(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> Floats:
    """Return the intersection over union of all pairs: float64 (n, m) from xyxy (n, 4) and (m, 4).

    The result is 0 for two boxes without area.
    """
    a, b = one.astype(np.float64), other.astype(np.float64)
    shared = shared_areas(a, b)
    return ratio(shared, box_areas(a)[:, None] + box_areas(b) - shared)


def shared_areas(one: Floats, other: Floats) -> Floats:
    """Return the shared area of each pair of boxes: float64 (n, m) from xyxy."""
    size = np.minimum(one[:, None, 2:], other[:, 2:]) - np.maximum(one[:, None, :2], other[:, :2])
    shared: Floats = np.maximum(size, 0).prod(axis=-1)
    return shared


def box_areas(xyxy: Floats) -> Floats:
    """Return the area of each box: float64 (n,) from xyxy."""
    areas: Floats = (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1)
    return areas


def ratio(part: Floats, whole: Floats) -> Floats:
    """Return part / whole, or 0 if the whole is 0. ``whole`` must broadcast to ``part``."""
    whole = np.broadcast_to(whole, part.shape)
    share: Floats = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return share
