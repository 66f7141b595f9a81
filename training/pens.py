# SPDX-License-Identifier: Apache-2.0
"""Convert scans of 8x8 cells to strokes that a pen could have drawn."""

import functools
from typing import NamedTuple

import cv2
import numpy as np
import sources

ZOOM = 6  # pen pixels per scan cell
LEVELS = (0.45, 0.5, 0.55, 0.6)  # grey levels of the stroke's edge; a higher level is thinner
LOOPED = (0, 6, 8, 9)  # digits that are illegible without a loop


class Pen(NamedTuple):
    """A digit as a smooth upright stroke.

    Attributes:
        ink: (72, 72) float32, smooth grey levels.
        levels: thresholds at which all loops of the digit are open.
    """

    ink: np.ndarray
    levels: tuple[float, ...]


def loops(ink: np.ndarray, level: float) -> int:
    """Return the number of areas that the stroke encloses at a threshold, without specks."""
    paper = (ink <= level).astype(np.uint8)
    areas = cv2.connectedComponentsWithStats(paper, connectivity=4)[2][1:, cv2.CC_STAT_AREA]
    return int((areas >= 8).sum()) - 1  # the largest area is the paper around the digit


def pen(scan: np.ndarray) -> Pen:
    """Sharpen and enlarge a scan (8, 8); find the thresholds that keep its loops open."""
    scan = np.pad(scan, 2)
    # A scan has few cells, so some loops are closed. Sharpening opens most of these loops.
    scan = scan + 0.9 * (scan - cv2.GaussianBlur(scan, (5, 5), 1.0))
    ink = cv2.resize(scan, None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_CUBIC)
    counts = [loops(ink, level) for level in LEVELS]
    levels = tuple(x for x, n in zip(LEVELS, counts, strict=True) if n == max(counts))
    return Pen(ink, levels)


@functools.cache
def pens_by_digit(split: sources.Split) -> list[list[Pen]]:
    """Return all legible digits of a split as ten lists.

    A scan of 0, 6, 8 or 9 is omitted if its loops are closed at every threshold, because a person
    cannot read it either (23 of the 500 evaluation scans).
    """
    drawn = [[pen(scan) for scan in scans] for scans in sources.scans_by_digit(split)]
    for digit in LOOPED:
        drawn[digit] = [p for p in drawn[digit] if loops(p.ink, p.levels[0]) > 0]
    return drawn


def bend(rng: np.random.Generator, ink: np.ndarray, cells: float) -> np.ndarray:
    """Deform by a smooth random field with a standard deviation of `cells` scan cells."""
    height, width = ink.shape
    coarse = rng.normal(0, cells * ZOOM, (4, 4, 2)).astype(np.float32)
    shift = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    return cv2.remap(ink, x + shift[..., 0], y + shift[..., 1], cv2.INTER_LINEAR)
