# SPDX-License-Identifier: Apache-2.0
"""The size of published class and depth maps, as the parameter ``map_size`` gives it."""

from __future__ import annotations

import re
from typing import Final

from trt_perception.files.plain_text import Mistake, short_repr
from trt_perception.images.frame import MAX_SIDE
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS, is_too_large_result

_WIDTH_HEIGHT: Final = re.compile(r'([1-9][0-9]{0,4})x([1-9][0-9]{0,4})')


def map_size_mistake(text: str) -> Mistake | None:
    """Return why a text is not a valid ``map_size``; None if it is valid."""
    if text in ('source', 'network'):
        return None
    size_wh = _width_height(text) or (0, 0)
    if 0 < max(size_wh) <= MAX_SIDE and not is_too_large_result(size_wh):
        return None
    return Mistake(
        found=short_repr(text),
        expected='source, network, or WIDTHxHEIGHT such as 640x480, with sides from 1 to '
        f'{MAX_SIDE} and at most {MAX_RESULT_PIXELS} pixels',
    )


def map_size_wh(text: str, letterbox: Letterbox) -> tuple[int, int]:
    """Return width and height of a map in pixels.

    Args:
        text: ``source`` for the size of the image, ``network`` for the part of the network's
            input with the image, or ``WIDTHxHEIGHT``. Valid as ``map_size_mistake`` defines it.
    """
    if text == 'network':
        left, top, right, bottom = letterbox.image_xyxy
        return right - left, bottom - top
    return _width_height(text) or letterbox.source_wh


def _width_height(text: str) -> tuple[int, int] | None:
    found = _WIDTH_HEIGHT.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
