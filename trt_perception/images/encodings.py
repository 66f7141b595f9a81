# SPDX-License-Identifier: Apache-2.0
"""Read the names of pixel encodings: ``Image.encoding`` and ``CompressedImage.format``.

compressed_image_transport writes ``ORIGINAL; CODEC compressed STORED``: the encoding of the raw
image, and how its pixels were given to the codec. Its subscriber defines the order of the stored
channels. Other drivers write only a codec, such as ``jpeg``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import short_repr
from trt_perception.images.frame import PIXEL_FORMATS

_COLORS: Final = tuple(
    f'{order}{bits}' for order in ('bgr', 'bgra', 'rgb', 'rgba') for bits in (8, 16)
)
_GREY: Final = ('mono8', 'mono16', '8UC1')
_DEEP_MOSAICS: Final = tuple(f'bayer_{order}16' for order in ('rggb', 'bggr', 'gbrg', 'grbg'))
#: Encodings that cv_bridge converts to bgr8, and this package does not read.
CV_BRIDGE_ENCODINGS: Final = (*(name for name in _COLORS if '16' in name), *_DEEP_MOSAICS, 'nv24')
# Types of OpenCV, except 8 bits without a sign. ROS drivers use them for depth and disparity.
_TYPES_WITHOUT_COLORS: Final = re.compile(r'(8S|16U|16S|32U|32S|32F|64F)C\d*')
_USE_COLORS: Final = (
    "subscribe to the camera's colour or grey image; if the values are brightness, let the driver "
    'send mono16'
)
# Names for pixels in the stored file, and whether its first channel is called blue, but is red.
_STORED: Final = {
    **{name: name.startswith('rgb') for name in _COLORS},
    'mono8': False,
    'mono16': False,
}


@dataclass(frozen=True)
class CompressedFormat:
    """What the format of a compressed image says about the pixels in its file.

    Attributes:
        encoding: the encoding of the raw image; empty if the format does not say it.
        is_mosaic: the file has the grey pixels of a Bayer mosaic, if it has no colours.
        is_swapped: red and blue are swapped in the file.
    """

    encoding: str = ''
    is_mosaic: bool = False
    is_swapped: bool = False


def check_has_colors(encoding: str) -> None:
    """Refuse the encodings of depth and other measured values.

    Raises:
        ImageError: with the reason ``unknown_encoding``.
    """
    if _TYPES_WITHOUT_COLORS.fullmatch(encoding):
        raise ImageError(
            'unknown_encoding',
            'image encoding',
            f'{encoding}, which is used for depth',
            expected='colours or brightness',
            fix=_USE_COLORS,
        )


@lru_cache(maxsize=16)
def read_compressed_format(text: str) -> CompressedFormat:
    """Return what the format of a compressed image says.

    A format without a semicolon says nothing about the pixels.

    Args:
        text: the field ``format`` of a CompressedImage.

    Raises:
        ImageError: the image is a depth image, or a word is unknown and the order of the colours
            depends on it (reason ``unknown_encoding``).
    """
    original, semicolon, rest = (part.strip() for part in text.partition(';'))
    check_has_colors(original)
    words = rest.split()
    if 'compressedDepth' in words or original == 'compressedDepth':
        raise ImageError(
            'unknown_encoding', 'compressed image', 'compressedDepth', fix=_USE_COLORS
        )
    if not semicolon:
        return CompressedFormat()
    if original in _GREY and len(words) == 1:
        return CompressedFormat(original)
    stored = words[2] if len(words) == 3 else ''
    if words[1:] not in (['compressed'], ['compressed', stored]) or (
        stored and stored not in _STORED
    ):
        raise _unread_error(rest, f'CODEC compressed, or CODEC compressed and {_any(_STORED)}')
    if stored:
        return CompressedFormat(original, is_swapped=_STORED[stored])
    if original.startswith('bayer_'):
        return CompressedFormat(original, is_mosaic=True)
    if original not in _COLORS and original not in PIXEL_FORMATS and original != '8UC4':
        raise _unread_error(original, _any(dict.fromkeys((*_COLORS, *PIXEL_FORMATS))))
    # Without a word for the stored pixels, compressed_image_transport takes them for RGB.
    return CompressedFormat(original, is_swapped=original in _COLORS)


def _unread_error(found: str, expected: str) -> ImageError:
    return ImageError(
        'unknown_encoding',
        'format of the compressed image',
        short_repr(found),
        expected=expected,
        fix='let the driver write only jpeg or png for ordinary files',
    )


def _any(names: Iterable[str]) -> str:
    return f'one of {", ".join(names)}'
