# SPDX-License-Identifier: Apache-2.0
"""Select the final detections from candidates. These steps are equal for all decoder families."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError, UnnamedClassError
from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import Candidates
from trt_perception.model.decoder import ObjectDecoder
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.task import Task
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.nms import (
    best_candidates,
    non_maximum_suppression,
    oriented_non_maximum_suppression,
)

Floats = npt.NDArray[np.float32]
# Quantisation and rounding may lift a probability a little above 1.
_MAX_VALID_SCORE: Final = 1.1
# Limits of `_check_box_unit`, which allow that correct boxes reach beyond the image. Boxes are not
# in pixels if all coordinates are below 1.5. Boxes are not fractions of the input if each box has
# a coordinate above 4.
_MAX_OVERHANG: Final = 0.5
_MAX_COORDINATE_IN_INPUTS: Final = 4
# Values of an oriented box: centre, size and angle.
_ORIENTED_VALUE_COUNT: Final = 5


def passing_indices(
    scores: Floats, class_ids: npt.NDArray[np.integer], thresholds: Thresholds
) -> npt.NDArray[np.int64]:
    """Return the indices of scores above the threshold whose class is in the class filter.

    Args:
        scores: (n,). NaN and infinite scores never pass.
        class_ids: (n,).

    Raises:
        OutputError: there are scores, and all are NaN.
    """
    passed = (scores > np.float32(thresholds.confidence_threshold)) & (scores < np.inf)
    if thresholds.class_ids:
        passed &= np.isin(class_ids, thresholds.class_ids)
    indices: npt.NDArray[np.int64] = np.flatnonzero(passed)
    if not indices.size and scores.size and np.isnan(scores).all():
        raise nan_scores_error()
    return indices


def select_detections(
    decoder: ObjectDecoder,
    candidates: Candidates,
    *,
    spec: ModelSpec,
    letterbox: Letterbox,
    thresholds: Thresholds,
    limits: DecodingLimits,
) -> Detections:
    """Select the detections of one image from its candidates.

    The steps, all in float32:

    1. Keep candidates whose class is in the filter and whose score is above the threshold.
    2. Remove candidates with values that are not finite, or without a positive area.
    3. Keep the ``max_candidates`` best.
    4. Apply NMS if the family needs NMS, and keep the ``max_detections`` best.
    5. Map to source pixels, clip to the image, and remove empty boxes.

    Args:
        candidates: the candidates of one image, in network pixels.
        limits: ``max_candidates``, ``max_detections``, and the scope of NMS.

    Raises:
        OutputError: a class has no name, a score is not a probability, all scores are NaN, or the
            boxes have another unit than the decoder expects.
    """
    task = spec.task
    if not decoder.needs_nms:
        _check_box_unit(candidates, spec.preprocessing.input_size, decoder)
    chosen = _valid_boxes(
        candidates, passing_indices(candidates.scores, candidates.class_ids, thresholds)
    )
    xyxy, scores = candidates.xyxy[chosen], candidates.scores[chosen]
    if decoder.has_normalised_boxes and spec.pixel_mask is not None:
        xyxy = _image_boxes_to_network(xyxy, letterbox)
    ids = candidates.class_ids[chosen].astype(np.int32)
    _check_class_ids(ids, len(spec.class_names), decoder)
    check_best_score(float(scores.max(initial=0)))
    task_values = None if candidates.task_values is None else candidates.task_values[chosen]
    boxes = task.nms_boxes(xyxy, task_values)
    iou = thresholds.iou_threshold if decoder.needs_nms else None
    kept = _best_after_nms(boxes, scores, ids, limits, iou)
    # Without NMS, max_detections alone limits the boxes.
    left_out = max(0, len(chosen) - limits.max_candidates) if decoder.needs_nms else 0
    return build_detections(
        task,
        Candidates(
            boxes[kept],
            scores[kept],
            ids[kept],
            None if task_values is None else task_values[kept],
            candidates.prototypes,
        ),
        letterbox,
        left_out,
    )


def build_detections(
    task: Task, found: Candidates, letterbox: Letterbox, left_out: int = 0
) -> Detections:
    """Return detections in source pixels, without boxes outside the image.

    Args:
        found: the selected boxes, with ``xyxy`` as ``task.nms_boxes`` returns it.
        left_out: see ``Detections``.
    """
    xyxy, oriented = task.boxes_in_source(found.xyxy, letterbox)
    inside = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    xyxy = xyxy[inside]
    task_values = None if found.task_values is None else found.task_values[inside]
    return Detections(
        xyxy,
        found.scores[inside],
        found.class_ids[inside].astype(np.int32, copy=False),
        oriented=None if oriented is None else oriented[inside],
        **task.detection_fields(xyxy, task_values, found.prototypes, letterbox),
        left_out=left_out,
    )


def _image_boxes_to_network(xyxy: Floats, letterbox: Letterbox) -> Floats:
    """Convert boxes that are relative to the visible image to network pixels.

    A transformer with the input ``pixel_mask`` outputs such boxes, because it ignores the padding.

    Args:
        xyxy: float32 (n, 4), the fractions multiplied by the size of the network's input.
    """
    left, top, right, bottom = letterbox.image_xyxy
    visible, network = np.array([(right - left, bottom - top), letterbox.network_wh], np.float32)
    corner = np.array([left, top] * 2, np.float32)
    moved: Floats = xyxy * np.tile(visible / network, 2) + corner
    return moved


def _best_after_nms(
    boxes: Floats,
    scores: Floats,
    ids: npt.NDArray[np.int32],
    limits: DecodingLimits,
    iou: float | None,
) -> npt.NDArray[np.int64]:
    """Return the indices of the best boxes, best first. Without ``iou``, NMS is skipped."""
    kept = best_candidates(scores, limits.max_candidates)
    if iou is not None:
        oriented = boxes.shape[1] == _ORIENTED_VALUE_COUNT
        suppression = oriented_non_maximum_suppression if oriented else non_maximum_suppression
        where = boxes[kept], ids[kept], iou, limits.max_detections
        kept = kept[suppression(*where, class_agnostic=limits.class_agnostic)]
    return kept[: limits.max_detections]


def _valid_boxes(candidates: Candidates, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the chosen indices whose values are finite and whose boxes have a positive area."""
    xyxy = candidates.xyxy[chosen]
    is_valid = (
        np.isfinite(xyxy).all(axis=1) & (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    )
    if candidates.task_values is not None:
        is_valid &= np.isfinite(candidates.task_values[chosen]).all(axis=1)
    return chosen[is_valid]


def _check_class_ids(ids: npt.NDArray[np.int32], classes: int, decoder: ObjectDecoder) -> None:
    """Refuse detections whose class has no name."""
    labels = ''
    if decoder.is_background_first:
        labels = ' (label 0 is the background, and its name must be the first class name)'
    if len(ids) and not 0 <= ids.min() <= ids.max() < classes:
        raise UnnamedClassError(
            "the model's output",
            f'class {ids.max() if ids.max() >= classes else ids.min()}',
            expected=f'classes 0 to {classes - 1}, for {classes} class names',
            fix=f'correct model.class_names or the manifest, and model.decoder{labels}',
        )


def check_best_score(score: float) -> None:
    """Refuse scores that are not probabilities, because thresholds and mAP need probabilities.

    Args:
        score: the highest score of the valid boxes above the threshold; 0 without boxes.

    Raises:
        OutputError: the score exceeds 1 by more than quantisation and rounding can explain.
    """
    if score > _MAX_VALID_SCORE:
        raise OutputError(
            "the model's output",
            f'a score of {score:.4g}',
            expected='scores that are probabilities, 0 to 1',
            fix='export the model with its sigmoid or softmax, or correct model.decoder',
        )


def nan_scores_error() -> OutputError:
    """Return the error of an image whose scores are all NaN."""
    return OutputError(
        "the model's output",
        'NaN in place of every score',
        expected='scores that are probabilities, 0 to 1',
        fix='build the engine with --precision fp32 if it overflows in FP16, or correct '
        'model.decoder',
    )


def _check_box_unit(
    candidates: Candidates, network_wh: tuple[int, int], decoder: ObjectDecoder
) -> None:
    """Refuse boxes if all boxes have another unit than the decoder expects.

    Args:
        candidates: candidates of one image, in network pixels. Candidates with score 0 are
            padding and are ignored.

    Raises:
        OutputError: pixels are expected and all boxes lie within 0…1, or the reverse.
    """
    counted = (candidates.scores > 0) & np.isfinite(candidates.xyxy).all(axis=1)
    counted &= candidates.xyxy.any(axis=1)
    if not counted.any():
        return
    boxes = np.abs(candidates.xyxy[counted])
    if decoder.has_normalised_boxes:
        largest = (boxes / np.array(network_wh * 2, np.float32)).max(axis=1)
        wrong, wanted, found = (
            largest.min() > _MAX_COORDINATE_IN_INPUTS,
            '0…1 of the input',
            'network pixels',
        )
    else:
        largest = boxes.max(axis=1)
        wrong, wanted, found = largest.max() < 1 + _MAX_OVERHANG, 'network pixels', '0…1'
    if wrong:
        raise OutputError(
            f'decoder {decoder}',
            f'coordinates up to {largest.max():.4g}, typical of boxes in {found}',
            expected=f'boxes in {wanted}',
            fix='correct model.decoder or the manifest: rtdetr_end_to_end reads rows of '
            'centre, size, '
            'score and class in 0…1, end_to_end reads rows of corners in network pixels',
        )
