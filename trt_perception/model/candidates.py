"""The boxes that a decoder reads off a model's outputs, before any is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ['Candidates', 'corners', 'places']

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """What a family read off the outputs of one image; anything may still be no box.

    Attributes:
        xyxy: float32 (n, 4), network pixels; of oriented boxes as they are before they turn.
        scores: float32 (n,), probabilities.
        class_ids: int (n,), into the class names.
        carried: float32 (n, v), what the task's rows hold behind that, in network pixels; of
            objects with masks of their own the mask's place; None where they hold nothing.
        prototypes: float (m, rows, columns) of the masks, where there are any; or the logits of
            masks that belong to one object each.
    """

    xyxy: Floats
    scores: Floats
    class_ids: npt.NDArray[np.integer]
    carried: Floats | None = None
    prototypes: npt.NDArray[np.floating] | None = None


def places(count: int) -> Floats:
    """Return the numbers from 0 on as something that candidates carry: float32 (count, 1)."""
    return np.arange(count, dtype=np.float32)[:, None]


def corners(cxcywh: Floats) -> Floats:
    """Return left, top, right, bottom from centre x, centre y, width, height: float32 (n, 4)."""
    half = cxcywh[:, 2:] * np.float32(0.5)
    return np.concatenate([cxcywh[:, :2] - half, cxcywh[:, :2] + half], axis=1)
