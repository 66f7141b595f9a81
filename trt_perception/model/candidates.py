# SPDX-License-Identifier: Apache-2.0
"""The boxes that a decoder reads from a model's outputs, before thresholds and NMS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: The computation after the network uses float32.
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """The boxes that a decoder read from the outputs of one image. No value was checked yet.

    Attributes:
        xyxy: float32 (n, 4), network pixels: left, top, right, bottom. For oriented boxes: the box
            before its rotation around its centre.
        scores: float32 (n,), probabilities.
        class_ids: int (n,), indices of class names.
        task_values: float32 (n, v), the values behind the scores of each row, in network pixels.
            With one mask per object: (n, 1), the index of the object's mask. None if v is 0.
        prototypes: float (m, rows, columns), prototypes of masks, or the logits of m masks if each
            object has a mask of its own. None without masks.
    """

    xyxy: Floats
    scores: Floats
    class_ids: npt.NDArray[np.integer]
    task_values: Floats | None = None
    prototypes: npt.NDArray[np.floating] | None = None


def mask_indices(count: int) -> Floats:
    """Return the indices of ``count`` masks as task values: float32 (count, 1), from 0."""
    return np.arange(count, dtype=np.float32)[:, None]


def cxcywh_to_xyxy(cxcywh: Floats) -> Floats:
    """Convert centre x, centre y, width, height to left, top, right, bottom: float32 (n, 4)."""
    half = cxcywh[:, 2:] * np.float32(0.5)
    return np.concatenate([cxcywh[:, :2] - half, cxcywh[:, :2] + half], axis=1)


def normalised_to_xyxy(cxcywh: Floats, network_wh: tuple[int, int]) -> Floats:
    """Convert boxes in 0…1 of the input to left, top, right, bottom in network pixels.

    Args:
        cxcywh: float32 (n, 4), centre x, centre y, width, height in 0…1.
        network_wh: width and height of the network's input in pixels.
    """
    return cxcywh_to_xyxy(cxcywh) * np.array(network_wh * 2, np.float32)


def best_class_candidates(xyxy: Floats, scores: Floats) -> Candidates:
    """Return each box with its best class. Of equal scores, the first class wins.

    Args:
        xyxy: float32 (n, 4), network pixels.
        scores: float32 (n, C), probabilities.
    """
    ids = scores.argmax(axis=1)
    return Candidates(xyxy, scores[np.arange(len(scores)), ids], ids)


def candidates_from_final_boxes(
    xyxy: Floats,
    scores: Floats,
    labels: npt.NDArray[np.generic],
    first_label: int = 0,
) -> Candidates:
    """Return candidates for the final boxes of one image, which need no NMS.

    Args:
        xyxy: float32 (K, 4), network pixels.
        scores: float32 (K,).
        labels: float or int (K,). A box whose label is not finite gets the score NaN.
        first_label: the label of the first class name.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        known = np.isfinite(labels.astype(np.float32))
        scores = np.where(known, scores, np.float32(np.nan))
        labels = np.rint(np.where(known, labels, first_label))
    # Clip, because the later cast to int32 would turn labels beyond int32 into small labels.
    ids = np.clip(labels.astype(np.int64) - first_label, -1, 2**31 - 1)
    return Candidates(xyxy, scores, ids)
