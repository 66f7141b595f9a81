# SPDX-License-Identifier: Apache-2.0
"""Limits for images that show results: masks, class and depth maps, debug images.

A small file can hold an image of many pixels. So the node makes no result image above
MAX_RESULT_PIXELS, and works on rows of larger images in strips.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: Largest published image of results, enough for 8K video.
MAX_RESULT_PIXELS: Final = 2**25
#: Larger images of results are made one at a time in the process. A 4K image is smaller.
LARGE_RESULT_PIXELS: Final = 2**23
# Pixels of a strip: a float32 for each of them fits into the caches of a CPU core.
_STRIP_PIXELS: Final = 2**18


def is_too_large_result(size_wh: tuple[int, int]) -> bool:
    """Return whether an image of this width and height has more than MAX_RESULT_PIXELS."""
    return size_wh[0] * size_wh[1] > MAX_RESULT_PIXELS


def is_large_result(size_wh: tuple[int, int]) -> bool:
    """Return whether an image of this width and height has more than LARGE_RESULT_PIXELS."""
    return size_wh[0] * size_wh[1] > LARGE_RESULT_PIXELS


def row_strips(size_wh: tuple[int, int]) -> Iterator[slice]:
    """Yield the rows of an image in strips, so that temporary arrays stay small.

    Args:
        size_wh: width and height in pixels.
    """
    width, height = size_wh
    rows = max(1, _STRIP_PIXELS // max(1, width))
    for first in range(0, height, rows):
        yield slice(first, min(first + rows, height))
