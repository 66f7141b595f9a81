# SPDX-License-Identifier: Apache-2.0
"""Select candidates and apply non-maximum suppression on the host.

The GPU kernels must give the same results.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float32]
# Number of oriented boxes whose overlaps with all better boxes are computed at once.
_BOXES_PER_BLOCK: Final = 128
_EPSILON: Final = np.float32(1e-7)


def best_candidates(scores: npt.NDArray[np.float32], limit: int) -> npt.NDArray[np.int64]:
    """Return the indices of the best scores, best first. Equal scores keep the order of indices.

    Args:
        scores: float32 (n,), without NaN.

    Returns:
        int64 (min(n, limit),).
    """
    order: npt.NDArray[np.int64] = np.argsort(-scores, kind='stable')[:limit]
    return order


# Areas above the range of float32 make the IoU NaN, which suppresses nothing.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def non_maximum_suppression(
    boxes: Boxes,
    class_ids: npt.NDArray[np.int32],
    iou_threshold: float,
    limit: int,
    *,
    class_agnostic: bool = False,
) -> npt.NDArray[np.int64]:
    """Remove boxes that overlap a better remaining box by more than the threshold.

    The boxes are visited from best to worst. IoU = intersection / (area_a + area_b -
    intersection), in float32. A box is removed if IoU > iou_threshold.

    Args:
        boxes: float32 (n, 4), finite, of positive area, sorted best score first.
        class_ids: int32 (n,).
        iou_threshold: in [0, 1].
        class_agnostic: whether boxes of different classes suppress each other too.

    Returns:
        int64 (m,), m <= limit: the indices of the remaining boxes, ascending.
    """
    left, top, right, bottom = np.ascontiguousarray(boxes.T)
    area = (right - left) * (bottom - top)
    alive = np.ones(len(boxes), np.bool_)
    kept: list[int] = []
    threshold = np.float32(iou_threshold)
    zero = np.float32(0)
    for index in range(len(boxes)):
        if not alive[index]:
            continue
        kept.append(index)
        if len(kept) == limit:
            break
        rest = slice(index + 1, None)
        width = np.minimum(right[index], right[rest]) - np.maximum(left[index], left[rest])
        height = np.minimum(bottom[index], bottom[rest]) - np.maximum(top[index], top[rest])
        intersection = np.maximum(width, zero) * np.maximum(height, zero)
        suppressed = intersection / (area[index] + area[rest] - intersection) > threshold
        if not class_agnostic:
            suppressed &= class_ids[rest] == class_ids[index]
        alive[rest] &= ~suppressed
    return np.array(kept, np.int64)


def oriented_non_maximum_suppression(
    boxes: Boxes,
    class_ids: npt.NDArray[np.int32],
    iou_threshold: float,
    limit: int,
    *,
    class_agnostic: bool = False,
) -> npt.NDArray[np.int64]:
    """Remove oriented boxes that overlap any better box by more than the threshold.

    As in Ultralytics, removed boxes also suppress others (Fast NMS; Bolya et al., YOLACT, arXiv
    1904.02689). The overlap is ``prob_iou``.

    Args:
        boxes: float32 (n, 5), finite, of positive size, sorted best score first.
        class_ids: int32 (n,).
        iou_threshold: in [0, 1].
        class_agnostic: whether boxes of different classes suppress each other too.

    Returns:
        int64 (m,), m <= limit: the indices of the remaining boxes, ascending.
    """
    kept: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    threshold = np.float32(iou_threshold)
    places = np.arange(len(boxes))
    for start in range(0, len(boxes), _BOXES_PER_BLOCK):
        block = slice(start, start + _BOXES_PER_BLOCK)
        better = slice(0, start + _BOXES_PER_BLOCK)
        suppressed = prob_iou(boxes[better], boxes[block]) > threshold
        suppressed &= places[better, None] < places[block]
        if not class_agnostic:
            suppressed &= class_ids[better, None] == class_ids[block]
        kept.append(start + np.flatnonzero(~suppressed.any(axis=0)))
        if sum(map(len, kept)) >= limit:
            break
    return np.concatenate(kept)[:limit]


@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def prob_iou(one: Boxes, other: Boxes) -> npt.NDArray[np.float32]:
    """Return the overlap of oriented boxes, computed from normal distributions.

    The overlap is 1 - Hellinger distance (Murrugarra-Llerena et al., Gaussian Bounding Boxes and
    Probabilistic Intersection-over-Union, arXiv 2106.06072). Ultralytics uses the same epsilons.

    Args:
        one: float32 (n, 5): centre x, centre y, width and height in pixels, angle in radians.
        other: float32 (m, 5), in the same form.

    Returns:
        float32 (n, m).
    """
    a1, b1, c1 = (part[:, None] for part in _covariances(one))
    a2, b2, c2 = _covariances(other)
    a, b, c = a1 + a2, b1 + b2, c1 + c2
    x, y = one[:, None, 0] - other[:, 0], one[:, None, 1] - other[:, 1]
    determinant = a * b - c * c
    distance = (a * y * y + b * x * x) / (determinant + _EPSILON) * np.float32(0.25)
    distance -= c * x * y / (determinant + _EPSILON) * np.float32(0.5)
    sizes = np.maximum(a1 * b1 - c1 * c1, 0) * np.maximum(a2 * b2 - c2 * c2, 0)
    ratio = determinant / (4 * np.sqrt(sizes) + _EPSILON)
    distance += np.log(ratio + _EPSILON) * np.float32(0.5)
    distance = np.clip(distance, _EPSILON, np.float32(100))
    overlap: npt.NDArray[np.float32] = 1 - np.sqrt(1 - np.exp(-distance) + _EPSILON)
    return overlap


def _covariances(oriented: Boxes) -> tuple[npt.NDArray[np.float32], ...]:
    """Return a, b and c of each box's covariance matrix [[a, c], [c, b]], float32 (n,)."""
    width, height = (oriented[:, 2:4] ** 2 / 12).T
    cos, sin = np.cos(oriented[:, 4]), np.sin(oriented[:, 4])
    cos2, sin2 = cos**2, sin**2
    return (
        width * cos2 + height * sin2,
        width * sin2 + height * cos2,
        (width - height) * cos * sin,
    )
