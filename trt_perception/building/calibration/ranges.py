"""Ranges of tensors from what images show: histograms of magnitudes, and three ways to cut them.

Quantisation is symmetric, so one number a tensor is wanted: the magnitude that the largest integer
stands for. Histograms have a fixed number of bins over a power of two, which doubles when a larger
value comes and then merges bins in pairs. So memory is bounded, and the result depends neither on
the order of the images nor on how many are looked at together. ONNX Runtime's calibrators keep all
tensors of all images until the end, and their entropy method, with the 128 bins it starts from,
has one candidate to choose from: the range of what it saw first.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

__all__ = ['METHODS', 'PERCENTILE', 'VERSION', 'MagnitudeHistogram', 'Method']

Method = Literal['entropy', 'percentile', 'minmax']
METHODS: Final[tuple[Method, ...]] = ('entropy', 'percentile', 'minmax')
#: Of the magnitudes, in percent, lie within the range that ``percentile`` chooses.
PERCENTILE: Final = 99.99
#: Counts the changes after which the same images give other ranges.
VERSION: Final = 1

_BINS: Final = 4096  # at least half of them in use
_LEVELS: Final = 128  # magnitudes that int8 tells apart
_CANDIDATE_STRIDE: Final = 8  # bins from one candidate for the entropy method to the next
_MIN_PROBABILITY: Final = 1e-9
# Below it the number of bins to a unit is none of float32, and no network's values are told apart.
_MIN_TOP: Final = 2.0**-100


class MagnitudeHistogram:
    """The magnitudes of one tensor over all images.

    Attributes:
        counts: int64 (4096,), how many values fell into each bin; equal bins from 0 to ``top``.
        top: a power of two above every value, at least 2**-100; 0 while only zeros came.
        largest: the largest magnitude.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.top = 0.0
        self.largest = 0.0

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Count an array of any shape.

        Raises:
            ValueError: it holds NaN or infinity.
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
            # A power of two scales without rounding: bins merged later are those of a wider start.
            places = (sizes * np.float32(_BINS / self.top)).astype(np.intp)
            self.counts += np.bincount(places, minlength=_BINS)
        else:
            self.counts[0] += sizes.size

    def _widen(self, largest: float) -> None:
        if not largest:
            return
        top = max(math.ldexp(1.0, math.frexp(largest)[1]), _MIN_TOP)
        while self.top and self.top < top:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros_like(merged)])
            self.top *= 2
        self.top = top

    def choose_range(self, method: Method) -> float:
        """Return the magnitude that shall be the largest one told apart; 0 for a tensor of zeros.

        Args:
            method: ``minmax``: the largest seen. ``percentile``: 99.99 % lie below. ``entropy``:
                where cutting and rounding to 128 levels changes the distribution least, measured
                by Kullback-Leibler divergence (Migacz, 8-bit Inference with TensorRT, GTC 2017).
        """
        if method == 'minmax' or not self.top:
            return self.largest
        if method == 'percentile':
            bins = self._bins_below(PERCENTILE / 100)
        else:
            bins = self._bins_of_least_divergence()
        return min(bins * self.top / _BINS, self.largest)

    def _bins_below(self, share: float) -> int:
        sums = np.cumsum(self.counts)
        return int(np.searchsorted(sums, share * sums[-1])) + 1

    def _bins_of_least_divergence(self) -> int:
        counts = self.counts.astype(np.float64)
        # Zero has a level of its own whatever the range; the many exact zeros would hide the rest.
        counts[0] = counts[1]
        used = int(np.flatnonzero(self.counts)[-1]) + 1
        candidates = [*range(_LEVELS, used, _CANDIDATE_STRIDE), used]
        divergences = [_divergence(counts, bins) for bins in candidates]
        return int(candidates[int(np.argmin(divergences))])


def _divergence(counts: npt.NDArray[np.float64], bins: int) -> float:
    """Return what is lost when all above ``bins`` is cut and the rest rounded to 128 levels."""
    true = counts[:bins].copy()
    filled = true > 0
    level = np.arange(bins) * _LEVELS // bins
    mass = np.bincount(level, true, _LEVELS)
    members = np.bincount(level, filled, _LEVELS)
    rounded = np.where(filled, (mass / np.maximum(members, 1))[level], 0.0)
    true[-1] += counts[bins:].sum()
    if not rounded.sum():
        return math.inf
    true /= true.sum()
    # Where only what was cut falls, the rounded distribution has nothing, which would be infinite.
    rounded = np.maximum(rounded / rounded.sum(), _MIN_PROBABILITY)
    some = true > 0
    return float((true[some] * np.log(true[some] / rounded[some])).sum())
