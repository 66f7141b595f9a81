# SPDX-License-Identifier: Apache-2.0
"""Measures oriented boxes by the IoU of rotated rectangles.

An annotation has ``oriented_bbox``: centre x, centre y, width, height, and angle. The angle is in
radians from the x axis to the width's axis, positive towards y. Otherwise ``segmentation`` must
hold one polygon of four corners, and the smallest rectangle around the corners is used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import oriented_corners
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.section import MAX_COORDINATE, CocoSection, is_finite
from trt_perception.offline.evaluation.metrics.measure import BOXES_ONLY_FIX, Measure
from trt_perception.offline.evaluation.metrics.shapes import Floats, Shapes, ratio, shared_areas

_ORIENTED_BOX_KEY: Final = 'oriented_bbox'
_ORIENTED_BOX_LAYOUT: Final = '[centre x, centre y, width, height, angle in radians]'
_EPSILON: Final = np.spacing(1)


@dataclass(frozen=True)
class OrientedBoxes(Measure):
    """Measures objects by their oriented boxes."""

    kind: ClassVar[str] = 'oriented boxes'
    has_shapes: ClassVar[bool] = True
    has_angles: ClassVar[bool] = True

    def read_shape(
        self,
        entry: CocoSection,
        box: AnnotatedObject,
        size_wh: tuple[int, int] | None,  # noqa: ARG002
    ) -> AnnotatedObject:
        """Return a copy of an object with its oriented box."""
        read = _fit_to_corners if entry.get(_ORIENTED_BOX_KEY) is None else _read_oriented_box
        return replace(box, oriented=read(entry))

    def shape_area(self, box: AnnotatedObject) -> float:
        """Return the area of the oriented box."""
        assert box.oriented is not None
        return box.oriented[2] * box.oriented[3]

    def extra_pycocotools_fields(self, box: AnnotatedObject) -> dict[str, Any]:
        """Return the oriented box."""
        return {_ORIENTED_BOX_KEY: box.oriented}

    def detection_area(self, row: Mapping[str, Any]) -> float:
        """Return the area of the oriented box."""
        return float(row[_ORIENTED_BOX_KEY][2] * row[_ORIENTED_BOX_KEY][3])

    def configure(self, evaluation: Any) -> None:
        """Replace the IoU of upright boxes by the IoU of oriented boxes."""
        evaluation.computeIoU = functools.partial(_coco_iou, evaluation)

    def overlaps(self, one: Shapes, other: Shapes) -> Floats:
        """Return the IoU of oriented boxes."""
        return oriented_overlaps(one.oriented, other.oriented)

    def share_inside(self, one: Shapes, regions: Shapes) -> Floats:
        """Return the share of each oriented box inside each region."""
        everywhere = np.ones(len(regions.oriented), np.bool_)
        return oriented_overlaps(one.oriented, regions.oriented, everywhere)


def _read_oriented_box(entry: CocoSection) -> tuple[float, ...]:
    given = entry.get(_ORIENTED_BOX_KEY)
    if (
        not isinstance(given, list)
        or len(given) != 5
        or not all(map(is_finite, given))
        or min(given[2:4]) < 0
        or max(map(abs, given)) > MAX_COORDINATE
    ):
        raise entry.wrong_value_error(_ORIENTED_BOX_KEY, given, _ORIENTED_BOX_LAYOUT)
    if abs(given[4]) > 2 * math.pi:
        fix = 'if the angles are in degrees, multiply all by pi / 180'
        found = f'an angle of {entry.format_value(given[4])}'
        raise entry.error_at(_ORIENTED_BOX_KEY, found, 'radians, from -2 pi to 2 pi', fix)
    return tuple(map(float, given))


def _fit_to_corners(entry: CocoSection) -> tuple[float, ...]:
    outline = entry.get('segmentation')
    corners = outline[0] if isinstance(outline, list) and len(outline) == 1 else None
    if not isinstance(corners, list) or len(corners) != 8 or not all(map(is_finite, corners)):
        nothing = outline in (None, [])
        found = 'none' if nothing else 'none, and "segmentation" has another shape'
        corner_text = 'one polygon of four corners, [[x, y, x, y, x, y, x, y]]'
        raise entry.error_at(
            _ORIENTED_BOX_KEY,
            found,
            f'{_ORIENTED_BOX_LAYOUT}, or in "segmentation" {corner_text}',
            BOXES_ONLY_FIX,
        )
    points = np.clip(corners, -1e6, 1e6).astype(np.float32).reshape(4, 1, 2)
    (x, y), (width, height), degrees = cv2.minAreaRect(points)
    return x, y, width, height, float(np.radians(degrees))


def _coco_iou(evaluation: Any, image_id: int, category_id: int) -> Any:
    """Replace COCOeval.computeIoU for oriented boxes: return the IoU of all pairs.

    Returns:
        float64 (detections, objects), best score first; [] without detections or objects.
    """
    truth = evaluation._gts[image_id, category_id]
    found = evaluation._dts[image_id, category_id]
    if not truth or not found:
        return []
    order = np.argsort([-row['score'] for row in found], kind='mergesort')
    best = [found[index] for index in order[: evaluation.params.maxDets[-1]]]
    one, other = (
        np.array([row[_ORIENTED_BOX_KEY] for row in rows], np.float64) for rows in (best, truth)
    )
    return oriented_overlaps(one, other, np.array([bool(row['iscrowd']) for row in truth]))


def oriented_overlaps(
    one: Floats, other: Floats, is_crowd: npt.NDArray[np.bool_] | None = None
) -> Floats:
    """Return the intersection over union of all pairs of oriented boxes: float64 (n, m).

    Args:
        one: float64 (n, 5), as ``Detections.oriented``.
        other: float64 (m, 5).
        is_crowd: bool (m,). For a crowd, the result is the share of the first box inside the
            crowd, as in COCO.
    """
    own, others = (side[:, 2:4].prod(axis=1) for side in (one, other))
    shared = np.zeros((len(own), len(others)))
    i, j = np.nonzero(shared_areas(_enclosing_boxes(one), _enclosing_boxes(other)) > 0)
    shared[i, j] = _oriented_shared_areas(one[i], other[j])
    union = own[:, None] + others - shared
    if is_crowd is not None:
        union = np.where(is_crowd, own[:, None], union)
    return ratio(shared, union)


def _oriented_shared_areas(one: Floats, other: Floats) -> Floats:
    """Return the shared areas of pairs of oriented boxes: float64 (n,) from two arrays (n, 5).

    Each side of the second box clips the outline of the first. Corners outside move to the
    nearest point on the side's line. Paths along this line enclose no area, so the order of these
    corners does not matter, and touching or equal boxes need no special case. OpenCV's
    ``rotatedRectangleIntersection`` is unsuitable, because it merges neighbouring corners.
    """
    outline = _box_corners(one)
    sides = _box_corners(other)
    for index in range(4):
        start, end = sides[:, index], sides[:, (index + 1) % 4]
        normal = np.stack([end[:, 1] - start[:, 1], start[:, 0] - end[:, 0]], axis=1)
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), _EPSILON)
        outline = _clip_outlines(outline, start, normal)
    x, y = outline[..., 0], outline[..., 1]
    twice = (x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1)).sum(axis=1)
    area: Floats = np.abs(twice) / 2
    return area


def _clip_outlines(outline: Floats, start: Floats, normal: Floats) -> Floats:
    """Clip outlines by lines: (n, k, 2) becomes (n, 2k, 2), because each edge yields two points.

    Args:
        outline: (n, k, 2), corners of each outline.
        start: (n, 2), a point on the line.
        normal: (n, 2), unit vector towards the side to keep.
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


def _box_corners(oriented: Floats) -> Floats:
    """Return the corners of each box in double precision: float64 (n, 4, 2)."""
    corners: Floats = oriented_corners(oriented)  # type: ignore[arg-type,assignment]
    return corners


def _enclosing_boxes(oriented: Floats) -> Floats:
    """Return the upright boxes around oriented boxes, not clipped at the image: float64 (n, 4)."""
    corners = _box_corners(oriented)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
