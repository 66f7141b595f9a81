"""JPEG and PNG to pixels; what the file asks for is checked before it is decoded.

Guarantees: a file of a few kilobytes cannot ask for gigabytes of memory or minutes of work, and a
file that ends too early is refused, never returned half grey. OpenCV alone promises neither: its
own limit is 2**30 pixels, it takes memory for whatever length a part of the file declares, and
before 4.9 it returned what it had read of a truncated file. So the length of each part
is checked against the file, and the decoder gets a new file, made of the parts that pixels need.
What two readers may understand differently does not reach the decoder.
Non-guarantee: flipped bits inside the pixel data of a JPEG are not detected.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.images.frame import MAX_SIDE

__all__ = [
    *(
        'JPEG_START',
        'MAX_PIXELS',
        'CheckedImageFile',
        'ScanInfo',
        'check_image_file',
        'check_size',
    ),
    *('damaged_error', 'decode_image_file', 'find_scan_end', 'too_large_error', 'truncated_error'),
    'unsupported_error',
]

#: 134 megapixels, 403 MB once decoded: twice the largest camera that ROS knows.
MAX_PIXELS: Final = 2**27
# Each scan of a progressive JPEG walks over all pixels again; encoders write about ten.
_MAX_SCANS: Final = 64
# Segments of a JPEG, chunks of a PNG; each costs a microsecond of the interpreter.
_MAX_PARTS: Final = 2**16

#: How a JPEG begins.
JPEG_START: Final = b'\xff\xd8'
_PNG_START: Final = b'\x89PNG\r\n\x1a\n'
_PNG_CRITICAL: Final = (b'PLTE', b'IDAT', b'IEND')
# This bit of the first letter makes it lower case.
_PNG_ANCILLARY: Final = 0x20

_JPEG_MARKER: Final = re.compile(rb'\xff{1,256}([^\0\xff])', re.DOTALL)
# Inside a scan a byte 0xff is followed by zero, by a fill byte, or is one of the restart markers.
_ENDS_SCAN: Final = ~np.isin(np.arange(256), (0x00, *range(0xD0, 0xD8), 0xFF))
# Bytes that are looked through at a time: a file of a camera as a rule, in the processor's caches.
_LOOK: Final = 2**20
# ITU-T T.81, table B.1: baseline, extended and progressive, all with Huffman coding.
_JPEG_FRAMES: Final = frozenset((0xC0, 0xC1, 0xC2))
_JPEG_TABLES: Final = frozenset((0xC4, 0xDB, 0xDD))
_PROGRESSIVE: Final = 0xC2
_JPEG_SCAN: Final = 0xDA
_JPEG_END: Final = 0xD9
# JFIF and Adobe say which colours the components are.
_JPEG_COLORS: Final = frozenset((0xE0, 0xEE))
# Comments and what applications keep in a file; none says anything of the pixels.
_JPEG_LEFT_OUT: Final = frozenset(range(0xE0, 0xF0)) | {0xFE}


@dataclass
class ScanInfo:
    """The entropy-coded bits of a JPEG.

    Attributes:
        begin: where those of the last scan begin in the file.
        markers: what follows each 0xff within them, but for zeros; of all scans.
    """

    begin: int = 0
    markers: bytes = b''


@dataclass(frozen=True)
class CheckedImageFile:
    """A JPEG or PNG in parts that were held against the file's bytes.

    Attributes:
        parts: what pixels need, in the file's order; joined they are the file put together anew.
            Those of a JPEG's scans are views of the file.
        size_wh: width and height in pixels, as the file stores them.
        scans: of a JPEG.
    """

    parts: tuple[bytes | memoryview, ...]
    size_wh: tuple[int, int]
    scans: ScanInfo = field(default_factory=ScanInfo)

    def decode(self) -> npt.NDArray[np.uint8]:
        """Let OpenCV decode it, and hold the result to its header; as ``decode_image_file``."""
        content = np.frombuffer(b''.join(self.parts), np.uint8)
        try:
            bgr = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error as error:
            found = f'OpenCV cannot decode it: {error}'
            raise ImageError('not_decodable', 'image', found) from error
        width, height = self.size_wh
        if bgr is None or bgr.shape[:2] != (height, width):
            found = 'nothing' if bgr is None else f'{bgr.shape[1]}x{bgr.shape[0]}'
            raise damaged_error('image', f'the header says {width}x{height}, decoded is {found}')
        return bgr.astype(np.uint8, copy=False)


def decode_image_file(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Decode a JPEG or PNG.

    Pixels are where the file stores them, whatever its EXIF data say: boxes belong to the stored
    pixels, which is how image_transport shows them, too.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large_error``.
    """
    return check_image_file(content).decode()


def check_image_file(content: npt.NDArray[np.uint8]) -> CheckedImageFile:
    """Hold what a JPEG or PNG declares against its bytes, and its size against a camera's.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large_error``.
    """
    start = content[: len(_PNG_START)].tobytes()
    parts: tuple[bytes | memoryview, ...]
    scans = ScanInfo()
    if start == _PNG_START:
        parts = tuple(_png_parts(content.data))
        width, height = struct.unpack_from('>II', parts[1], 8)
    elif start.startswith(JPEG_START):
        parts = tuple(_jpeg_parts(content, scans))
        frame = next(part for part in parts if part[1] in _JPEG_FRAMES)
        height, width = struct.unpack_from('>HH', frame, 5)
    else:
        found = f'a file that begins with {start.hex(" ") or "nothing"}'
        raise unsupported_error('image', found, 'JPEG or PNG')
    check_size(width, height)
    if start.startswith(JPEG_START):
        _check_coefficients(parts, frame)
    return CheckedImageFile(parts, (width, height), scans)


def check_size(width: int, height: int) -> None:
    """Refuse a picture that has no pixels, or more of them or longer sides than a camera's.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large_error``.
    """
    if width < 1 or height < 1:
        raise damaged_error('image', f'no pixels ({width}x{height})')
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise too_large_error(
            'image', f'{width}x{height}', f'{MAX_PIXELS} pixels, and {MAX_SIDE} a side'
        )


def _png_parts(content: memoryview) -> Iterator[bytes]:
    """Yield signature, header, palette, transparency, pixels and end of a PNG, one by one."""
    yield _PNG_START
    at, pixels = len(_PNG_START), False
    for index in range(_MAX_PARTS):
        size = int.from_bytes(content[at : at + 4], 'big')
        kind, end = bytes(content[at + 4 : at + 8]), at + 12 + size
        if end > len(content):
            raise truncated_error('PNG')
        if (index == 0) != (kind == b'IHDR') or (index == 0 and size != 13):
            raise damaged_error('PNG', 'no header in its place')
        if index and not kind[0] & _PNG_ANCILLARY and kind not in _PNG_CRITICAL:
            raise damaged_error('PNG', f'a part {kind!r}, which no PNG has')
        if kind in (b'IHDR', b'tRNS', *_PNG_CRITICAL):
            yield bytes(content[at:end])
        pixels |= kind == b'IDAT'
        if kind == b'IEND':
            if not pixels:
                raise damaged_error('PNG', 'no pixels')
            return
        at = end
    raise too_large_error('PNG', 'more', f'{_MAX_PARTS} parts')


def _jpeg_parts(file: npt.NDArray[np.uint8], scans: ScanInfo) -> Iterator[bytes | memoryview]:
    """Yield start, tables, frame, scans and end of a JPEG, one by one, with their markers.

    Notes in ``scans`` what is within them.
    """
    content = file.data
    yield JPEG_START
    at, frames, count = len(JPEG_START), 0, 0
    for _ in range(_MAX_PARTS):
        marker, at = _jpeg_marker(content, at)
        if marker == _JPEG_END:
            if not count:
                raise damaged_error('JPEG', 'no pixels')
            yield b'\xff\xd9'
            return
        end = at + _segment_size(content, at)
        if marker in _JPEG_FRAMES:
            frames += 1
            _check_frame(content[at:end])
        elif marker == _JPEG_SCAN:
            count += 1
            scans.begin = end
            end, markers = find_scan_end(file, end)
            scans.markers += markers
        elif marker not in _JPEG_TABLES | _JPEG_LEFT_OUT:
            found = f'marker {marker:#04x}, or a damaged file'
            raise unsupported_error('JPEG', found, 'baseline or progressive with Huffman coding')
        _check_counts(frames, count)
        if marker == _JPEG_SCAN:
            yield content[at - 2 : end]
        elif marker not in _JPEG_LEFT_OUT or marker in _JPEG_COLORS:
            yield bytes((0xFF, marker)) + content[at:end]
        at = end
    raise too_large_error('JPEG', 'more', f'{_MAX_PARTS} parts')


def _jpeg_marker(content: memoryview, at: int) -> tuple[int, int]:
    """Return the marker with which a part of a JPEG begins, and where the part goes on."""
    match = _JPEG_MARKER.match(content, at)
    if match is not None:
        return match[1][0], match.end()
    if at < len(content) and content[at] != 0xFF:
        raise damaged_error('JPEG', 'other bytes where one of its parts should begin')
    raise truncated_error('JPEG')


def _check_counts(frames: int, scans: int) -> None:
    """Refuse a JPEG with more frames than one, a scan before its frame, or too many scans."""
    if frames != 1 and (scans or frames):
        raise damaged_error('JPEG', 'another number of frames than one')
    if scans > _MAX_SCANS:
        raise too_large_error('JPEG', 'more', f'{_MAX_SCANS} scans')


def _segment_size(content: memoryview, at: int) -> int:
    """Return the length that a segment declares; it counts its own two bytes."""
    size = int.from_bytes(content[at : at + 2], 'big')
    if size < 2 or at + size > len(content):
        raise truncated_error('JPEG')
    return size


def _check_frame(segment: memoryview) -> None:
    """Look at a frame's header: length, bits, height, width, components, three bytes for each."""
    components = segment[7] if len(segment) > 7 else 0
    if components not in (1, 3, 4) or len(segment) != 8 + 3 * components or segment[2] != 8:
        raise damaged_error('JPEG', 'a frame not of 8 bits and one, three or four components')


def _check_coefficients(parts: Sequence[bytes | memoryview], frame: bytes | memoryview) -> None:
    """Refuse a file of which libjpeg would keep more coefficients, 2 bytes each, than pixels.

    It keeps them all where there are several scans, until the last was read.
    """
    if frame[1] != _PROGRESSIVE and sum(part[1] == _JPEG_SCAN for part in parts) < 2:
        return
    height, width = struct.unpack_from('>HH', frame, 5)
    across, down = zip(*((each >> 4, each & 15) for each in frame[11::3]), strict=True)
    samples = sum(x * y for x, y in zip(across, down, strict=True))
    if 2 * width * height * samples > 3 * MAX_PIXELS * max(across) * max(down):
        found = f'{width}x{height} in several scans'
        raise too_large_error('JPEG', found, f'{3 * MAX_PIXELS // 2} coefficients')


def find_scan_end(file: npt.NDArray[np.uint8], at: int) -> tuple[int, bytes]:
    """Return where the bits of a scan end that begin ``at``, and the markers within them.

    By NumPy, which looks at many bytes at once, without the lock of the interpreter.

    Raises:
        ImageError: they do not end.
    """
    markers: list[bytes] = []
    for begin in range(at, file.size - 1, _LOOK):
        piece = file[begin : begin + _LOOK + 1]  # with what follows its last byte
        # 1 where a byte 0xff is followed by another one than zero.
        marked = np.equal(piece[:-1], 0xFF).view(np.uint8)
        marked = np.minimum(marked, piece[1:], out=marked).view(np.bool_)
        place = int(marked.argmax())
        if marked[place] and _ENDS_SCAN[piece[place + 1]]:  # as a rule
            return begin + place, b''.join(markers)
        places = np.flatnonzero(marked)
        following = piece[places + 1]
        ends = np.flatnonzero(_ENDS_SCAN[following])
        if ends.size:
            markers.append(following[: ends[0]].tobytes())
            return begin + int(places[ends[0]]), b''.join(markers)
        markers.append(following.tobytes())
    raise truncated_error('JPEG')


def truncated_error(kind: str) -> ImageError:
    """Return the error of a file that lacks its end."""
    return ImageError('not_decodable', kind, 'it ends before one of its parts: it is truncated')


def unsupported_error(kind: str, found: str, expected: str, fix: str = '') -> ImageError:
    """Return the error of a file of a kind that is not read."""
    return ImageError('not_decodable', kind, found, expected=expected, fix=fix)


def too_large_error(kind: str, found: str, most: str) -> ImageError:
    """Return the error of a file that asks for more than is read."""
    fix = 'make it smaller, or let the camera send a smaller one'
    return ImageError('too_large', kind, found, expected=f'at most {most}', fix=fix)


def damaged_error(kind: str, found: str) -> ImageError:
    """Return the error of a file that contradicts itself or its format."""
    return ImageError('not_decodable', kind, f'{found}: it is damaged')
