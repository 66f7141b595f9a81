# SPDX-License-Identifier: Apache-2.0
"""Count magnitudes of tensors in histograms, and choose ranges for quantisation by three methods.

Quantisation is symmetric, so a range is one number per tensor: the magnitude of the largest
integer. A histogram has a fixed number of bins from 0 to a power of two. A larger value doubles
the power of two and merges bins in pairs. Memory is therefore bounded, and the result does not
depend on the order or grouping of images.

ONNX Runtime's calibrators are not used. They keep all tensors of all images until the end, and
their entropy method starts with 128 bins, so that the range of the first images is its only
candidate.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

CalibrationMethod = Literal['entropy', 'percentile', 'minmax']
CALIBRATION_METHODS: Final[tuple[CalibrationMethod, ...]] = ('entropy', 'percentile', 'minmax')
#: Percentage of magnitudes within the range that the method ``percentile`` chooses.
PERCENTILE: Final = 99.99
#: Increase this number after each change that gives other ranges for the same images.
RANGES_VERSION: Final = 1

_BIN_COUNT: Final = 4096  # at least half of the bins are in use
_LEVEL_COUNT: Final = 128  # distinct magnitudes of int8
_CANDIDATE_STRIDE: Final = 8  # step in bins between the ranges that the entropy method tries
_MIN_PROBABILITY: Final = 1e-9
# Below this limit, the number of bins per unit overflows float32. Networks have no such values.
_MIN_HISTOGRAM_TOP: Final = 2.0**-100


class MagnitudeHistogram:
    """The magnitudes of one tensor over all images.

    Attributes:
        counts: int64 (4096,), number of values in each bin. Bins divide 0 to ``top`` equally.
        top: a power of two above all values, at least 2**-100; 0 while all values are 0.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(_BIN_COUNT, np.int64)
        self.top = 0.0
        self.largest = 0.0

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Count the values of an array of any shape.

        Raises:
            ValueError: the array contains NaN or infinity.
        """
        if not values.size:
            return
        sizes = np.abs(values.ravel()).astype(np.float32, copy=False)
        largest = float(sizes.max())
        if not math.isfinite(largest):
            raise ValueError('NaN or infinity')
        self.largest = max(self.largest, largest)
        if largest >= self.top:
            self._widen(largest)
        if self.top:
            # Scaling by a power of two does not round, so merging bins gives the same counts as a
            # larger ``top`` from the start.
            places = (sizes * np.float32(_BIN_COUNT / self.top)).astype(np.intp)
            self.counts += np.bincount(places, minlength=_BIN_COUNT)
        else:
            self.counts[0] += sizes.size

    def _widen(self, largest: float) -> None:
        if not largest:
            return
        top = max(math.ldexp(1.0, math.frexp(largest)[1]), _MIN_HISTOGRAM_TOP)
        while self.top and self.top < top:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros_like(merged)])
            self.top *= 2
        self.top = top

    def choose_range(self, method: CalibrationMethod) -> float:
        """Return the magnitude that the largest integer represents; 0 for a tensor of zeros.

        Args:
            method: ``minmax`` returns the largest magnitude. ``percentile`` returns the magnitude
                above 99.99 % of the values. ``entropy`` returns the range in which clipping and
                rounding to 128 levels change the distribution least, measured by the
                Kullback-Leibler divergence (Migacz, 8-bit Inference with TensorRT, GTC 2017).
        """
        if method == 'minmax' or not self.top:
            return self.largest
        if method == 'percentile':
            sums = np.cumsum(self.counts)
            bins = int(np.searchsorted(sums, PERCENTILE / 100 * sums[-1])) + 1
        else:
            bins = self._bins_of_least_divergence()
        return min(bins * self.top / _BIN_COUNT, self.largest)

    def _bins_of_least_divergence(self) -> int:
        counts = self.counts.astype(np.float64)
        # Every range represents zero exactly. Many zeros would hide the other values.
        counts[0] = counts[1]
        used = int(np.flatnonzero(self.counts)[-1]) + 1
        candidates = [*range(_LEVEL_COUNT, used, _CANDIDATE_STRIDE), used]
        divergences = [_divergence(counts, bins) for bins in candidates]
        return int(candidates[int(np.argmin(divergences))])


def _divergence(counts: npt.NDArray[np.float64], bins: int) -> float:
    """Return how far clipping to ``bins`` bins and rounding to 128 levels change the distribution.

    The result is the Kullback-Leibler divergence between the given and the rounded distribution;
    infinity if no value remains.
    """
    true = counts[:bins].copy()
    filled = true > 0
    level = np.arange(bins) * _LEVEL_COUNT // bins
    mass = np.bincount(level, true, _LEVEL_COUNT)
    members = np.bincount(level, filled, _LEVEL_COUNT)
    rounded = np.where(filled, (mass / np.maximum(members, 1))[level], 0.0)
    true[-1] += counts[bins:].sum()
    if not rounded.sum():
        return math.inf
    true /= true.sum()
    # A bin that holds only clipped values has probability 0 after rounding, which would make the
    # divergence infinite.
    rounded = np.maximum(rounded / rounded.sum(), _MIN_PROBABILITY)
    some = true > 0
    return float((true[some] * np.log(true[some] / rounded[some])).sum())
