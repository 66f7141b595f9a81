"""Dense outputs: one box with its class scores for each anchor, as most YOLOs export them.

Shapes, for C classes and N anchors; boxes are centre x, centre y, width, height in network pixels,
scores after sigmoid:

    (B, 4 + C, N)   YOLOv8, 9, 11, 12
    (B, N, 5 + C)   YOLOv5, 7, YOLOX with its grid decoding inside: transposed, with objectness,
                    which multiplies the class scores

What the task carries, keypoints or an angle, stands behind the scores: (B, 4 + C + v, N).
The family needs NMS. The GPU does the same by its own kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trt_perception.model.candidates import Candidates, corners
from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.selection import passing

__all__ = ['dense_candidates']


def dense_candidates(
    output: npt.NDArray[np.floating],
    decoder: DecoderSpec,
    thresholds: Thresholds,
    row_values: int = 0,
) -> Candidates:
    """Return the anchors above the threshold with their best class, the first of equals.

    Args:
        output: float (4 + C, N) of one image, or as ``decoder`` says.
        decoder: layout of the output.
        thresholds: what need not be looked at further.
        row_values: how many values stand behind the scores.
    """
    rows = output.T if decoder.transposed else output
    first_class = 5 if decoder.objectness else 4
    behind = len(rows) - row_values
    classes = rows[first_class:behind].astype(np.float32, copy=False)
    class_ids = classes.argmax(axis=0)
    scores = classes[class_ids, np.arange(classes.shape[1])]
    if decoder.objectness:
        scores = scores * rows[4].astype(np.float32, copy=False)
    chosen = passing(scores, class_ids, thresholds)
    boxes = rows[:4, chosen].astype(np.float32).T
    carried = rows[behind:, chosen].astype(np.float32).T if row_values else None
    return Candidates(corners(boxes), scores[chosen], class_ids[chosen], carried)
