"""How far two objects are the same: by their boxes, masks, keypoints or oriented boxes, 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.evaluation.coco.annotations import TrueBox
from trt_perception.evaluation.coco.run_lengths import MaskedDetections, counts_of, shared_pixels
from trt_perception.evaluation.metrics.measure import Measure
from trt_perception.images.detections import Detections, oriented_corners

__all__ = ['Shapes', 'box_iou', 'oriented_overlaps', 'overlaps', 'share_inside']

_Floats = npt.NDArray[np.float64]
_LEAST: Final = np.spacing(1)


@dataclass(frozen=True)
class Shapes:
    """Objects of one image in its pixels, annotated or found.

    Attributes:
        xyxy: float64 (n, 4), the upright boxes.
        areas: float64 (n,), square pixels, to which OKS holds distances.
        runs: the masks' run lengths, int64 (r,) each; empty without masks.
        keypoints: float64 (n, k, 3): x, y, and above 0 where it counts; k is 0 without keypoints.
        oriented: float64 (n, 5) as ``Detections.oriented``; empty without.
    """

    xyxy: _Floats
    areas: _Floats
    runs: Sequence[npt.NDArray[np.int64]]
    keypoints: _Floats
    oriented: _Floats

    @classmethod
    def found(cls, found: Detections) -> Shapes:
        """Return what a model found; all its keypoints count."""
        count = len(found)
        xyxy = found.xyxy.astype(np.float64)
        points: _Floats = np.zeros((count, 0, 3))
        if found.keypoints is not None:
            points = found.keypoints.astype(np.float64)
            points[:, :, 2] = 1
        turned = np.zeros((0, 5)) if found.oriented is None else found.oriented
        runs = found.runs if isinstance(found, MaskedDetections) else ()
        return cls(
            xyxy,
            (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1),
            [counts_of(one['counts']) for one in runs],
            points,
            turned.astype(np.float64),
        )

    @classmethod
    def true(cls, objects: Sequence[TrueBox]) -> Shapes:
        """Return what is annotated; what has no shape, as none was read, overlaps with nothing."""
        xywh = np.array([one.xywh for one in objects], np.float64).reshape(-1, 4)
        most = max((len(one.keypoints or ()) for one in objects), default=0)
        points = [one.keypoints or (0.0,) * most for one in objects]
        turned = [one.oriented or (0.0,) * 5 for one in objects]
        nothing = np.zeros(1, np.int64)
        return cls(
            np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
            np.array([one.area for one in objects], np.float64),
            [counts_of(one.mask['counts']) if one.mask else nothing for one in objects],
            np.array(points, np.float64).reshape(len(objects), most // 3, 3),
            np.array(turned, np.float64).reshape(-1, 5),
        )


def overlaps(measure: Measure, one: Shapes, other: Shapes) -> _Floats:
    """Return how far all pairs are the same: float64 (n, m), 0 to 1.

    Intersection over union of boxes, masks and oriented boxes, of two masks without a pixel that
    of their boxes; of keypoints their similarity (OKS), for which areas and keypoints that count
    are the other's.
    """
    if measure.kind == 'boxes':
        return box_iou(one.xyxy, other.xyxy)
    if measure.kind == 'keypoints':
        return _keypoint_similarity(one, other, measure.sigmas)
    shared, own, others = _shared(measure, one, other)
    union = own[:, None] + others - shared
    if measure.kind != 'masks' or union.all():
        return _ratio(shared, union)
    return np.where(union > 0, _ratio(shared, union), box_iou(one.xyxy, other.xyxy))


def share_inside(measure: Measure, one: Shapes, regions: Shapes) -> _Floats:
    """Return the share of each object that lies in each region: float64 (n, m).

    Of objects with keypoints, that of their boxes.
    """
    if measure.kind in ('boxes', 'keypoints'):
        return _ratio(_box_shared(one.xyxy, regions.xyxy), _box_areas(one.xyxy)[:, None])
    shared, own, _ = _shared(measure, one, regions)
    return _ratio(shared, own[:, None])


def box_iou(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> _Floats:
    """Return intersection over union of all pairs: float64 (n, m) from xyxy (n, 4) and (m, 4).

    Two boxes without area have 0.
    """
    a, b = one.astype(np.float64), other.astype(np.float64)
    shared = _box_shared(a, b)
    return _ratio(shared, _box_areas(a)[:, None] + _box_areas(b) - shared)


def oriented_overlaps(
    one: _Floats, other: _Floats, crowd: npt.NDArray[np.bool_] | None = None
) -> _Floats:
    """Return intersection over union of all pairs of oriented boxes, as true areas.

    Args:
        one: float64 (n, 5), as ``Detections.oriented``.
        other: float64 (m, 5).
        crowd: (m,), of which the share of the first box inside counts instead, as in COCO.

    Returns:
        float64 (n, m).
    """
    shared, own, others = _oriented_pairs(one, other)
    union = own[:, None] + others - shared
    if crowd is not None:
        union = np.where(crowd, own[:, None], union)
    return _ratio(shared, union)


def _oriented_pairs(one: _Floats, other: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    own, others = (side[:, 2:4].prod(axis=1) for side in (one, other))
    shared = np.zeros((len(own), len(others)))
    i, j = np.nonzero(_box_shared(_around(one), _around(other)) > 0)
    shared[i, j] = _oriented_shared(one[i], other[j])
    return shared, own, others


def _oriented_shared(one: _Floats, other: _Floats) -> _Floats:
    """Return the area that pairs of oriented boxes share: float64 (n,) from two of (n, 5).

    The outline of the first is cut at each side of the second. Corners outside go to the nearest
    place on the side's line: ways along that line enclose nothing, so nothing depends on their
    order, and boxes that touch or are the same need no case of their own. OpenCV's
    ``rotatedRectangleIntersection`` takes corners of the shared part that are near for one.
    """
    outline = _corners(one)
    sides = _corners(other)
    for index in range(4):
        start, end = sides[:, index], sides[:, (index + 1) % 4]
        normal = np.stack([end[:, 1] - start[:, 1], start[:, 0] - end[:, 0]], axis=1)
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), _LEAST)
        outline = _cut(outline, start, normal)
    x, y = outline[..., 0], outline[..., 1]
    twice = (x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)
    area: _Floats = np.abs(twice) / 2
    return area


def _cut(outline: _Floats, start: _Floats, normal: _Floats) -> _Floats:
    """Return (n, 2k, 2) from (n, k, 2): each edge's part that is not behind a line.

    Args:
        outline: corners.
        start: (n, 2), a point of the line.
        normal: (n, 2), of length 1, to the side that stays.
    """
    height = ((outline - start[:, None]) * normal[:, None]).sum(axis=2)
    following, height_following = np.roll(outline, -1, axis=1), np.roll(height, -1, axis=1)
    crosses = (height >= 0) != (height_following >= 0)
    part = np.divide(height, height - height_following, out=np.zeros_like(height), where=crosses)
    crossing = outline + part[..., None] * (following - outline)
    ends = []
    for place, above in ((outline, height), (following, height_following)):
        on_line = place - above[..., None] * normal[:, None]
        outside = np.where(crosses[..., None], crossing, on_line)
        ends.append(np.where((above >= 0)[..., None], place, outside))
    return np.stack(ends, axis=2).reshape(len(outline), 2 * outline.shape[1], 2)


def _corners(oriented: _Floats) -> _Floats:
    """Return the corners around each box in double precision: float64 (n, 4, 2)."""
    corners: _Floats = oriented_corners(oriented)  # type: ignore[arg-type,assignment]
    return corners


def _shared(measure: Measure, one: Shapes, other: Shapes) -> tuple[_Floats, _Floats, _Floats]:
    """Return what each pair shares (n, m), and the sizes (n,) and (m,), in square pixels."""
    if measure.kind == 'masks':
        own, others = (
            np.array([runs[1::2].sum() for runs in side.runs], np.float64) for side in (one, other)
        )
        shared = np.zeros((len(own), len(others)))
        (first, last), (others_first, others_last) = map(_extents, (one, other))
        near = (first[:, None] < others_last) & (others_first < last[:, None])
        for i, j in np.argwhere(near):
            shared[i, j] = shared_pixels(one.runs[i], other.runs[j])
        return shared, own, others
    return _oriented_pairs(one.oriented, other.oriented)


def _extents(shapes: Shapes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return between which pixels, column by column, each mask lies."""
    first = [int(runs[0]) for runs in shapes.runs]
    last = [int(runs[: len(runs) // 2 * 2].sum()) for runs in shapes.runs]
    return np.array(first, np.int64), np.array(last, np.int64)


def _around(oriented: _Floats) -> _Floats:
    """Return the upright boxes around oriented ones, not cut at the image."""
    corners = _corners(oriented)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _keypoint_similarity(one: Shapes, other: Shapes, sigmas: Sequence[float]) -> _Floats:
    """Return OKS (https://cocodataset.org/#keypoints-eval); 0 where no keypoint counts."""
    apart = one.keypoints[:, None, :, :2] - other.keypoints[None, :, :, :2]
    spread = 2 * (2 * np.array(sigmas)) ** 2 * (other.areas[:, None] + _LEAST)
    near = np.exp(-(apart**2).sum(axis=3) / spread)
    counts = other.keypoints[:, :, 2] > 0
    return _ratio((near * counts).sum(axis=2), counts.sum(axis=1)[None].astype(np.float64))


def _box_shared(one: _Floats, other: _Floats) -> _Floats:
    size = np.minimum(one[:, None, 2:], other[:, 2:]) - np.maximum(one[:, None, :2], other[:, :2])
    shared: _Floats = np.maximum(size, 0).prod(axis=-1)
    return shared


def _box_areas(xyxy: _Floats) -> _Floats:
    areas: _Floats = (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1)
    return areas


def _ratio(part: _Floats, whole: _Floats) -> _Floats:
    """Return part / whole, 0 where there is no whole."""
    whole = np.broadcast_to(whole, part.shape)
    ratio: _Floats = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return ratio
