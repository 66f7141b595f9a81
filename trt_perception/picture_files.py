"""Picture files to pixels; what a file declares is checked before memory is taken for it.

Guarantees: a file of a few kilobytes cannot ask for gigabytes, whatever its name says; JPEG and
PNG that end too early are refused, never returned half grey; only formats listed here reach their
decoders. Non-guarantee: that pixels are what was photographed; nobody can tell.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.compressed import MAX_PIXELS
from trt_perception.compressed import picture_size
from trt_perception.errors import ImageError
from trt_perception.frame import Frame

__all__ = ['MAX_BYTES', 'frame_of', 'read_picture']

#: As much as the largest picture has without compression, roughly.
MAX_BYTES: Final = 512 * 1024 * 1024

_COMMENTS: Final = rb'\s+(?:#[^\n]*\n\s*)*'
_PNM: Final = re.compile(rb'P[2356]%b(\d{1,9})%b(\d{1,9})\s' % (_COMMENTS, _COMMENTS))
_TIFF_STARTS: Final = (b'II*\0', b'MM\0*')
_TIFF_WIDTH: Final = 256
_TIFF_HEIGHT: Final = 257
_TIFF_TYPES: Final = {3: 'H', 4: 'I'}


def read_picture(path: Path, *, upright: bool = True) -> npt.NDArray[np.uint8]:
    """Decode a picture file.

    Args:
        path: the file.
        upright: turn the picture as its EXIF data say; else pixels are where the file has them.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: ``not_decodable`` or ``too_large``; the message names the file.
    """
    try:
        content = _content(path)
        width, height = _declared_size(content)
    except ImageError as error:
        raise ImageError(error.reason, f'{path}: {error}') from error
    if width * height > MAX_PIXELS:
        raise ImageError(
            'too_large', f'{path}: expected at most {MAX_PIXELS} pixels (got {width}x{height})'
        )
    flag = 0 if upright else cv2.IMREAD_IGNORE_ORIENTATION
    try:
        bgr = cv2.imdecode(content, cv2.IMREAD_COLOR | flag)
    except cv2.error:  # pragma: no cover - depends on the release of OpenCV
        bgr = None
    if bgr is None:
        reason = 'it is damaged'
        if content[:4].tobytes() in _TIFF_STARTS:
            reason += (
                ', or a TIFF of another kind than 8 or 16 bits (floating point, say): convert it'
            )
        raise ImageError('not_decodable', f'{path}: cannot be decoded as a picture: {reason}')
    return bgr.astype(np.uint8, copy=False)


def frame_of(bgr: npt.NDArray[np.uint8]) -> Frame:
    """Return a decoded picture, uint8 (height, width, 3), BGR, as a camera's frame."""
    height, width = bgr.shape[:2]
    pixels = np.ascontiguousarray(bgr).reshape(-1)
    return Frame.view(pixels, width=width, height=height, step=3 * width, encoding='bgr8')


def _content(path: Path) -> npt.NDArray[np.uint8]:
    try:
        # Non-blocking, so that a FIFO is refused instead of waited for.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), 'rb') as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise ImageError(
                    'too_large',
                    f'expected a file of at most {MAX_BYTES} bytes (got '
                    f'{stat.filemode(status.st_mode)}, {status.st_size} bytes)',
                )
            return np.frombuffer(file.read(status.st_size), np.uint8)
    except OSError as error:
        raise ImageError('not_decodable', f'cannot be read: {error.strerror}') from error


def _declared_size(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Return width and height as the file's header has them."""
    head = content[:1024].tobytes()
    if not head:
        raise ImageError('not_decodable', 'cannot be decoded as a picture: it is empty')
    try:
        if head[:2] == b'BM':
            return _bmp_size(head)
        if head[:4] == b'RIFF' and head[8:12] == b'WEBP':
            return _webp_size(head)
        if head[:4] in _TIFF_STARTS:
            return _tiff_size(content.data)
    except struct.error:
        raise ImageError('not_decodable', 'cannot be decoded: it ends in its header') from None
    match = _PNM.match(head)
    if match:
        return int(match[1]), int(match[2])
    try:
        return picture_size(content)
    except ImageError as error:
        raise ImageError(error.reason, f'cannot be decoded as a picture: {error}') from error


def _bmp_size(head: bytes) -> tuple[int, int]:
    if struct.unpack_from('<I', head, 14) == (12,):
        width, height = struct.unpack_from('<HH', head, 18)
    else:
        width, height = struct.unpack_from('<ii', head, 18)  # upside down where it is negative
    return abs(width), abs(height)


def _webp_size(head: bytes) -> tuple[int, int]:
    """Read https://developers.google.com/speed/webp/docs/riff_container; RFC 6386, 9.1."""
    if head[12:16] == b'VP8X':
        return 1 + _three_bytes(head, 24), 1 + _three_bytes(head, 27)
    if head[12:16] == b'VP8L':
        (bits,) = struct.unpack_from('<I', head, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from('<HH', head, 26)
    return width & 0x3FFF, height & 0x3FFF


def _three_bytes(head: bytes, at: int) -> int:
    low, high = struct.unpack_from('<HB', head, at)
    return int(low + (high << 16))


def _tiff_size(content: memoryview) -> tuple[int, int]:
    """Read the first directory's two tags (TIFF 6.0, section 2)."""
    order = '<' if content[0] == ord('I') else '>'
    (at,) = struct.unpack_from(f'{order}I', content, 4)
    (count,) = struct.unpack_from(f'{order}H', content, at)
    found: dict[int, int] = {}
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, _ = struct.unpack_from(f'{order}HHI', content, entry)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT) and kind in _TIFF_TYPES:
            (size,) = struct.unpack_from(f'{order}{_TIFF_TYPES[kind]}', content, entry + 8)
            found[tag] = max(size, found.get(tag, 0))  # of a repeated one, readers differ
    if len(found) < 2:
        raise ImageError('not_decodable', 'cannot be decoded: a TIFF without its size')
    return found[_TIFF_WIDTH], found[_TIFF_HEIGHT]
