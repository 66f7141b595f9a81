"""From candidates to detections: the steps that are the same for every family of outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.detections import Detections, MaskGeometry, Masks, oriented_corners
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import Candidates, places
from trt_perception.model.task import DETECT, KeypointSpec, TaskSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.nms import (
    best_candidates,
    non_maximum_suppression,
    oriented_non_maximum_suppression,
)

__all__ = [
    *('Limits', 'centred', 'check_scores', 'check_unit', 'keypoints_in_source'),
    *('mask_geometry', 'masks_of', 'oriented_in_source', 'passing', 'select'),
]

Floats = npt.NDArray[np.float32]
# Quantisation and rounding may lift a probability a little above 1.
_HIGHEST_SCORE: Final = 1.1
# Boxes may reach beyond the image; one of less than two pixels, or of four images, is none.
_BEYOND: Final = 0.5
_FAR_BEYOND: Final = 4
# What an oriented box has: centre, size and angle.
_ORIENTED: Final = 5


@dataclass(frozen=True)
class Limits:
    """How many boxes go on, and which suppress each other.

    Attributes:
        max_detections: most boxes returned.
        max_candidates: most boxes that enter NMS.
        class_agnostic: boxes of different classes suppress each other too.
    """

    max_detections: int
    max_candidates: int = 1024
    class_agnostic: bool = False


def passing(
    scores: Floats, class_ids: npt.NDArray[np.integer], thresholds: Thresholds
) -> npt.NDArray[np.int64]:
    """Return the indices of what is above the threshold and of a class that is asked for."""
    # NaN compares false and leaves here; an infinite score is no score.
    passed = (scores > np.float32(thresholds.confidence_threshold)) & (scores < np.inf)
    if thresholds.class_ids:
        passed &= np.isin(class_ids, thresholds.class_ids)
    indices: npt.NDArray[np.int64] = np.flatnonzero(passed)
    return indices


def select(
    candidates: Candidates,
    letterbox: Letterbox,
    thresholds: Thresholds,
    limits: Limits,
    *,
    classes: int,
    suppress: bool,
    labels: str = '',
    task: TaskSpec = DETECT,
) -> Detections:
    """Turn candidates into detections.

    The steps, all in float32: class filter, score > threshold, boxes that are not finite, carry
    what is not, or have no positive area removed, the ``max_candidates`` best, NMS where the
    family needs it, the ``max_detections`` best, mapped to source pixels, clipped to the image,
    empty ones removed.

    Args:
        candidates: as the family reads them.
        letterbox: geometry of the frame.
        thresholds: confidence, IoU and class filter.
        limits: how many boxes go on.
        classes: how many class names there are.
        suppress: apply NMS.
        labels: how the family counts classes, in parentheses, for messages.
        task: what the candidates carry.

    Raises:
        EngineError: a detection is of a class that has no name, or a score is no probability.
    """
    chosen = _whole(candidates, passing(candidates.scores, candidates.class_ids, thresholds))
    xyxy, scores = candidates.xyxy[chosen], candidates.scores[chosen]
    ids = candidates.class_ids[chosen].astype(np.int32)
    _check(ids, scores, classes, labels)
    carried = None if candidates.carried is None else candidates.carried[chosen]
    boxes = xyxy
    if task.is_oriented:
        assert carried is not None
        boxes = centred(xyxy, carried[:, 0])
    kept = _best(boxes, scores, ids, limits, thresholds.iou_threshold if suppress else None)
    source, oriented = letterbox.to_source(xyxy[kept]), None
    if task.is_oriented:
        source, oriented = oriented_in_source(boxes[kept], letterbox)
    inside = (source[:, 2] > source[:, 0]) & (source[:, 3] > source[:, 1])
    source, kept = source[inside], kept[inside]
    keypoints = masks = None
    if task.keypoints is not None:
        assert carried is not None
        keypoints = keypoints_in_source(carried[kept], task.keypoints, letterbox)
    if task.has_masks:
        assert carried is not None
        assert candidates.prototypes is not None
        parts = carried[kept], candidates.prototypes
        masks = masks_of(source, *parts, letterbox, is_own=not task.mask_coefficients)
    turned = None if oriented is None else oriented[inside]
    return Detections(source, scores[kept], ids[kept], keypoints, turned, masks)


def _best(
    boxes: Floats,
    scores: Floats,
    ids: npt.NDArray[np.int32],
    limits: Limits,
    iou: float | None,
) -> npt.NDArray[np.int64]:
    """Return the indices of the best, best first; ``iou`` None: boxes do not suppress others."""
    kept = best_candidates(scores, limits.max_candidates)
    if iou is not None:
        oriented = boxes.shape[1] == _ORIENTED
        suppression = oriented_non_maximum_suppression if oriented else non_maximum_suppression
        where = boxes[kept], ids[kept], iou, limits.max_detections
        kept = kept[suppression(*where, class_agnostic=limits.class_agnostic)]
    return kept[: limits.max_detections]


def _check(
    ids: npt.NDArray[np.int32], scores: npt.NDArray[np.float32], classes: int, labels: str
) -> None:
    _check_classes(ids, classes, labels)
    check_scores(scores)


def _whole(candidates: Candidates, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return those of the chosen that are finite and have a positive area."""
    xyxy = candidates.xyxy[chosen]
    whole = np.isfinite(xyxy).all(axis=1) & (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    if candidates.carried is not None:
        whole &= np.isfinite(candidates.carried[chosen]).all(axis=1)
    return chosen[whole]


def _check_classes(ids: npt.NDArray[np.int32], classes: int, labels: str) -> None:
    """Refuse detections of a class that has no name."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < classes:
        raise EngineError(
            "the model's output",
            f'class {ids.max() if ids.max() >= classes else ids.min()}',
            expected=f'classes 0 to {classes - 1}, for {classes} class names',
            fix=f'correct model.class_names, or the manifest, and model.decoder{labels}',
        )


def masks_of(
    xyxy: Floats,
    coefficients: Floats,
    prototypes: npt.NDArray[np.floating],
    letterbox: Letterbox,
    *,
    is_own: bool,
) -> Masks:
    """Return what masks are made of, in memory of their own: outputs are written again.

    Args:
        xyxy: float32 (n, 4), in source pixels.
        coefficients: float32 (n, m), or the places of masks of their own.
        prototypes: float (m, rows, columns), or the logits of masks.
        letterbox: geometry of the frame.
        is_own: each object has a mask of its own.

    Raises:
        EngineError: there are objects, and masks have no pixels.
    """
    if len(xyxy) and not prototypes[:1].size:
        raise EngineError(
            "the model's output",
            f'masks or prototypes of {prototypes.shape[2]} x {prototypes.shape[1]} pixels',
            expected='1 x 1 or more',
            fix='export it again, with fixed shapes',
        )
    if is_own:  # only those that are left
        prototypes = prototypes[coefficients[:, 0].astype(np.int64)]
        coefficients = places(len(xyxy))
    return Masks(
        xyxy,
        coefficients,
        np.array(prototypes if len(xyxy) else prototypes[:, :0, :0], np.float32),
        mask_geometry(letterbox, prototypes.shape[1:]),
        is_own,
    )


def mask_geometry(letterbox: Letterbox, shape: tuple[int, ...]) -> MaskGeometry:
    """Return where an image lies in prototypes of (rows, columns)."""
    rows, columns = shape
    share = columns / letterbox.network_wh[0], rows / letterbox.network_wh[1]
    scale = [
        part * resized / side
        for part, resized, side in zip(
            share, letterbox.resized_wh, letterbox.source_wh, strict=True
        )
    ]
    return MaskGeometry(
        letterbox.source_wh,
        (scale[0], scale[1]),
        (share[0] * letterbox.pad_left, share[1] * letterbox.pad_top),
        _parts(letterbox, columns),
    )


def _parts(letterbox: Letterbox, columns: int) -> int:
    """Return into how many parts a prototype pixel is divided so that padding is whole ones."""
    stride = max(1, letterbox.network_wh[0] // max(1, columns))
    sides = [
        side - resized
        for side, resized in zip(letterbox.network_wh, letterbox.resized_wh, strict=True)
    ]
    either = sides[0] | sides[1]
    return max(1, stride // math.gcd(stride, either | either // 2))


def centred(xyxy: Floats, angles: Floats) -> Floats:
    """Return centre x, centre y, width, height and angle: float32 (n, 5)."""
    center, size = (xyxy[:, :2] + xyxy[:, 2:]) * np.float32(0.5), xyxy[:, 2:] - xyxy[:, :2]
    return np.concatenate([center, size, angles[:, None]], axis=1)


def oriented_in_source(oriented: Floats, letterbox: Letterbox) -> tuple[Floats, Floats]:
    """Return oriented boxes in source pixels, where only the centre is clipped to the image.

    Both axes of a letterbox have nearly the same ratio, so the size is scaled along the box's own
    axes. Angles half a turn apart are the same box: they become -π/2 to π/2.

    Args:
        oriented: float32 (n, 5), in network pixels.
        letterbox: geometry of the frame.

    Returns:
        float32 (n, 4), the upright boxes around them, clipped, which may be empty; float32 (n, 5).
    """
    center = letterbox.points_to_source(oriented[:, :2])
    turns = np.floor(oriented[:, 4] / np.float32(np.pi) + np.float32(0.5))
    # Of very many turns not even the quarter is left in float32.
    quarter = np.float32(np.pi / 2)
    angles = (oriented[:, 4] - turns * np.float32(np.pi)).clip(-quarter, quarter)
    size = oriented[:, 2:4] * letterbox.ratio
    turned = np.concatenate([center, size, angles[:, None]], axis=1)
    corners = oriented_corners(turned)
    limit = np.array(letterbox.source_wh, np.float32)
    sides = [corners.min(axis=1), corners.max(axis=1)]
    upright = np.concatenate([side.clip(0, limit) for side in sides], axis=1)
    # A size may leave what float32 holds.
    upright[~(np.isfinite(size) & (size > 0)).all(axis=1)] = 0
    return upright, turned


def keypoints_in_source(carried: Floats, keypoints: KeypointSpec, letterbox: Letterbox) -> Floats:
    """Return x, y and score of each keypoint in source pixels, clipped to the image.

    Args:
        carried: float32 (n, v), as the rows hold them.
        keypoints: what they are.
        letterbox: geometry of the frame.

    Returns:
        float32 (n, k, 3).
    """
    count = len(keypoints.names)
    found = np.ones((len(carried), count, 3), np.float32)
    found[:, :, : keypoints.values] = carried.reshape(-1, count, keypoints.values)
    found[:, :, :2] = letterbox.points_to_source(found[:, :, :2])
    found[:, :, 2] = found[:, :, 2].clip(0, 1)
    return found


def check_scores(scores: Floats) -> None:
    """Refuse scores that are no probabilities: thresholds and mAP mean nothing with them.

    Args:
        scores: float32 (n,), those of boxes that count.

    Raises:
        EngineError: one is above 1 by more than what quantisation and rounding explain.
    """
    if len(scores) and (highest := float(scores.max())) > _HIGHEST_SCORE:
        raise EngineError(
            "the model's output",
            f'a score of {highest:.4g}',
            expected='scores that are probabilities, 0 to 1',
            fix='export it with its sigmoid or softmax, or correct model.decoder',
        )


def check_unit(
    candidates: Candidates, network_wh: tuple[int, int], decoder: str, *, normalised: bool
) -> None:
    """Refuse boxes of which every single one is in another unit than the decoder expects.

    Args:
        candidates: of one image, in network pixels; those of score 0 fill up and do not count.
        network_wh: size of the network's input.
        decoder: its name, for messages.
        normalised: the outputs hold 0…1 of the network's input, else network pixels.

    Raises:
        EngineError: pixels are expected and all boxes lie within 0…1, or the other way round.
    """
    counted = (candidates.scores > 0) & np.isfinite(candidates.xyxy).all(axis=1)
    counted &= candidates.xyxy.any(axis=1)
    if not counted.any():
        return
    boxes = np.abs(candidates.xyxy[counted])
    if normalised:
        largest = (boxes / np.array(network_wh * 2, np.float32)).max(axis=1)
        wrong, wanted, found = largest.min() > _FAR_BEYOND, '0…1 of the input', 'network pixels'
    else:
        largest = boxes.max(axis=1)
        wrong, wanted, found = largest.max() < 1 + _BEYOND, 'network pixels', '0…1'
    if wrong:
        raise EngineError(
            f'decoder {decoder}',
            f'coordinates up to {largest.max():.4g}, as of boxes in {found}',
            expected=f'boxes in {wanted}',
            fix='correct model.decoder, or the manifest: rtdetr_end_to_end reads rows of '
            'centre, size, '
            'score and class in 0…1, end_to_end rows of corners in network pixels',
        )
