"""Transformers: a fixed number of queries Q, each with its class scores and one box.

Boxes are centre x, centre y, width, height in 0…1 of the network's input. None needs NMS.

    detr, sigmoid        logits (B, Q, C) and boxes (B, Q, 4): RT-DETR, D-FINE and Deformable DETR
                         as Hugging Face exports them, RF-DETR. Every class of a query is a
                         detection of its own, as those models are trained and measured.
    detr, softmax        logits (B, Q, C + 1), the last of which says "no object": DETR, YOLOS. A
                         query is a detection of its best class.
    rtdetr_ultralytics   (B, Q, 4 + C): boxes, then probabilities, in one tensor. A query is a
                         detection of its best class. Ultralytics up to 8.4.46.
    rtdetr_end_to_end    (B, K, 6): box, probability, class from 0, the K best of all classes of
                         all queries. Ultralytics from 8.4.47.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.candidates import Candidates, corners, places
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.decoders.final_boxes import final_candidates
from trt_perception.stages.selection import passing

__all__ = [
    'detr_candidates',
    'rtdetr_end_to_end_candidates',
    'rtdetr_ultralytics_candidates',
]

Floats = npt.NDArray[np.float32]


def detr_candidates(
    logits: Floats,
    boxes: Floats,
    activation: str,
    network_wh: tuple[int, int],
    thresholds: Thresholds,
    *,
    with_places: bool = False,
) -> Candidates:
    """Return what the queries of one image say.

    Args:
        logits: float32 (Q, C), or (Q, C + 1) for softmax.
        boxes: float32 (Q, 4).
        activation: ``sigmoid`` or ``softmax``.
        network_wh: size of the network's input.
        thresholds: what need not be looked at further.
        with_places: carry the query's place, at which its mask stands.
    """
    xyxy = _network_pixels(boxes, network_wh)
    if activation == 'softmax':
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        found = _best_class(xyxy, (raised / raised.sum(axis=1, keepdims=True))[:, :-1])
        return replace(found, carried=places(len(xyxy))) if with_places else found
    scores: Floats = np.float32(1) / (np.float32(1) + np.exp(-logits.reshape(-1)))
    ids = np.arange(scores.size) % logits.shape[1]
    chosen = passing(scores, ids, thresholds)
    query = chosen // logits.shape[1]
    carried = places(len(xyxy))[query] if with_places else None
    return Candidates(xyxy[query], scores[chosen], ids[chosen], carried)


def rtdetr_ultralytics_candidates(output: Floats, network_wh: tuple[int, int]) -> Candidates:
    """Return what the queries of one image say: float32 (Q, 4 + C).

    Raises:
        EngineError: behind the boxes stand a score and a class number: another layout, which has
            the same shape where there are two classes.
    """
    if output.shape[1] == 6 and len(output) and np.isin(output[:, 5], (0, 1)).all():
        raise EngineError(
            "the model's output",
            'the last of two probabilities is 0 or 1 in every row, as a class number is; rows '
            'of box, '
            'score and class are what Ultralytics exports for RT-DETR since 8.4.47',
            fix='set model.decoder to rtdetr_end_to_end, or make the manifest again',
        )
    return _best_class(_network_pixels(output[:, :4], network_wh), output[:, 4:])


def rtdetr_end_to_end_candidates(output: Floats, network_wh: tuple[int, int]) -> Candidates:
    """Return the best boxes of one image in network pixels: float32 (K, 6)."""
    boxes = _network_pixels(output[:, :4], network_wh)
    return final_candidates(boxes, output[:, 4], output[:, 5])


def _best_class(xyxy: Floats, scores: Floats) -> Candidates:
    ids = scores.argmax(axis=1)
    return Candidates(xyxy, scores[np.arange(len(scores)), ids], ids)


def _network_pixels(boxes: Floats, network_wh: tuple[int, int]) -> Floats:
    return corners(boxes) * np.array(network_wh * 2, np.float32)
