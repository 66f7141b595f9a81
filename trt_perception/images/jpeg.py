# SPDX-License-Identifier: Apache-2.0
"""Read JPEG frames, and rewrite the headers of plain JPEGs for decoders other than libjpeg.

A plain JPEG is the usual kind that cameras send: baseline with Huffman coding, one scan of all
components, grey or YCbCr with one of five samplings. The CPU decodes all other files with libjpeg.

Guarantees for a frame with ``jpeg``: its tables are complete and valid, its components have the
numbers 1 to 3, and its restart markers are in order. The headers are rewritten, so no other
content of the original file remains. libjpeg decodes both files to the same pixels.
Limitation: the entropy-coded data is copied, and may be damaged.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.compressed import (
    JFIF_HEADER,
    JPEG_START,
    CheckedImageFile,
    check_image_file,
    search_scan,
)
from trt_perception.images.frame import PIXEL_FORMATS, Frame, frame_from_bgr

_LOG: Final = logging.getLogger(__name__)

# Largest plain JPEG, enough for 8K video. A small file with many pixels must not make the decoder
# keep gigabytes of memory.
_MAX_PIXELS: Final = 2**25
# Maximum size of the headers that a reader keeps. Cameras send headers of less than 1 KB.
_MAX_KEPT_HEADER_BYTES: Final = 2**16
_BGR8: Final = PIXEL_FORMATS['bgr8']
_NO_PIXELS: Final = np.empty(0, np.uint8)

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_HUFFMAN, _QUANTISATION, _INTERVAL, _SCAN = 0xC4, 0xDB, 0xDD, 0xDA
_JFIF, _ADOBE = 0xE0, 0xEE
_END_MARKER: Final = b'\xff\xd9'

# Horizontal and vertical sampling factors of luma, for chroma factors of 1: 4:4:4, 4:4:0, 4:2:2,
# 4:2:0 and 4:1:1.
_PLAIN_SAMPLINGS: Final = (0x11, 0x12, 0x21, 0x22, 0x41)
# Spectral selection of a sequential scan: all coefficients (0 to 63), in full precision.
_SEQUENTIAL_SCAN_PARAMETERS: Final = bytes((0, 63, 0))
# The minimum bits of a block: a DC code and an end-of-block code, each at least one bit long.
_MIN_BLOCK_BITS: Final = 2

# ITU-T T.81, tables F.1 and F.2. For 8-bit pixels a DC difference has at most 11 bits, and an AC
# coefficient 10. AC symbols without bits are the end of a block, and a run of 16 zeros.
_DC_SYMBOLS: Final = frozenset(range(12))
_AC_SYMBOLS: Final = frozenset((0x00, 0xF0)) | {
    16 * run + bits for run in range(16) for bits in range(1, 11)
}

# Tables of ITU-T T.81, K.3.3. Keys: class (0 for DC, 0x10 for AC) plus 0 for luma, 1 for chroma.
_STANDARD_HUFFMAN_TABLES: Final[Mapping[int, bytes]] = MappingProxyType(
    {
        key: bytes.fromhex(text)
        for key, text in {
            0x00: '00010501010101010100000000000000000102030405060708090a0b',
            0x01: '00030101010101010101010000000000000102030405060708090a0b',
            0x10: (
                '0002010303020403050504040000017d01020300041105122131410613516107227114328191a108'
                '2342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a43444546474849'
                '4a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798'
                '999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2'
                'e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa'
            ),
            0x11: (
                '00020102040403040705040400010277000102031104052131061241510761711322328108144291'
                'a1b1c109233352f0156272d10a162434e125f11718191a262728292a35363738393a434445464748'
                '494a535455565758595a636465666768696a737475767778797a82838485868788898a9293949596'
                '9798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9da'
                'e2e3e4e5e6e7e8e9eaf2f3f4f5f6f7f8f9fa'
            ),
        }.items()
    }
)


def undecoded_frame(parts: tuple[bytes | memoryview, ...], width: int, height: int) -> Frame:
    """Return a frame whose pixels are not decoded yet.

    Args:
        parts: parts of a plain JPEG, in the file's order. The entropy-coded data is a view of the
            message.
        width: pixels.
        height: pixels.
    """
    return Frame(_NO_PIXELS, width, height, width * _BGR8.bytes_per_pixel, _BGR8, jpeg=parts)


def decode_on_cpu(frame: Frame) -> Frame:
    """Return a frame with pixels: decode a JPEG, and return other frames unchanged.

    Raises:
        ImageError: with the reason ``not_decodable``.
    """
    if frame.is_decoded:
        return frame
    decoded = decode_to_frame(CheckedImageFile(frame.jpeg, (frame.width, frame.height)))
    # The format differs from bgr8 if red and blue are swapped in the file.
    return decoded if frame.format is decoded.format else replace(decoded, format=frame.format)


def decode_to_frame(image_file: CheckedImageFile) -> Frame:
    """Decode a JPEG or PNG on the CPU, and return the image as a bgr8 frame.

    Raises:
        ImageError: with the reason ``not_decodable``.
    """
    decoded = image_file.decode()
    return frame_from_bgr(decoded.bgr, decoded.warning)


class JpegFrameReader:
    """Reads the compressed images of one camera. Plain JPEGs stay undecoded.

    A camera's JPEGs usually have identical headers up to the entropy-coded data. For these files,
    the reader reuses the parsed headers of the last file, up to 64 KiB. It logs each other format
    once.
    Several threads may call a reader at once, because no frame depends on earlier frames.

    Attributes:
        is_fast_to_decode: whether the last file was a JPEG that a GPU decodes in about 2 ms.
    """

    def __init__(self) -> None:
        self._logged_formats: set[str] = set()
        self._log_lock = threading.Lock()
        # The headers of the last plain JPEG as bytes, and its format. They are one tuple, so that
        # a thread replaces both at once.
        self._last_format: tuple[bytes, _JpegFormat] | None = None
        self.is_fast_to_decode = False

    def __call__(self, file: npt.NDArray[np.uint8]) -> Frame:
        """Return the frame of a JPEG or PNG.

        Args:
            file: the file's bytes, uint8, one-dimensional.

        Raises:
            ImageError: with the reason ``not_decodable`` or ``too_large``.
        """
        self.is_fast_to_decode = False
        frame = self._frame(file)
        self.is_fast_to_decode = frame.is_fast_to_decode
        return frame

    def _frame(self, file: npt.NDArray[np.uint8]) -> Frame:
        frame = self._frame_in_last_format(file)
        if frame is not None:
            return frame
        image_file = check_image_file(file)
        try:
            file_format = _read_format(image_file)
            frame = file_format.build_frame(_scan_data(image_file), image_file.scans.markers)
        except _NotPlainError as error:
            self._log(error.file_format)
            return decode_to_frame(image_file)
        if image_file.scans.start <= _MAX_KEPT_HEADER_BYTES:
            self._last_format = file[: image_file.scans.start].tobytes(), file_format
        return frame

    def _log(self, file_format: str) -> None:
        with self._log_lock:
            known = file_format in self._logged_formats
            self._logged_formats.add(file_format)
        if not known:
            _LOG.warning('The CPU decodes compressed images of this format: %s', file_format)

    def _frame_in_last_format(self, file: npt.NDArray[np.uint8]) -> Frame | None:
        """Return the frame if the file has the same headers as the last file, else None."""
        last = self._last_format
        if last is None:
            return None
        header, file_format = last
        begin = len(header)
        if file[:begin].tobytes() != header:
            return None
        end, markers = search_scan(file, begin)
        if end is None or file[end : end + len(_END_MARKER)].tobytes() != _END_MARKER:
            return None
        try:
            return file_format.build_frame(file.data[begin:end], markers)
        except _NotPlainError:
            return None


class _NotPlainError(Exception):
    """The file is not a plain JPEG.

    Attributes:
        file_format: a short description of the file. Each description is logged once, so there
            are only few.
    """

    def __init__(self, file_format: str) -> None:
        super().__init__(file_format)
        self.file_format = file_format


@dataclass(frozen=True)
class _JpegFormat:
    """The common properties of plain JPEGs that differ only in their entropy-coded data.

    Attributes:
        header: the rewritten file up to the entropy-coded data.
        size_wh: width and height in pixels.
        min_scan_bytes: minimum number of bytes of the entropy-coded data.
        restarts: second bytes of the restart markers, in order.
    """

    header: bytes
    size_wh: tuple[int, int]
    min_scan_bytes: int
    restarts: bytes

    def build_frame(self, scan_data: bytes | memoryview, markers: bytes) -> Frame:
        """Return the frame of a JPEG with this format.

        Args:
            scan_data: entropy-coded data.
            markers: the non-zero bytes after each 0xff in the data.

        Raises:
            _NotPlainError: the data contradicts the size, sampling or restart interval.
        """
        if len(scan_data) < self.min_scan_bytes:
            raise _NotPlainError('JPEG with too few bytes')
        if markers != self.restarts or scan_data[-1] == 0xFF:
            raise _NotPlainError('JPEG with unusual restart markers')
        return undecoded_frame((self.header, scan_data, _END_MARKER), *self.size_wh)


def as_plain_jpeg(image_file: CheckedImageFile) -> Frame | str:
    """Return a plain JPEG as an undecoded frame. Return a short description of other files."""
    try:
        return _read_format(image_file).build_frame(
            _scan_data(image_file), image_file.scans.markers
        )
    except _NotPlainError as error:
        return error.file_format


def _read_format(image_file: CheckedImageFile) -> _JpegFormat:
    if image_file.parts[0] != JPEG_START:
        raise _NotPlainError('PNG')
    if not image_file.scans.has_end:
        # nvJPEG reports no truncated files.
        raise _NotPlainError('JPEG without an end marker')
    width, height = image_file.size_wh
    if width * height > _MAX_PIXELS:
        raise _NotPlainError(f'JPEG with more than {_MAX_PIXELS} pixels')
    return _HeaderParser(image_file.parts[1:]).file_format(image_file.size_wh)


def _scan_data(image_file: CheckedImageFile) -> bytes | memoryview:
    """Return the entropy-coded data of the only scan. Only the end marker follows this part."""
    scan = image_file.parts[-2]
    return scan[2 + int.from_bytes(scan[2:4], 'big') :]


class _HeaderParser:
    """Parses the parts of a JPEG after its start. Later tables replace earlier ones."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._quantisation: dict[int, bytes] = {}
        # Start with the standard tables, as libjpeg does: many cameras omit them in Motion JPEG.
        self._huffman: dict[int, bytes] = dict(_STANDARD_HUFFMAN_TABLES)
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
            raise _NotPlainError('progressive JPEG')
        if [part[1] for part in parts].index(_SCAN) != len(parts) - 2:
            raise _NotPlainError('JPEG with several scans')
        for part in parts[:-1]:
            size = int.from_bytes(part[2:4], 'big')
            readers[part[1]](bytes(part[4 : 2 + size]))

    def file_format(self, size_wh: tuple[int, int]) -> _JpegFormat:
        """Return the format of all files with these headers."""
        frame = [self._frame[at : at + 3] for at in range(6, len(self._frame), 3)]
        scan = [self._scan[at : at + 2] for at in range(1, len(self._scan) - 3, 2)]
        # Components may share a table. Write each table once.
        quantisation = dict.fromkeys(each[2] for each in frame)
        coding = dict.fromkeys(n for _, use in scan for n in (use >> 4, 0x10 | use & 15))
        components, selectors = b'', b''
        for number, (one, other) in enumerate(zip(frame, scan, strict=True), start=1):
            components += bytes((number, *one[1:]))
            selectors += bytes((number, other[1]))
        header = b''.join(
            (
                JPEG_START,
                JFIF_HEADER,
                *(
                    _make_table_segment(_QUANTISATION, number, self._quantisation)
                    for number in quantisation
                ),
                _make_segment(_BASELINE, self._frame[:6] + components),
                *(_make_table_segment(_HUFFMAN, number, self._huffman) for number in coding),
                _make_segment(_INTERVAL, struct.pack('>H', self._interval))
                if self._interval
                else b'',
                _make_segment(
                    _SCAN, bytes((len(scan),)) + selectors + _SEQUENTIAL_SCAN_PARAMETERS
                ),
            )
        )
        return _JpegFormat(header, size_wh, *self._min_scan_bytes_and_restart_markers(len(frame)))

    def _read_quantisation(self, body: bytes) -> None:
        for at in range(0, len(body), 65):
            number, values = body[at], body[at + 1 : at + 65]
            if number > 3 or len(values) != 64 or 0 in values:
                raise _NotPlainError('JPEG with unusual quantisation')
            self._quantisation[number] = values

    def _read_huffman(self, body: bytes) -> None:
        # A table has the number of codes with 1 to 16 bits (16 counts), and the symbols.
        offset = 0
        while offset < len(body):
            key, counts = body[offset], body[offset + 1 : offset + 17]
            end = offset + 17 + sum(counts)
            symbols = body[offset + 17 : end]
            allowed = _AC_SYMBOLS if key & 0x10 else _DC_SYMBOLS
            if (
                key & ~0x11
                or end > len(body)
                or not symbols
                or not allowed.issuperset(symbols)
                or not _is_prefix_code(counts)
            ):
                raise _NotPlainError('JPEG with unusual Huffman tables')
            self._huffman[key] = counts + symbols
            offset = end

    def _read_interval(self, body: bytes) -> None:
        if len(body) != 2:
            raise _NotPlainError('JPEG with an unusual restart interval')
        self._interval = int.from_bytes(body, 'big')

    def _read_application(self, body: bytes) -> None:
        # Without a JFIF header, libjpeg takes the colour space from the Adobe segment.
        if body.startswith(b'Adobe'):
            raise _NotPlainError('JPEG with an Adobe segment')

    def _read_frame(self, body: bytes) -> None:
        self._frame = body

    def _read_scan(self, body: bytes) -> None:
        self._scan = body
        numbers = self._frame[6::3]
        if len(numbers) not in (1, 3) or len(set(numbers)) != len(numbers) or numbers == b'RGB':
            raise _NotPlainError('JPEG with a colour space other than YCbCr')
        samplings = self._frame[7::3]
        if samplings[0] not in _PLAIN_SAMPLINGS[: 1 if len(samplings) == 1 else None]:
            raise _NotPlainError('JPEG with unusual chroma sampling')
        if any(sampling != 0x11 for sampling in samplings[1:]):
            raise _NotPlainError('JPEG with unusual chroma sampling')
        named = body[1:-3:2] if len(body) == 4 + 2 * len(numbers) else b''
        if (
            body[:1] != bytes((len(numbers),))
            or named != numbers
            or body[-3:] != _SEQUENTIAL_SCAN_PARAMETERS
        ):
            raise _NotPlainError('JPEG with several scans')

    def _min_scan_bytes_and_restart_markers(self, components: int) -> tuple[int, bytes]:
        """Return the minimum bytes of entropy-coded data, and the expected restart markers."""
        height, width = struct.unpack_from('>HH', self._frame, 1)
        across, down = self._frame[7] >> 4, self._frame[7] & 15
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        blocks = units * (across * down + components - 1)
        restarts = (units - 1) // self._interval if self._interval else 0
        numbers = bytes(range(0xD0, 0xD8)) * (restarts // 8 + 1)
        return -(-_MIN_BLOCK_BITS * blocks // 8), numbers[:restarts]


def _is_prefix_code(counts: bytes) -> bool:
    """Return whether a prefix code with these lengths exists. The all-ones code is reserved."""
    used = 0
    for bits, count in enumerate(counts, start=1):
        used = 2 * used + count
        if used >= 2**bits:
            return False
    return True


def _make_table_segment(marker: int, number: int, tables: dict[int, bytes]) -> bytes:
    if number not in tables:
        raise _NotPlainError('JPEG without all its tables')
    return _make_segment(marker, bytes((number,)) + tables[number])


def _make_segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack('>H', 2 + len(body)) + body
