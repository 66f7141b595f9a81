"""JPEG and PNG to pixels; what the file asks for is checked before it is decoded.

Guarantees: a file of a few kilobytes cannot ask for gigabytes of memory or minutes of work, and a
file that ends too early is refused, never returned half grey. OpenCV alone promises neither: its
own limit is 2**30 pixels, and before 4.9 it returned what it had read of a truncated file.
Non-guarantee: flipped bits inside a JPEG are other pixels; nobody can tell.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError

__all__ = ['MAX_PIXELS', 'decode_picture', 'picture_size']

#: 134 megapixels, 403 MB once decoded: twice the largest camera that ROS knows.
MAX_PIXELS: Final = 2**27
# Each scan of a progressive JPEG walks over all pixels again; encoders write about ten.
_MAX_SCANS: Final = 64
# In front of the first scan; each costs a microsecond of the interpreter.
_MAX_SEGMENTS: Final = 4096

_PNG_START: Final = b'\x89PNG\r\n\x1a\n'
_PNG_END: Final = re.compile(re.escape(b'\0\0\0\0IEND\xaeB`\x82'))
_JPEG_START: Final = b'\xff\xd8'
# Inside a scan a byte 0xff is followed by zero, so these are no pixels.
_JPEG_END: Final = re.compile(rb'\xff\xd9')
_JPEG_SCAN: Final = re.compile(rb'\xff\xda')
# Start of frame, all kinds: ITU-T T.81, table B.1.
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def decode_picture(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Decode a JPEG or PNG.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Returns:
        uint8 (height, width, 3), BGR. Pixels are where the file stores them: an orientation in
        EXIF is left alone, because boxes belong to the stored pixels, which is how
        image_transport shows them, too.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``.
    """
    width, height = picture_size(content)
    if width * height > MAX_PIXELS:
        raise ImageError(
            'too_large',
            f'a compressed image may have {MAX_PIXELS} pixels (got {width}x{height}); let the '
            'camera send a smaller one',
        )
    try:
        bgr = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ImageError('not_decodable', f'OpenCV cannot decode it: {error}') from error
    if bgr is None or bgr.shape[:2] != (height, width):
        found = 'nothing' if bgr is None else f'{bgr.shape[1]}x{bgr.shape[0]}'
        raise ImageError(
            'not_decodable', f'the header says {width}x{height} (got {found}): it is damaged'
        )
    return bgr.astype(np.uint8, copy=False)


def picture_size(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Return the width and height that a JPEG or PNG declares, without decoding it.

    Raises:
        ImageError: ``not_decodable``: it is neither, or a part of one.
    """
    start = content[: len(_PNG_START)].tobytes()
    if start == _PNG_START:
        return _png_size(content)
    if start.startswith(_JPEG_START):
        return _jpeg_size(content)
    raise ImageError('not_decodable', f'expected JPEG or PNG (it starts with {start!r})')


def _png_size(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    header = content[8:24].tobytes()
    if len(header) < 16 or header[4:8] != b'IHDR':
        raise ImageError('not_decodable', 'a PNG without its header: it is damaged')
    if _PNG_END.search(content.data) is None:
        raise ImageError('not_decodable', 'a PNG without its end: it is truncated')
    width, height = struct.unpack('>II', header[8:])
    return int(width), int(height)


def _jpeg_size(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    size = None
    for marker, start, end in _jpeg_segments(content):
        if marker in _JPEG_FRAMES and end - start >= 5:
            height, width = struct.unpack('>HH', content[start + 1 : start + 5].tobytes())
            size = int(width), int(height)
        elif marker == 0xDA and size is not None:
            if _JPEG_END.search(content.data, end) is None:
                break
            scans = sum(1 for _ in _JPEG_SCAN.finditer(content.data, start))
            if scans > _MAX_SCANS:
                raise ImageError(
                    'too_large', f'a JPEG may have {_MAX_SCANS} scans (got {scans}): not a camera'
                )
            return size
    raise ImageError('not_decodable', 'a JPEG without header, pixels or end: it is truncated')


def _jpeg_segments(content: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of each segment's payload, up to the first scan's."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 4 > content.size or content[at] != 0xFF:
            return
        marker = int(content[at + 1])
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # these stand alone
            at += 2
            continue
        end = at + 2 + int(content[at + 2]) * 256 + int(content[at + 3])
        yield marker, at + 4, end
        if marker == 0xDA or end < at + 4:
            return
        at = end
