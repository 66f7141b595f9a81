# SPDX-License-Identifier: Apache-2.0
"""Draw text into images: ASCII with OpenCV, other characters with Pillow and the system's fonts.

OpenCV has glyphs for ASCII only. Pillow draws a text if installed fonts have all its characters:
Roboto, Noto Sans, DejaVu Sans and some fonts for Chinese, Japanese and Korean are used. Scripts
that join or reorder characters, such as Arabic and Devanagari, also need Pillow's Raqm.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_LOG: Final = logging.getLogger(__name__)

_FONT: Final = cv2.FONT_HERSHEY_SIMPLEX
# OpenCV's letters of scale 1 are 21 pixels high. The capitals of most fonts have 0.72 of the size.
_FONT_PIXELS: Final = 21 / 0.72
_FONT_FOLDERS: Final = (
    '~/.local/share/fonts',
    '~/.fonts',
    '/usr/local/share/fonts',
    '/usr/share/fonts',
)
# Names of font files, the preferred font first.
_FONT_NAMES: Final = tuple(
    re.compile(rf'{name}\.(ttf|otf|ttc)')
    for name in (
        'Roboto-Regular',
        'NotoSans-Regular',
        'DejaVuSans',
        'NotoSansCJK-Regular',
        'DroidSansFallback(Full)?',
        'wqy-(microhei|zenhei)',
        r'NotoSans\w+-Regular',
    )
)
_MAX_FONT_FILES: Final = 50_000
# A private character. Fonts draw it as the sign for a missing glyph.
_ABSENT: Final = '\U0010fffd'
_ADVICE: Final = (
    'sudo apt install fonts-roboto (Latin, Greek, Cyrillic), fonts-noto-cjk (Chinese, Japanese, '
    'Korean), or fonts-noto-core (other scripts)'
)


def drawable_name(name: str, class_id: int) -> str:
    """Return a class name, or the class id if no font has all characters of the name."""
    if name.isascii() or _runs(name) is not None:
        return name
    _warn_of_missing_glyphs()
    return str(class_id)


def text_size(text: str, scale: float, thickness: int) -> tuple[tuple[int, int], int]:
    """Return width and height above the baseline, and the height below it, in pixels."""
    (width, height), below = cv2.getTextSize(text, _FONT, scale, thickness)
    runs = None if text.isascii() else _runs(text)
    if runs is None:
        return (width, height), below
    width = 0
    for path, part in runs:
        font = _open_font(path, _font_pixels(scale))
        _, top, _, bottom = font.getbbox(part, anchor='ls')
        width += round(font.getlength(part))
        height, below = max(height, round(-top)), max(below, round(bottom))
    return (width, height), below


def put_text(
    bgr: npt.NDArray[np.uint8],
    text: str,
    origin: tuple[int, int],
    scale: float,
    color: tuple[int, int, int],
    thickness: int,
) -> None:
    """Draw a text. OpenCV draws ``?`` for characters that no font has.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        origin: left end of the baseline, in pixels.
        scale: OpenCV's font scale; 1 gives capitals of 21 pixels.
        color: BGR.
    """
    runs = None if text.isascii() else _runs(text)
    if runs is None:
        cv2.putText(bgr, text, origin, _FONT, scale, color, thickness, cv2.LINE_AA)
        return
    left, base = origin
    for path, part in runs:
        font = _open_font(path, _font_pixels(scale))
        _draw_run(bgr, part, (left, base), font, color)
        left += round(font.getlength(part))
        if left >= bgr.shape[1]:
            return


def _draw_run(
    bgr: npt.NDArray[np.uint8],
    text: str,
    origin: tuple[int, int],
    font: FreeTypeFont,
    color: tuple[int, int, int],
) -> None:
    """Draw a text in one font. Only the visible part needs memory."""
    from PIL import Image, ImageDraw

    height, width = bgr.shape[:2]
    box = font.getbbox(text, anchor='ls')
    left, top = max(0, origin[0] + int(box[0])), max(0, origin[1] + int(box[1]))
    right = min(width, origin[0] + int(box[2]) + 1)
    bottom = min(height, origin[1] + int(box[3]) + 1)
    if left >= right or top >= bottom:
        return
    mask = Image.new('L', (right - left, bottom - top))
    place = origin[0] - left, origin[1] - top
    ImageDraw.Draw(mask).text(place, text, fill=255, font=font, anchor='ls')
    share = np.asarray(mask, np.float32)[..., None] / 255
    part = bgr[top:bottom, left:right]
    np.rint(part + (np.array(color, np.float32) - part) * share, out=part, casting='unsafe')


def _runs(text: str) -> list[tuple[str, str]] | None:
    """Return the parts of a text with the path of the font of each part; None if one has none."""
    runs: list[tuple[str, str]] = []
    for char in unicodedata.normalize('NFC', text):
        before = runs[-1][0] if runs else ''
        path = before if before and _has_glyph(before, char) else _font_of(char)
        if not path:
            return None
        if path == before:
            runs[-1] = path, runs[-1][1] + char
        else:
            runs.append((path, char))
    return runs


@functools.lru_cache(maxsize=4096)
def _font_of(char: str) -> str:
    """Return the path of the first font that can draw a character; empty if there is none."""
    if _needs_shaping(char) and not _can_shape():
        return ''
    return next((path for path in _font_files() if _has_glyph(path, char)), '')


def _needs_shaping(char: str) -> bool:
    """Return whether a character is joined to, or reordered with, its neighbours."""
    is_mark = unicodedata.category(char) in ('Mn', 'Mc')
    return is_mark or unicodedata.bidirectional(char) in ('R', 'AL')


@functools.cache
def _can_shape() -> bool:
    from PIL import features

    return bool(features.check('raqm') and features.check('fribidi'))


@functools.lru_cache(maxsize=4096)
def _has_glyph(path: str, char: str) -> bool:
    font = _open_font(path, 24)
    glyph, absent = font.getmask(char), font.getmask(_ABSENT)
    return glyph.size != absent.size or bytes(glyph) != bytes(absent)


def _font_pixels(scale: float) -> int:
    return max(1, round(_FONT_PIXELS * scale))


@functools.lru_cache(maxsize=32)
def _open_font(path: str, pixels: int) -> FreeTypeFont:
    from PIL import ImageFont

    # Instead of a damaged file, ImageFont.truetype opens a font of the same name elsewhere.
    return ImageFont.FreeTypeFont(path, pixels)


@functools.cache
def _font_files() -> tuple[str, ...]:
    """Return the paths of known fonts that Pillow can open, the preferred font first."""
    found: list[tuple[int, str]] = []
    for path in islice(_files_in(_FONT_FOLDERS), _MAX_FONT_FILES):
        for rank, pattern in enumerate(_FONT_NAMES):
            if pattern.fullmatch(path.name):
                found.append((rank, str(path)))
                break
    return tuple(path for _, path in sorted(found) if _can_open(path))


def _files_in(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(Path(folder).expanduser()):
            yield from (Path(parent, name) for name in names)


def _can_open(path: str) -> bool:
    try:
        _has_glyph(path, 'A')
    # Pillow without FreeType raises ImportError, and OSError for a damaged font.
    except (ImportError, OSError, ValueError) as error:
        _LOG.warning('The font %s is not used: %s', path, error)
        return False
    return True


@functools.cache
def _warn_of_missing_glyphs() -> None:
    _LOG.warning(
        'Pictures show class ids instead of some class names, because no font has all their '
        'characters: %s',
        _ADVICE,
    )
