"""Outputs that are final boxes already: NMS is inside the model, or it needs none.

B images of K boxes each; a score of 0 fills what is left of K. None of these needs NMS.

    end_to_end            (B, K, 6): left, top, right, bottom in network pixels, score, class from
                          0. YOLOv10, YOLO26, Ultralytics exports with nms=True. What the task
                          carries, keypoints or an angle, stands behind that: (B, K, 6 + v);
                          oriented boxes are centre x, centre y, width, height.
    efficient_nms         TensorRT's plugin EfficientNMS_TRT: number of boxes int32 (B, 1), boxes
                          (B, K, 4) as left, top, right, bottom in network pixels, scores (B, K),
                          classes int32 (B, K) from 0.
    labels_boxes_scores   RT-DETR, D-FINE and their kin as their own repositories export them:
                          classes int64 (B, K) from 0, boxes (B, K, 4) as left, top, right, bottom
                          in units of the second input orig_target_sizes, scores (B, K). That
                          input is given the network's own size, so they are network pixels too.
    tensorflow            TensorFlow's detection API: boxes (B, K, 4) as top, left, bottom, right
                          in 0…1 of the input, classes float (B, K) from 1, scores (B, K), number
                          of boxes (B,).
    torchvision           for each image boxes (M, 4) as left, top, right, bottom in network
                          pixels, labels int64 (M,), scores (M,); M depends on the image. Label 0
                          is the background, which torchvision's lists of names begin with.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trt_perception.model.candidates import Candidates

__all__ = ['counted_candidates', 'final_candidates', 'tensorflow_candidates']

Floats = npt.NDArray[np.float32]


def final_candidates(
    xyxy: Floats,
    scores: Floats,
    labels: npt.NDArray[np.generic],
    first_label: int = 0,
    carried: Floats | None = None,
) -> Candidates:
    """Return final boxes of one image as they are.

    Args:
        xyxy: float32 (K, 4), network pixels.
        scores: float32 (K,).
        labels: float or int (K,); NaN takes its box along.
        first_label: the label that the first class name stands for.
        carried: float32 (K, v), what the task's rows hold behind that.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        known = np.isfinite(labels.astype(np.float32))
        scores = np.where(known, scores, np.float32(np.nan))
        labels = np.rint(np.where(known, labels, first_label))
    # Wide labels stay apart from small ones also after the cast to int32.
    ids = np.clip(labels.astype(np.int64) - first_label, -1, 2**31 - 1)
    return Candidates(xyxy, scores, ids, carried)


def counted_candidates(
    number: npt.NDArray[np.generic],
    xyxy: Floats,
    scores: Floats,
    labels: npt.NDArray[np.generic],
    first_label: int = 0,
) -> Candidates:
    """Return the first ``number`` of K final boxes; a number outside 0 … K takes none or all."""
    value = float(number.reshape(-1)[0])
    count = int(np.clip(value, 0, len(scores))) if np.isfinite(value) else 0
    return final_candidates(xyxy[:count], scores[:count], labels[:count], first_label)


def tensorflow_candidates(
    yxyx: Floats,
    labels: npt.NDArray[np.generic],
    scores: Floats,
    number: npt.NDArray[np.generic],
    network_wh: tuple[int, int],
) -> Candidates:
    """Return boxes of 0…1 in network pixels, classes counted from 0."""
    xyxy = yxyx[:, [1, 0, 3, 2]] * np.array(network_wh * 2, np.float32)
    return counted_candidates(number, xyxy, scores, labels, first_label=1)
