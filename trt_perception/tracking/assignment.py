# SPDX-License-Identifier: Apache-2.0
"""Assign detections to tracks by the overlap of their boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError

Indices = npt.NDArray[np.int64]
#: scipy.optimize.linear_sum_assignment.
Solver = Callable[..., tuple[Indices, Indices]]


def load_solver() -> Solver:
    """Return SciPy's solver of the assignment problem.

    Raises:
        ConfigError: SciPy is not installed, or does not fit the installed NumPy.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    # A SciPy that was compiled for another NumPy raises any of these.
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            'tracking',
            f'needs SciPy ({error})',
            fix='install it: python3 -m pip install --upgrade scipy, or apt install python3-scipy',
        ) from error
    solver: Solver = linear_sum_assignment
    return solver


def overlaps(tracks: npt.NDArray[Any], detected: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the intersection over union (IoU) of each track with each detection.

    Args:
        tracks: (n, 4): left, top, right, bottom. An empty predicted box has no overlap.
        detected: (m, 4).

    Returns:
        float64 (n, m), 0 to 1.
    """
    left, top, right, bottom = tracks.T[:, :, None].astype(np.float64)
    left2, top2, right2, bottom2 = detected.T[:, None].astype(np.float64)
    width = np.minimum(right, right2)
    width -= np.maximum(left, left2)
    height = np.minimum(bottom, bottom2)
    height -= np.maximum(top, top2)
    np.maximum(width, 0, out=width)
    width *= np.maximum(height, 0, out=height)
    union = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2) - width
    overlap: npt.NDArray[np.float64] = np.zeros_like(width)
    np.divide(width, union, out=overlap, where=width > 0)
    return overlap


def best_pairs(
    solver: Solver,
    overlap: npt.NDArray[np.float64],
    tracks: Indices,
    detected: Indices,
    smallest: float,
) -> tuple[Indices, Indices]:
    """Pair tracks with detections so that the sum of overlap - smallest is largest.

    The paper's ``lap.lapjv(cost_limit=…)`` solves the same problem. The solver gets only tracks
    and detections that may be paired.

    Args:
        solver: of ``load_solver``.
        overlap: (n, m), of all tracks and detections.
        tracks: indices of the tracks to assign.
        detected: indices of the detections to assign.
        smallest: a pair needs more overlap.

    Returns:
        Indices of the tracks and of their detections, both of the same length.
    """
    gain = overlap[tracks[:, None], detected]
    gain -= smallest
    useful = gain > 0
    tracks, detected = tracks[rows := useful.any(axis=1)], detected[columns := useful.any(axis=0)]
    gain = np.maximum(gain[rows][:, columns], 0)
    left, right = solver(gain, maximize=True)
    paired = gain[left, right] > 0
    return tracks[left[paired]], detected[right[paired]]
