"""The boxes that a decoder reads off a model's outputs, before any is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    *(
        'Candidates',
        'Floats',
        'best_class_candidates',
        'cxcywh_to_xyxy',
        'counted_candidates',
        'final_candidates',
    ),
    *('normalised_to_xyxy', 'mask_indices'),
]

#: Computation after the network is in float32.
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """What a decoder read off the outputs of one image; anything may still be no box.

    Attributes:
        xyxy: float32 (n, 4), network pixels; of oriented boxes as they are before they turn.
        scores: float32 (n,), probabilities.
        class_ids: int (n,), into the class names.
        task_values: float32 (n, v), what the task's rows hold behind that, in network pixels; of
            objects with masks of their own the mask's place; None where they hold nothing.
        prototypes: float (m, rows, columns) of the masks, where there are any; or the logits of
            masks that belong to one object each.
    """

    xyxy: Floats
    scores: Floats
    class_ids: npt.NDArray[np.integer]
    task_values: Floats | None = None
    prototypes: npt.NDArray[np.floating] | None = None


def mask_indices(count: int) -> Floats:
    """Return the numbers from 0 on as something that candidates carry: float32 (count, 1)."""
    return np.arange(count, dtype=np.float32)[:, None]


def cxcywh_to_xyxy(cxcywh: Floats) -> Floats:
    """Return left, top, right, bottom from centre x, centre y, width, height: float32 (n, 4)."""
    half = cxcywh[:, 2:] * np.float32(0.5)
    return np.concatenate([cxcywh[:, :2] - half, cxcywh[:, :2] + half], axis=1)


def normalised_to_xyxy(cxcywh: Floats, network_wh: tuple[int, int]) -> Floats:
    """Return left, top, right, bottom in network pixels from centre and size in 0…1."""
    return cxcywh_to_xyxy(cxcywh) * np.array(network_wh * 2, np.float32)


def best_class_candidates(xyxy: Floats, scores: Floats) -> Candidates:
    """Return each box with its best class, the first of equals.

    Args:
        xyxy: float32 (n, 4), network pixels.
        scores: float32 (n, C), probabilities.
    """
    ids = scores.argmax(axis=1)
    return Candidates(xyxy, scores[np.arange(len(scores)), ids], ids)


def final_candidates(
    xyxy: Floats,
    scores: Floats,
    labels: npt.NDArray[np.generic],
    first_label: int = 0,
    task_values: Floats | None = None,
    prototypes: npt.NDArray[np.floating] | None = None,
) -> Candidates:
    """Return final boxes of one image as they are.

    Args:
        xyxy: float32 (K, 4), network pixels.
        scores: float32 (K,).
        labels: float or int (K,). A box whose label is NaN gets the score NaN.
        first_label: the label that the first class name stands for.
        task_values: see Candidates.
        prototypes: see Candidates.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        known = np.isfinite(labels.astype(np.float32))
        scores = np.where(known, scores, np.float32(np.nan))
        labels = np.rint(np.where(known, labels, first_label))
    # Wide labels stay apart from small ones also after the cast to int32.
    ids = np.clip(labels.astype(np.int64) - first_label, -1, 2**31 - 1)
    return Candidates(xyxy, scores, ids, task_values, prototypes)


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
