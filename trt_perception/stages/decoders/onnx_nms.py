"""A model that ends in ONNX's operator NonMaxSuppression and gives all three of its tensors.

    boxes              (B, N, 4), network pixels; two opposite corners or centre and size, which
                       the operator's attribute center_point_box says and no output shows
    scores             (B, C, N), probabilities
    selected_indices   int64 (M, 3): image, class, box; M depends on the image

The boxes that the operator selected are final: no NMS here. The operator lets one box stand for
several classes. Source: onnx.ai, Operators.md, NonMaxSuppression.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trt_perception.model.candidates import Candidates, corners

__all__ = ['onnx_nms_candidates']

Floats = npt.NDArray[np.float32]


def onnx_nms_candidates(
    boxes: Floats, scores: Floats, selected: npt.NDArray[np.integer], image: int, box_format: str
) -> Candidates:
    """Return the selected boxes of one image.

    Args:
        boxes: float32 (N, 4) of that image.
        scores: float32 (C, N) of that image.
        selected: int (M, 3) of all images.
        image: which one.
        box_format: ``xyxy``, ``yxyx`` or ``cxcywh``.
    """
    ids, indices = selected[selected[:, 0] == image, 1:].T
    # A runtime of fixed shapes fills up with -1.
    valid = (ids >= 0) & (ids < len(scores)) & (indices >= 0) & (indices < len(boxes))
    ids, indices = ids[valid], indices[valid]
    chosen = boxes[indices]
    if box_format == 'cxcywh':
        xyxy = corners(chosen)
    else:
        xyxy = chosen[:, [1, 0, 3, 2]] if box_format == 'yxyx' else chosen
        # The operator takes any two opposite corners.
        xyxy = np.concatenate(
            [np.minimum(xyxy[:, :2], xyxy[:, 2:]), np.maximum(xyxy[:, :2], xyxy[:, 2:])], axis=1
        )
    return Candidates(xyxy, scores[ids, indices], ids)
