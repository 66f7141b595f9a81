"""JPEGs of the plain kind that cameras send, written anew so that there is one way to read them.

Guarantees: the JPEG of a frame that is not decoded yet is baseline with Huffman coding, in one
scan of all components, grey or YCbCr in one of five samplings; its tables are complete and valid,
its components have the numbers 1 to 3, restart markers stand in their order, and its pixels are
those that libjpeg reads in the file it came from. Nothing else of that file is in it. So a decoder
other than libjpeg can be given it. Every other file is libjpeg's alone.
Non-guarantee: entropy-coded bits are what they are; a decoder may find them damaged.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.compressed import (
    JPEG_START,
    CheckedImageFile,
    check_image_file,
    find_scan_end,
)
from trt_perception.images.frame import PIXEL_FORMATS, Frame, frame_from_bgr
from trt_perception.images.jpeg_tables import STANDARD_HUFFMAN, read_huffman_tables

__all__ = [
    'JpegFrameReader',
    'as_plain_jpeg',
    'decode_on_cpu',
    'decode_to_frame',
    'undecoded_frame',
]

_LOG: Final = logging.getLogger(__name__)

# 8K video. A small file of many pixels must not make the decoder keep gigabytes.
_MAX_PIXELS: Final = 2**25
_BGR: Final = PIXEL_FORMATS['bgr8']
_NO_PIXELS: Final = np.empty(0, np.uint8)

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_HUFFMAN, _QUANTISATION, _INTERVAL, _SCAN = 0xC4, 0xDB, 0xDD, 0xDA
_JFIF, _ADOBE = 0xE0, 0xEE
_END: Final = b'\xff\xd9'

# Version 1.01, square pixels, no thumbnail.
_JFIF_HEADER: Final = b'\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0'
# Horizontal and vertical factor of luma, where chroma has 1 and 1: 4:4:4, 4:4:0, 4:2:2, 4:2:0,
# 4:1:1.
_SAMPLINGS: Final = (0x11, 0x12, 0x21, 0x22, 0x41)
# A sequential scan has all coefficients of a block, in full precision.
_WHOLE_SCAN: Final = bytes((0, 63, 0))
# The shortest codes have one bit: one for a block's DC, one for its end.
_BLOCK_BITS: Final = 2


def undecoded_frame(parts: tuple[bytes | memoryview, ...], width: int, height: int) -> Frame:
    """Return a frame whose pixels are not decoded yet.

    Args:
        parts: of a plain JPEG, in the file's order; entropy-coded bits lie where the message has
            them.
        width: pixels.
        height: pixels.
    """
    return Frame(_NO_PIXELS, width, height, width * _BGR.bytes_per_pixel, _BGR, jpeg=parts)


def decode_on_cpu(frame: Frame) -> Frame:
    """Return a frame with its pixels: a JPEG is decoded to bgr8, any other frame returned as is.

    Raises:
        ImageError: with the reason ``not_decodable``.
    """
    if frame.is_decoded:
        return frame
    return decode_to_frame(CheckedImageFile(frame.jpeg, (frame.width, frame.height)))


def decode_to_frame(picture: CheckedImageFile) -> Frame:
    """Return a picture as a bgr8 frame, decoded on the CPU.

    Raises:
        ImageError: with the reason ``not_decodable``.
    """
    return frame_from_bgr(picture.decode())


class JpegFrameReader:
    """Makes frames of one camera's files: plain JPEGs stay what they are, all others are decoded.

    Its JPEGs mostly begin alike, up to the entropy-coded bits: what was found there is not looked
    for again. Logs once for each kind of other pictures. Any thread may use it, several at once,
    and in any order: a frame does not depend on what came before.

    Attributes:
        is_fast_to_decode: the last file was a JPEG that a GPU decodes in a moment.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._logging = threading.Lock()
        # How a file began, and what it was; replaced as a whole.
        self._like: tuple[bytes, _Kind] | None = None
        self.is_fast_to_decode = False

    def __call__(self, file: npt.NDArray[np.uint8]) -> Frame:
        """Return the frame of a JPEG or PNG, uint8, one-dimensional.

        Raises:
            ImageError: with the reason ``not_decodable`` or ``too_large``.
        """
        self.is_fast_to_decode = False
        frame = self._frame(file)
        self.is_fast_to_decode = frame.is_fast_to_decode
        return frame

    def _frame(self, file: npt.NDArray[np.uint8]) -> Frame:
        frame = self._frame_like_before(file)
        if frame is not None:
            return frame
        picture = check_image_file(file)
        try:
            kind = _kind_of(picture)
            frame = kind.frame(_bits_of(picture), picture.scans.markers)
        except _OtherKindError as error:
            self._log(error.kind)
            return decode_to_frame(picture)
        self._like = file[: picture.scans.begin].tobytes(), kind
        return frame

    def _log(self, kind: str) -> None:
        with self._logging:
            known = kind in self._logged
            self._logged.add(kind)
        if not known:
            _LOG.warning('compressed images are decoded on the CPU where they are: %s', kind)

    def _frame_like_before(self, file: npt.NDArray[np.uint8]) -> Frame | None:
        """Return the frame of a file that begins as the last one, None where it does not."""
        like = self._like
        if like is None:
            return None
        head, kind = like
        begin = len(head)
        if file[:begin].tobytes() != head:
            return None
        end, markers = find_scan_end(file, begin)
        if file[end : end + len(_END)].tobytes() != _END:
            return None
        try:
            return kind.frame(file.data[begin:end], markers)
        except _OtherKindError:
            return None


class _OtherKindError(Exception):
    """The file is no JPEG of the plain kind.

    Attributes:
        kind: what it is or has, in a few words; there are few of them, as they are logged.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class _Kind:
    """What plain JPEGs that differ in their bits alone are.

    Attributes:
        head: the file up to the bits, written anew.
        size_wh: width and height in pixels.
        least_bytes: of the bits.
        restarts: numbers of the restart markers.
    """

    head: bytes
    size_wh: tuple[int, int]
    least_bytes: int
    restarts: bytes

    def frame(self, bits: bytes | memoryview, markers: bytes) -> Frame:
        """Return the JPEG of such bits.

        Args:
            bits: entropy-coded.
            markers: what follows each 0xff within them, but for zeros.

        Raises:
            _OtherKindError: the bits are not what size, sampling and restart interval say.
        """
        if len(bits) < self.least_bytes:
            raise _OtherKindError('JPEG of too few bytes')
        if markers != self.restarts or bits[-1] == 0xFF:
            raise _OtherKindError('JPEG of unusual restart markers')
        return undecoded_frame((self.head, bits, _END), *self.size_wh)


def as_plain_jpeg(picture: CheckedImageFile) -> Frame | str:
    """Return the picture as a JPEG of the plain kind, or what it is instead, in a few words.

    Args:
        picture: whose parts were checked.
    """
    try:
        return _kind_of(picture).frame(_bits_of(picture), picture.scans.markers)
    except _OtherKindError as error:
        return error.kind


def _kind_of(picture: CheckedImageFile) -> _Kind:
    if picture.parts[0] != JPEG_START:
        raise _OtherKindError('PNG')
    width, height = picture.size_wh
    if width * height > _MAX_PIXELS:
        raise _OtherKindError(f'JPEG of more than {_MAX_PIXELS} pixels')
    return _Parts(picture.parts[1:]).kind(picture.size_wh)


def _bits_of(picture: CheckedImageFile) -> bytes | memoryview:
    """Return the bits of the only scan, which is the part before the last."""
    scan = picture.parts[-2]
    return scan[2 + int.from_bytes(scan[2:4], 'big') :]


class _Parts:
    """The parts of a JPEG behind its start, read one by one; later tables replace earlier ones."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._quantisation: dict[int, bytes] = {}
        # As libjpeg has it: Motion JPEG of many cameras leaves out the standard's tables.
        self._huffman: dict[int, bytes] = dict(STANDARD_HUFFMAN)
        self._interval = 0
        self._frame = self._scan = b''
        readers = {
            _QUANTISATION: self._read_quantisation,
            _HUFFMAN: self._read_huffman,
            _INTERVAL: self._read_interval,
            _JFIF: self._read_application,
            _ADOBE: self._read_application,
            _BASELINE: self._read_frame,
            _EXTENDED: self._read_frame,
            _SCAN: self._read_scan,
        }
        if any(part[1] == _PROGRESSIVE for part in parts):
            raise _OtherKindError('progressive JPEG')
        if [part[1] for part in parts].index(_SCAN) != len(parts) - 2:
            raise _OtherKindError('JPEG of several scans')
        for part in parts[:-1]:
            size = int.from_bytes(part[2:4], 'big')
            readers[part[1]](bytes(part[4 : 2 + size]))

    def kind(self, size_wh: tuple[int, int]) -> _Kind:
        """Return what all files with these parts are, whatever their bits."""
        frame = [self._frame[at : at + 3] for at in range(6, len(self._frame), 3)]
        scan = [self._scan[at : at + 2] for at in range(1, len(self._scan) - 3, 2)]
        # One table may serve two components, and is written once.
        quantisation = dict.fromkeys(each[2] for each in frame)
        coding = dict.fromkeys(n for _, use in scan for n in (use >> 4, 0x10 | use & 15))
        components, selectors = b'', b''
        for number, (one, other) in enumerate(zip(frame, scan, strict=True), start=1):
            components += bytes((number, *one[1:]))
            selectors += bytes((number, other[1]))
        head = b''.join(
            (
                JPEG_START,
                _JFIF_HEADER,
                *(_table(_QUANTISATION, number, self._quantisation) for number in quantisation),
                _segment(_BASELINE, self._frame[:6] + components),
                *(_table(_HUFFMAN, number, self._huffman) for number in coding),
                _segment(_INTERVAL, struct.pack('>H', self._interval)) if self._interval else b'',
                _segment(_SCAN, bytes((len(scan),)) + selectors + _WHOLE_SCAN),
            )
        )
        return _Kind(head, size_wh, *self._bits(len(frame)))

    def _read_quantisation(self, body: bytes) -> None:
        for at in range(0, len(body), 65):
            number, values = body[at], body[at + 1 : at + 65]
            if number > 3 or len(values) != 64 or 0 in values:
                raise _OtherKindError('JPEG of unusual quantisation')
            self._quantisation[number] = values

    def _read_huffman(self, body: bytes) -> None:
        tables = read_huffman_tables(body)
        if tables is None:
            raise _OtherKindError('JPEG of unusual Huffman tables')
        self._huffman.update(tables)

    def _read_interval(self, body: bytes) -> None:
        if len(body) != 2:
            raise _OtherKindError('JPEG of an unusual restart interval')
        self._interval = int.from_bytes(body, 'big')

    def _read_application(self, body: bytes) -> None:
        # libjpeg would ask it for the colours, unless there is a JFIF header, too.
        if body.startswith(b'Adobe'):
            raise _OtherKindError("JPEG with Adobe's colours")

    def _read_frame(self, body: bytes) -> None:
        self._frame = body

    def _read_scan(self, body: bytes) -> None:
        self._scan = body
        numbers = self._frame[6::3]
        if len(numbers) not in (1, 3) or len(set(numbers)) != len(numbers) or numbers == b'RGB':
            raise _OtherKindError('JPEG of other colours than YCbCr')
        samplings = self._frame[7::3]
        if samplings[0] not in _SAMPLINGS[: 1 if len(samplings) == 1 else None]:
            raise _OtherKindError('JPEG of an unusual sampling')
        if any(sampling != 0x11 for sampling in samplings[1:]):
            raise _OtherKindError('JPEG of an unusual sampling')
        named = body[1:-3:2] if len(body) == 4 + 2 * len(numbers) else b''
        if body[:1] != bytes((len(numbers),)) or named != numbers or body[-3:] != _WHOLE_SCAN:
            raise _OtherKindError('JPEG of several scans')

    def _bits(self, components: int) -> tuple[int, bytes]:
        """Return how many bytes of bits there are at least, and the restart markers' numbers."""
        height, width = struct.unpack_from('>HH', self._frame, 1)
        across, down = self._frame[7] >> 4, self._frame[7] & 15
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        blocks = units * (across * down + components - 1)
        restarts = (units - 1) // self._interval if self._interval else 0
        numbers = bytes(range(0xD0, 0xD8)) * (restarts // 8 + 1)
        return -(-_BLOCK_BITS * blocks // 8), numbers[:restarts]


def _table(marker: int, number: int, tables: dict[int, bytes]) -> bytes:
    if number not in tables:
        raise _OtherKindError('JPEG that lacks tables')
    return _segment(marker, bytes((number,)) + tables[number])


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack('>H', 2 + len(body)) + body
