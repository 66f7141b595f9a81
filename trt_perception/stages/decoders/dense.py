"""Dense outputs: one box with its class scores for each anchor, as most YOLOs export them.

Shapes, for C classes and N anchors; boxes are centre x, centre y, width, height in network pixels,
scores after sigmoid:

    (1, 4 + C, N)   YOLOv8, 9, 11, 12
    (1, N, 5 + C)   YOLOv5, 7: transposed, with objectness, which multiplies the class scores
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.letterbox import Letterbox
from trt_perception.manifest import DecoderSpec
from trt_perception.stages.nms import best_candidates
from trt_perception.stages.nms import non_maximum_suppression

__all__ = ['decode_dense']


# A network may say anything; what is no box leaves in a step of its own, not with a warning.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def decode_dense(
    output: npt.NDArray[np.floating],
    decoder: DecoderSpec,
    letterbox: Letterbox,
    thresholds: Thresholds,
    *,
    max_detections: int,
    max_candidates: int = 1024,
    class_agnostic: bool = False,
) -> Detections:
    """Turn one dense output into detections.

    The steps, the same on host and GPU, all in float32: best class of each anchor (the first of
    equals), class filter, score > threshold, non-finite boxes and boxes without positive area
    removed, the ``max_candidates`` best, NMS, the ``max_detections`` best, mapped to source
    pixels, clipped to the image, empty ones removed.

    Args:
        output: float (1, 4 + C, N), or as ``decoder`` says.
        decoder: layout of the output.
        letterbox: geometry of the frame.
        thresholds: confidence, IoU and class filter.
        max_detections: most boxes returned.
        max_candidates: most boxes that enter NMS.
        class_agnostic: boxes of different classes suppress each other too.
    """
    rows = output[0].T if decoder.transposed else output[0]
    first_class = 5 if decoder.objectness else 4
    classes = rows[first_class:].astype(np.float32, copy=False)
    class_ids = classes.argmax(axis=0)
    scores = classes[class_ids, np.arange(classes.shape[1])]
    if decoder.objectness:
        scores = scores * rows[4].astype(np.float32, copy=False)
    # NaN compares false and leaves here; an infinite score is no score.
    passed = (scores > np.float32(thresholds.confidence)) & (scores < np.inf)
    if thresholds.class_ids:
        passed &= np.isin(class_ids, thresholds.class_ids)
    chosen = np.flatnonzero(passed)
    xyxy = _corners(rows[:4, chosen].astype(np.float32))
    whole = np.isfinite(xyxy).all(axis=1) & (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    chosen, xyxy = chosen[whole], xyxy[whole]
    best = best_candidates(scores[chosen], max_candidates)
    chosen, xyxy = chosen[best], xyxy[best]
    ids = class_ids[chosen].astype(np.int32)
    kept = non_maximum_suppression(
        xyxy, ids, thresholds.iou, max_detections, class_agnostic=class_agnostic
    )
    source = letterbox.to_source(xyxy[kept])
    inside = (source[:, 2] > source[:, 0]) & (source[:, 3] > source[:, 1])
    return Detections(source[inside], scores[chosen[kept]][inside], ids[kept][inside])


def _corners(cxcywh: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return left, top, right, bottom: float32 (n, 4) from centre and size (4, n)."""
    half = cxcywh[2:] * np.float32(0.5)
    return np.concatenate([cxcywh[:2] - half, cxcywh[:2] + half]).T
