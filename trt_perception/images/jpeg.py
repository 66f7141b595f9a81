"""JPEGs of the plain kind that cameras send, written anew so that there is one way to read them.

Guarantees: a JpegFrame that exists is baseline with Huffman coding, in one scan of all components,
grey or YCbCr in one of five samplings; its tables are complete and valid, its components have the
numbers 1 to 3, restart markers stand in their order, and its pixels are those that libjpeg reads
in the file it came from. Nothing else of that file is in it. So a decoder other than libjpeg can
be given it. Every other file is libjpeg's alone.
Non-guarantee: entropy-coded bits are what they are; a decoder may find them damaged.
"""

from __future__ import annotations

import functools
import logging
import struct
from dataclasses import dataclass
from typing import Final
from typing import TypeAlias

from trt_perception.images.compressed import JPEG_START
from trt_perception.images.compressed import CheckedPicture
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.frame import Frame
from trt_perception.images.frame import PixelFormat
from trt_perception.images.jpeg_tables import STANDARD_HUFFMAN
from trt_perception.images.picture_files import frame_of

__all__ = ['AnyFrame', 'JpegFrame', 'PlainJpegs', 'decoded_frame', 'plain_jpeg']

_LOG: Final = logging.getLogger(__name__)

# 8K video. A small file of many pixels must not make the decoder keep gigabytes.
_MAX_PIXELS: Final = 2**25

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
# ITU-T T.81, tables F.1 and F.2: the most bits that a difference or coefficient of 8-bit pixels
# has; an AC symbol without bits ends a block or is a run of 16 zeros.
_DC_SYMBOLS: Final = frozenset(range(12))
_AC_SYMBOLS: Final = frozenset((0x00, 0xF0)) | {
    16 * run + bits for run in range(16) for bits in range(1, 11)
}
# The shortest codes have one bit: one for a block's DC, one for its end.
_BLOCK_BITS: Final = 2


@dataclass(frozen=True)
class JpegFrame:
    """One image as a JPEG that any decoder reads alike, and what it is once it is decoded.

    Attributes:
        data: the file.
        width: pixels.
        height: pixels.
        format: bgr8, once it is decoded.
        big_endian: False.
    """

    data: bytes
    width: int
    height: int
    format: PixelFormat = PIXEL_FORMATS['bgr8']
    big_endian: bool = False

    @property
    def step(self) -> int:
        """Bytes from one row of the decoded image to the next."""
        return self.width * self.format.bytes_per_pixel

    def decode(self) -> Frame:
        """Decode it on the CPU, to bgr8.

        Raises:
            ImageError: with the reason ``not_decodable``.
        """
        return decoded_frame(CheckedPicture((self.data,), (self.width, self.height)))


#: An image as the detector has it: pixels, or what a pipeline that decodes JPEG makes pixels of.
AnyFrame: TypeAlias = Frame | JpegFrame


def decoded_frame(picture: CheckedPicture) -> Frame:
    """Return a picture as a bgr8 frame, decoded on the CPU.

    Raises:
        ImageError: with the reason ``not_decodable``.
    """
    return frame_of(picture.decode())


class PlainJpegs:
    """Makes frames of pictures: plain JPEGs stay what they are, all others are decoded here.

    Logs once for each kind of other pictures.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, picture: CheckedPicture) -> AnyFrame:
        """Return the frame.

        Raises:
            ImageError: with the reason ``not_decodable``.
        """
        frame = plain_jpeg(picture)
        if isinstance(frame, JpegFrame):
            return frame
        if frame not in self._logged:
            self._logged.add(frame)
            _LOG.warning('compressed images are decoded on the CPU where they are: %s', frame)
        return decoded_frame(picture)


class _OtherKindError(Exception):
    """Says in a few words what a file is or has; a small number of them, as they are logged."""


def plain_jpeg(picture: CheckedPicture) -> JpegFrame | str:
    """Return the picture as a JPEG of the plain kind, or what it is instead, in a few words.

    Args:
        picture: whose parts were checked; not upright.
    """
    assert not picture.upright
    if picture.parts[0] != JPEG_START:
        return 'PNG'
    width, height = picture.size_wh
    if width * height > _MAX_PIXELS:
        return f'JPEG of more than {_MAX_PIXELS} pixels'
    try:
        return JpegFrame(_Parts(picture).written(), width, height)
    except _OtherKindError as error:
        return str(error)


class _Parts:
    """The parts of a JPEG behind its start, read one by one; later tables replace earlier ones."""

    def __init__(self, picture: CheckedPicture) -> None:
        parts = picture.parts[1:]
        self._scan_markers = picture.scan_markers
        self._quantisation: dict[int, bytes] = {}
        # As libjpeg has it: Motion JPEG of many cameras leaves out the standard's tables.
        self._huffman: dict[int, bytes] = dict(STANDARD_HUFFMAN)
        self._interval = 0
        self._frame = self._scan = b''
        self._bits: bytes | memoryview = b''
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
            self._bits = part[2 + size :]
            readers[part[1]](bytes(part[4 : 2 + size]))

    def written(self) -> bytes:
        """Return the file anew."""
        frame = [self._frame[at : at + 3] for at in range(6, len(self._frame), 3)]
        scan = [self._scan[at : at + 2] for at in range(1, len(self._scan) - 3, 2)]
        self._check_bits(len(frame))
        # One table may serve two components, and is written once.
        quantisation = dict.fromkeys(each[2] for each in frame)
        coding = dict.fromkeys(n for _, use in scan for n in (use >> 4, 0x10 | use & 15))
        components, selectors = b'', b''
        for number, (one, other) in enumerate(zip(frame, scan, strict=True), start=1):
            components += bytes((number, *one[1:]))
            selectors += bytes((number, other[1]))
        return b''.join(
            (
                JPEG_START,
                _JFIF_HEADER,
                *(_table(_QUANTISATION, number, self._quantisation) for number in quantisation),
                _segment(_BASELINE, self._frame[:6] + components),
                *(_table(_HUFFMAN, number, self._huffman) for number in coding),
                _segment(_INTERVAL, struct.pack('>H', self._interval)) if self._interval else b'',
                _segment(_SCAN, bytes((len(scan),)) + selectors + _WHOLE_SCAN),
                self._bits,
                _END,
            )
        )

    def _read_quantisation(self, body: bytes) -> None:
        for at in range(0, len(body), 65):
            number, values = body[at], body[at + 1 : at + 65]
            if number > 3 or len(values) != 64 or 0 in values:
                raise _OtherKindError('JPEG of unusual quantisation')
            self._quantisation[number] = values

    def _read_huffman(self, body: bytes) -> None:
        self._huffman.update(_huffman_tables(body))

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

    def _check_bits(self, components: int) -> None:
        """Hold the entropy-coded bytes to what size, sampling and restart interval say."""
        height, width = struct.unpack_from('>HH', self._frame, 1)
        across, down = self._frame[7] >> 4, self._frame[7] & 15
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        blocks = units * (across * down + components - 1)
        if 8 * len(self._bits) < _BLOCK_BITS * blocks:
            raise _OtherKindError('JPEG of too few bytes')
        restarts = (units - 1) // self._interval if self._interval else 0
        numbers = bytes(range(0xD0, 0xD8)) * (restarts // 8 + 1)
        if self._scan_markers != numbers[:restarts] or self._bits[-1] == 0xFF:
            raise _OtherKindError('JPEG of unusual restart markers')


# A camera's are the same in all its images.
@functools.lru_cache(maxsize=16)
def _huffman_tables(body: bytes) -> dict[int, bytes]:
    """Return the tables of a segment by number, with 0x10 for AC: counts of each length, symbols.

    Raises:
        _OtherKindError: one of them is not valid.
    """
    tables, at = {}, 0
    while at < len(body):
        counts = body[at + 1 : at + 17]
        end = at + 17 + sum(counts)
        symbols = body[at + 17 : end]
        allowed = _AC_SYMBOLS if body[at] & 0x10 else _DC_SYMBOLS
        if (
            body[at] & ~0x11
            or end > len(body)
            or not symbols
            or not allowed.issuperset(symbols)
            or not _is_prefix_code(counts)
        ):
            raise _OtherKindError('JPEG of unusual Huffman tables')
        tables[body[at]] = counts + symbols
        at = end
    return tables


def _is_prefix_code(counts: bytes) -> bool:
    """Tell whether codes of these lengths exist; the one of all ones belongs to nobody."""
    used = 0
    for bits, count in enumerate(counts, start=1):
        used = 2 * used + count
        if used >= 2**bits:
            return False
    return True


def _table(marker: int, number: int, tables: dict[int, bytes]) -> bytes:
    if number not in tables:
        raise _OtherKindError('JPEG that lacks tables')
    return _segment(marker, bytes((number,)) + tables[number])


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack('>H', 2 + len(body)) + body
