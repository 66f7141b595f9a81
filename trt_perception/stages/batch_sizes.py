"""Which sizes of batches an engine of open batch is prepared for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ['MAX_BATCH', 'batch_sizes']

#: Most frames that kernels work on at once: their number is a byte.
MAX_BATCH: Final = 255


def batch_sizes(ranges: Sequence[tuple[int, int]], most: int) -> tuple[int, ...]:
    """Return the sizes: each runs what it holds, and there is a graph for each.

    A profile of one size gives that. One of a range gives its ends and the powers of two between
    them, so that less than half of a batch runs for nothing.

    Args:
        ranges: smallest and largest batch of each profile.
        most: frames that come at once; the last size is the smallest that holds them, or the
            largest that there is.

    Returns:
        Smallest first.
    """
    sizes: set[int] = set()
    for low, high in ranges:
        powers = {2**power for power in range(high.bit_length())}
        sizes |= {each for each in powers | {low, high} if low <= each <= high}
    ordered = sorted(sizes)
    enough = next((at for at, each in enumerate(ordered, 1) if each >= most), len(ordered))
    return tuple(ordered[:enough])
