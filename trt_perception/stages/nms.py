"""Which boxes stay: candidate selection and non-maximum suppression, on the host.

The reference for the GPU's kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ['best_candidates', 'non_maximum_suppression']

Boxes = npt.NDArray[np.float32]


def best_candidates(scores: npt.NDArray[np.float32], limit: int) -> npt.NDArray[np.int64]:
    """Return the indices of the ``limit`` best scores, best first, equal scores in order of index.

    Args:
        scores: float32 (n,), no NaN.
        limit: how many at most.

    Returns:
        int64 (min(n, limit),).
    """
    order: npt.NDArray[np.int64] = np.argsort(-scores, kind='stable')[:limit]
    return order


# Areas beyond float32 make the IoU NaN, which suppresses nothing.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def non_maximum_suppression(
    xyxy: Boxes,
    class_ids: npt.NDArray[np.int32],
    iou_threshold: float,
    limit: int,
    *,
    class_agnostic: bool = False,
) -> npt.NDArray[np.int64]:
    """Walk boxes from best to worst.

    Each one that stays suppresses those that overlap it too much.

    IoU = intersection / (area_a + area_b - intersection), in float32; a box is suppressed where
    IoU > iou_threshold.

    Args:
        xyxy: float32 (n, 4), finite, of positive area, sorted best score first.
        class_ids: int32 (n,).
        iou_threshold: in [0, 1].
        limit: stop when so many stay.
        class_agnostic: boxes of different classes suppress each other too.

    Returns:
        int64 (m,), m <= limit: the indices that stay, ascending.
    """
    left, top, right, bottom = np.ascontiguousarray(xyxy.T)
    area = (right - left) * (bottom - top)
    alive = np.ones(len(xyxy), np.bool_)
    kept: list[int] = []
    threshold = np.float32(iou_threshold)
    zero = np.float32(0)
    for index in range(len(xyxy)):
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
