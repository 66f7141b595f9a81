# SPDX-License-Identifier: Apache-2.0
"""Converts masks to and from COCO's compressed run lengths.

Runs count pixels column by column, alternately outside and inside the mask, outside first. Source:
https://github.com/cocodataset/cocoapi, maskApi.c. Run lengths are small for any image size, so the
masks of many images fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, Masks

#: Keys: ``size`` is [height, width] in pixels, ``counts`` is the text of the run lengths.
RunLengths = dict[str, Any]
# Seven groups of five bits exceed the number of pixels of any image.
_MAX_GROUPS: Final = 7


@dataclass(frozen=True)
class RunLengthDetections(Detections):
    """Detections whose masks are run lengths. ``masks`` is None.

    Attributes:
        runs: run lengths of each detection.
    """

    runs: tuple[RunLengths, ...] = ()

    def take(self, which: npt.NDArray[Any]) -> RunLengthDetections:
        """Return a selection of the detections; see ``Detections.take``."""
        kept = super().take(which)
        runs = tuple(self.runs[place] for place in np.arange(len(self))[which])
        own = kept.xyxy, kept.scores, kept.class_ids, kept.keypoints, kept.oriented
        return RunLengthDetections(*own, ids=kept.ids, runs=runs)


def with_run_lengths(found: Detections) -> Detections:
    """Return a copy with run lengths instead of masks. Without masks, return the same object.

    The masks are unpacked one at a time to save memory.
    """
    if found.masks is None:
        return found
    runs = tuple(mask_run_lengths(found.masks, index) for index in range(len(found)))
    own = found.xyxy, found.scores, found.class_ids, found.keypoints, found.oriented
    return RunLengthDetections(*own, ids=found.ids, runs=runs)


def mask_run_lengths(masks: Masks, index: int) -> RunLengths:
    """Return the run lengths of one mask, at the size of the image.

    Args:
        index: index of the detection.
    """
    width, height = masks.size_wh
    left, top, part = masks.one(index)
    columns = np.zeros((part.shape[1], height), np.bool_)
    columns[:, top : top + part.shape[0]] = part.T
    flat = np.concatenate([[False], columns.ravel(), [False]])
    borders = np.flatnonzero(flat[1:] != flat[:-1]) + left * height
    ends = np.concatenate([[0], borders, [width * height]])
    runs = np.diff(ends)
    if len(runs) > 1 and runs[-1] == 0:
        runs = runs[:-1]
    return {'size': [height, width], 'counts': encode_counts(runs)}


def encode_counts(counts: npt.NDArray[np.int64]) -> str:
    """Return run lengths, int64 (n,), as text (maskApi.c, rleToString).

    From the fourth on, each number is stored as its difference from the number two places before.
    Groups of five bits, lowest first, become characters from code 48 on.
    """
    runs = counts.tolist()
    text = []
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        more = True
        while more:
            group, value = value & 0x1F, value >> 5
            more = value != (-1 if group & 0x10 else 0)
            text.append(chr(group + 48 + (0x20 if more else 0)))
    return ''.join(text)


def decode_counts(text: str) -> npt.NDArray[np.int64]:
    """Return the run lengths of a text: int64 (n,). Inverse of ``encode_counts``.

    Raises:
        ValueError: the text is not a sequence of run lengths.
    """
    codes = np.array([ord(letter) for letter in text], np.int64) - 48
    if not codes.size or codes.min() < 0 or codes.max() > 63 or codes[-1] & 0x20:
        raise ValueError('invalid run lengths')
    ends = np.flatnonzero(codes & 0x20 == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _MAX_GROUPS:
        raise ValueError('a run longer than any image')
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    values = np.add.reduceat((codes & 0x1F) << (5 * place), starts)
    values -= np.where(codes[ends] & 0x10, 1 << (5 * lengths), 0)
    counts: npt.NDArray[np.int64] = values.copy()
    counts[1::2] = np.cumsum(values[1::2])
    counts[2::2] = np.cumsum(values[2::2])
    return counts
