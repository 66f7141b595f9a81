"""Choose the batch sizes for which to prepare an engine with a dynamic batch axis."""

from __future__ import annotations

from collections.abc import Sequence


def batch_sizes(ranges: Sequence[tuple[int, int]], max_frames: int) -> tuple[int, ...]:
    """Return the batch sizes to prepare. Each size gets a context and a CUDA graph.

    A profile with a fixed size gives this size. A profile with a range gives both ends and the
    powers of two between them. So a batch above the smallest size fills more than half of its
    prepared size.

    Args:
        ranges: smallest and largest batch of each profile.
        max_frames: largest number of frames that arrive together. Sizes above the smallest
            sufficient size are left out.

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
