"""Choose the batch sizes for which to prepare an engine with a dynamic batch axis."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ['batch_sizes']


def batch_sizes(ranges: Sequence[tuple[int, int]], max_frames: int) -> tuple[int, ...]:
    """Return the batch sizes to prepare. Each size gets a context and a CUDA graph.

    A profile with a fixed size gives this size. A profile with a range gives both ends and the
    powers of two between them. Above its smallest size, a batch then fills more than half of the
    places in its prepared size.

    Args:
        ranges: smallest and largest batch of each profile.
        max_frames: largest number of frames that arrive together. The last size is the smallest
            that holds this number. If no size holds it, the last size is the largest of all.

    Returns:
        The sizes, smallest first.
    """
    sizes: set[int] = set()
    for low, high in ranges:
        powers = {2**power for power in range(high.bit_length())}
        sizes |= {each for each in powers | {low, high} if low <= each <= high}
    ordered = sorted(sizes)
    enough = next((at for at, each in enumerate(ordered, 1) if each >= max_frames), len(ordered))
    return tuple(ordered[:enough])
