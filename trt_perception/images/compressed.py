# SPDX-License-Identifier: Apache-2.0
"""Check JPEG and PNG files, and decode them to pixels.

Guarantees: a file of a few kilobytes cannot request gigabytes of memory or minutes of work.
Truncated files are refused, and never decoded to a half grey image (only with simplejpeg, see the
module ``decompress``).
Decoders alone would allocate any length that a part of the file declares. This module therefore
checks the length of each part against the file. The decoder receives a new file with only the
parts that the pixels need. Parts that two readers could interpret differently are not included.
Files without an end marker, with bytes between their parts or after their end, are accepted if no
pixel is missing, as by libjpeg or Pillow.
Limitation: flipped bits inside the pixel data of a JPEG are not detected.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.images.decompress import DecodedImage, decode_jpeg, decode_png, jpeg_defect
from trt_perception.images.frame import MAX_SIDE

#: 134 megapixels, or 403 MB after decoding: twice the largest camera with a ROS driver.
MAX_PIXELS: Final = 2**27
# Each scan of a progressive JPEG costs a pass over all pixels. Encoders write about ten scans.
_MAX_SCANS: Final = 64
# Parts are segments of a JPEG or chunks of a PNG. Python needs about 1 µs for each.
_MAX_PARTS: Final = 2**16

#: The first two bytes of a JPEG.
JPEG_START: Final = b'\xff\xd8'
_PNG_START: Final = b'\x89PNG\r\n\x1a\n'
_PNG_END: Final = b'\0\0\0\0IEND\xaeB`\x82'
_PNG_CRITICAL_CHUNKS: Final = (b'PLTE', b'IDAT', b'IEND')
# If the first letter of a chunk's name has this bit, it is lower-case and the chunk is ancillary.
# Decoders may ignore ancillary chunks.
_PNG_ANCILLARY_BIT: Final = 0x20
# Channels by colour type. The values of a palette have one channel.
_PNG_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# First column and row of each pass of an interlaced PNG, and the steps between its pixels.
_PNG_PASSES: Final = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
# Inflated bytes to count at a time.
_INFLATED_BYTES: Final = 2**20

_JPEG_MARKER_PATTERN: Final = re.compile(rb'\xff{1,256}([^\0\xff])', re.DOTALL)
# For each value of the byte after 0xff: whether the two bytes end the scan. The scan continues
# after zero (an escaped 0xff), 0xd0 to 0xd7 (restart markers) and 0xff (a fill byte).
_IS_SCAN_END_BY_NEXT_BYTE: Final = ~np.isin(np.arange(256), (0x00, *range(0xD0, 0xD8), 0xFF))
# Bytes to search at a time. Most camera images fit, and the chunk fits the processor's caches.
_SEARCH_BYTES: Final = 2**20
# ITU-T T.81, table B.1: baseline, extended and progressive, all with Huffman coding.
_JPEG_FRAME_MARKERS: Final = frozenset((0xC0, 0xC1, 0xC2))
_JPEG_TABLE_MARKERS: Final = frozenset((0xC4, 0xDB, 0xDD))
_PROGRESSIVE_FRAME_MARKER: Final = 0xC2
_RESTART_INTERVAL_MARKER: Final = 0xDD
_FIRST_RESTART_MARKER: Final = 0xD0
_JPEG_SCAN_MARKER: Final = 0xDA
_JPEG_END_MARKER: Final = 0xD9
_JPEG_END: Final = b'\xff\xd9'
_JPEG_LINES_MARKER: Final = 0xDC
# Zeros after a scan without an end marker are padding if there are at least as many. Fewer can be
# coded pixels.
_MIN_PADDING: Final = bytes(4)
# JFIF and Adobe segments define the colour space of the components.
_JPEG_COLOR_MARKERS: Final = frozenset((0xE0, 0xEE))
#: A JFIF header of version 1.01, with square pixels and without a thumbnail.
JFIF_HEADER: Final = b'\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0'
# Comments and application data, which do not affect the pixels.
_JPEG_METADATA_MARKERS: Final = frozenset(range(0xE0, 0xF0)) | {0xFE}


@dataclass
class ScanInfo:
    """Positions in the entropy-coded data of a JPEG.

    Attributes:
        start: offset in the file of the last scan's data, in bytes.
        markers: the non-zero bytes after each 0xff in the data of all scans.
        has_end: whether the file has an end marker. Without it, only the decoder can tell
            whether the last scan is complete.
        has_spare_bytes: whether there are bytes between the segments.
    """

    start: int = 0
    markers: bytes = b''
    has_end: bool = True
    has_spare_bytes: bool = False


@dataclass(frozen=True)
class CheckedImageFile:
    """A JPEG or PNG, as parts whose lengths were checked against the file.

    Attributes:
        parts: the parts that the pixels need, in the file's order. Joined, they are a valid file.
            A JPEG's scans and a PNG's chunks are views of the original file.
        size_wh: width and height in pixels, as the file stores them.
        scans: positions in the scans of a JPEG; empty for a PNG.
    """

    parts: tuple[bytes | memoryview, ...]
    size_wh: tuple[int, int]
    scans: ScanInfo = field(default_factory=ScanInfo)

    def decode(self) -> DecodedImage:
        """Decode the image, and check its size.

        Raises:
            ImageError: with the reason ``not_decodable``.
        """
        if self.parts[0] == JPEG_START:  # JpegFrameReader checks the markers of plain JPEGs itself
            _check_restart_markers(self.parts, self.scans.markers)
            if not self.scans.has_end:
                _check_all_scans(self.parts)
        file = b''.join(self.parts)
        is_jpeg = file.startswith(JPEG_START)
        has_end = self.scans.has_end
        decoded = decode_jpeg(file, self.size_wh, has_end) if is_jpeg else decode_png(file)
        if self.scans.has_spare_bytes and not decoded.warning:
            decoded = decoded._replace(warning=jpeg_defect('bytes between its segments'))
        size_wh = decoded.bgr.shape[1], decoded.bgr.shape[0]
        if size_wh != self.size_wh:
            declared, found = (f'{width}x{height}' for width, height in (self.size_wh, size_wh))
            raise damaged_error(
                'image', f'the header says {declared}, the decoder returned {found}'
            )
        return decoded


def decode_image_file(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Decode a JPEG or PNG.

    The EXIF orientation is ignored, as by image_transport. Boxes refer to the stored pixels.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``.
    """
    return check_image_file(content).decode().bgr


def check_image_file(content: npt.NDArray[np.uint8]) -> CheckedImageFile:
    """Check the declared lengths of a JPEG or PNG, and that its size is plausible for a camera.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``.
    """
    start = content[: len(_PNG_START)].tobytes()
    parts: tuple[bytes | memoryview, ...]
    scans = ScanInfo()
    if start == _PNG_START:
        parts = _png_parts(content.data)
        width, height = struct.unpack_from('>II', parts[1], 8)
    elif start.startswith(JPEG_START):
        parts = tuple(_jpeg_parts(content, scans))
        frame = next(part for part in parts if part[1] in _JPEG_FRAME_MARKERS)
        height, width = struct.unpack_from('>HH', frame, 5)
    else:
        found = f'a file that begins with {start.hex(" ") or "nothing"}'
        fix = (
            'let the camera send JPEG or PNG (image_transport: the parameter .compressed.format '
            'of the publisher)'
        )
        raise unsupported_error('image', found, 'JPEG or PNG', fix)
    check_image_size(width, height)
    if start.startswith(JPEG_START):
        _check_coefficient_memory(parts, frame)
    return CheckedImageFile(parts, (width, height), scans)


def check_image_size(width: int, height: int) -> None:
    """Check that an image has between 1 and ``MAX_PIXELS`` pixels, and sides up to ``MAX_SIDE``.

    Args:
        width: width of the image in pixels.
        height: height of the image in pixels.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``.
    """
    if width < 1 or height < 1:
        raise damaged_error('image', f'no pixels ({width}x{height})')
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise too_large_error(
            'image', f'{width}x{height}', f'{MAX_PIXELS} pixels and {MAX_SIDE} pixels a side'
        )


def _png_parts(content: memoryview) -> tuple[bytes | memoryview, ...]:
    """Return the signature, header, palette, transparency, pixels and end of a PNG in order.

    A file whose end is missing or damaged gets a new end if all its pixels are there.
    """
    chunks: list[bytes | memoryview] = []
    try:
        for chunk in _png_chunks(content):
            chunks.append(chunk)  # noqa: PERF402 - an error must not lose the chunks before it
    except ImageError as error:
        if error.reason == 'too_large' or not _has_all_pixels(chunks):
            raise
    return (_PNG_START, *chunks, _PNG_END)


def _png_chunks(content: memoryview) -> Iterator[bytes | memoryview]:
    """Yield the chunks of a PNG that the pixels need, up to the end of the image.

    A chunk of pixels at the end of a truncated file gets a new length and checksum.
    """
    offset, pixels = len(_PNG_START), False
    for index in range(_MAX_PARTS):
        size = int.from_bytes(content[offset : offset + 4], 'big')
        kind, end = bytes(content[offset + 4 : offset + 8]), offset + 12 + size
        if end > len(content):
            if kind == b'IDAT':
                rest = bytes(content[offset + 4 : end - 4])  # the kind and the pixels
                length, checksum = len(rest) - len(kind), zlib.crc32(rest)
                yield struct.pack('>I', length) + rest + struct.pack('>I', checksum)
            raise truncated_error('PNG')
        if (index == 0) != (kind == b'IHDR') or (index == 0 and size != 13):
            raise damaged_error('PNG', 'the header chunk is not the first one or has a wrong size')
        if index and not kind[0] & _PNG_ANCILLARY_BIT and kind not in _PNG_CRITICAL_CHUNKS:
            raise damaged_error('PNG', f'unknown critical chunk {kind!r}')
        if kind == b'IEND':
            if not pixels:
                raise damaged_error('PNG', 'no pixels')
            return
        if kind in (b'IHDR', b'tRNS', *_PNG_CRITICAL_CHUNKS):
            # Pillow does not check the checksums of the pixels.
            checksum = int.from_bytes(content[end - 4 : end], 'big')
            if zlib.crc32(content[offset + 4 : end - 4]) == checksum:
                yield content[offset:end]
            elif not kind[0] & _PNG_ANCILLARY_BIT:
                raise damaged_error('PNG', f'wrong checksum of a chunk {kind.decode()}')
        pixels |= kind == b'IDAT'
        offset = end
    raise too_large_error('PNG', 'more', f'{_MAX_PARTS} parts')


def _has_all_pixels(chunks: Sequence[bytes | memoryview]) -> bool:
    """Return whether the chunks of a PNG have all its rows, and the end of the compressed data."""
    if not chunks:
        return False
    width, height, bits, color, _, _, is_interlaced = struct.unpack_from('>IIBBBBB', chunks[0], 8)
    check_image_size(width, height)
    pixel_bits = bits * _PNG_CHANNELS.get(color, 8)
    missing = sum(
        rows * (1 + -(-columns * pixel_bits // 8))
        for columns, rows in _png_pass_sizes(width, height, is_interlaced=bool(is_interlaced))
        if columns
    )
    inflate = zlib.decompressobj()
    try:
        for chunk in chunks:
            rest = chunk[8:-4] if chunk[4:8] == b'IDAT' else b''
            while rest and missing > -_INFLATED_BYTES:  # OpenCV and Pillow ignore further rows
                missing -= len(inflate.decompress(rest, _INFLATED_BYTES))
                rest = inflate.unconsumed_tail
    except zlib.error:
        return False
    return inflate.eof and missing <= 0


def _png_pass_sizes(width: int, height: int, *, is_interlaced: bool) -> list[tuple[int, int]]:
    """Return columns and rows of each pass of a PNG."""
    if not is_interlaced:
        return [(width, height)]
    return [
        (-(-(width - x) // step_x), -(-(height - y) // step_y))
        for x, y, step_x, step_y in _PNG_PASSES
        if width > x and height > y
    ]


def _jpeg_parts(file: npt.NDArray[np.uint8], scans: ScanInfo) -> Iterator[bytes | memoryview]:
    """Yield the start, tables, frame, scans and end of a JPEG in order, with their markers.

    Also sets the attributes of ``scans``. A file without an end marker gets one.
    """
    content = file.data
    yield JPEG_START
    offset, frame, count = len(JPEG_START), memoryview(b''), 0
    for _ in range(_MAX_PARTS):
        marker, offset = _read_jpeg_marker(file, offset, scans)
        is_next_file = marker == JPEG_START[1] and count > 0
        if marker == _JPEG_END_MARKER or is_next_file:
            if not count:
                raise damaged_error('JPEG', 'no pixels')
            scans.has_end = not is_next_file
            yield _JPEG_END
            return
        end = offset + _segment_size(content, offset)
        segment = content[offset:end]
        if marker in _JPEG_FRAME_MARKERS:
            if frame:
                raise damaged_error('JPEG', 'several frame headers instead of one')
            frame = segment
            _check_frame_header(frame)
        elif marker == _JPEG_SCAN_MARKER:
            count += 1
            _check_scan_count(count, has_frame=bool(frame))
            scans.start = end
            scan_end, markers = search_scan(file, end)
            scans.markers += markers
            if scan_end is None:
                scans.has_end = False
                yield b''.join((content[offset - 2 : end], _without_padding(content[end:])))
                yield _JPEG_END
                return
            yield content[offset - 2 : scan_end]
            offset = scan_end
            continue
        elif marker not in _JPEG_TABLE_MARKERS | _JPEG_METADATA_MARKERS and not (
            # A number of lines that repeats the height, at the end of the first scan.
            marker == _JPEG_LINES_MARKER and count and segment[2:] == frame[3:5]
        ):
            found = f'marker {marker:#04x}, or a damaged file'
            raise unsupported_error('JPEG', found, 'baseline or progressive with Huffman coding')
        if marker in _JPEG_FRAME_MARKERS | _JPEG_TABLE_MARKERS | _JPEG_COLOR_MARKERS:
            yield _color_or_table_segment(marker, bytes(segment))
        offset = end
    raise too_large_error('JPEG', 'more', f'{_MAX_PARTS} parts')


def _without_padding(scan_data: memoryview) -> bytes:
    """Return entropy-coded data without the fill bytes and zeros after it."""
    data = bytes(scan_data)
    if data.endswith(_MIN_PADDING):
        data = data.rstrip(b'\0')
        return data + b'\0' * data.endswith(b'\xff')  # an escaped 0xff
    return data.rstrip(b'\xff')


def _color_or_table_segment(marker: int, segment: bytes) -> bytes:
    """Return a segment with its marker. Replace a JFIF header by ``JFIF_HEADER``.

    libjpeg warns about JFIF versions that some cameras write. simplejpeg then refuses the file.
    """
    if marker == JFIF_HEADER[1] and len(segment) >= 16 and segment[2:7] == b'JFIF\0':
        return JFIF_HEADER
    return bytes((0xFF, marker)) + segment


def _read_jpeg_marker(
    file: npt.NDArray[np.uint8], offset: int, scans: ScanInfo
) -> tuple[int, int]:
    """Return the next marker of a JPEG, and the offset of the byte after the marker.

    Bytes before the marker are skipped, as by libjpeg. The decoder does not receive them.
    """
    match = _JPEG_MARKER_PATTERN.match(file.data, offset)
    if match is None:
        place, restarts = search_scan(file, offset)
        if place is None or restarts.strip(b'\xff'):
            if offset < file.size and file[offset] != 0xFF:
                raise damaged_error('JPEG', 'no marker at the start of a segment')
            raise truncated_error('JPEG')
        scans.has_spare_bytes = True
        return int(file[place + 1]), place + 2
    return match[1][0], match.end()


def _check_scan_count(scans: int, *, has_frame: bool) -> None:
    """Refuse a JPEG with a scan before its frame, or with too many scans."""
    if not has_frame:
        raise damaged_error('JPEG', 'no frame header in front of the pixels')
    if scans > _MAX_SCANS:
        raise too_large_error('JPEG', 'more', f'{_MAX_SCANS} scans')


def _segment_size(content: memoryview, offset: int) -> int:
    """Return the length that a segment declares, including the two bytes of the length."""
    size = int.from_bytes(content[offset : offset + 2], 'big')
    if size < 2 or offset + size > len(content):
        raise truncated_error('JPEG')
    return size


def _check_frame_header(segment: memoryview) -> None:
    """Check the length, the bits per component and the number of components of a frame header."""
    components = segment[7] if len(segment) > 7 else 0
    if len(segment) != 8 + 3 * components:
        found = f'the frame header has a wrong length ({len(segment)} bytes)'
        raise damaged_error('JPEG', found)
    bits = segment[2]
    if bits != 8 or components not in (1, 3, 4):
        found = f'{bits} bits, {components} components'
        raise unsupported_error('JPEG', found, '8 bits per component, and 1, 3 or 4 components')


def _check_coefficient_memory(
    parts: Sequence[bytes | memoryview], frame: bytes | memoryview
) -> None:
    """Refuse a file whose coefficients need more memory than the pixels of the largest image.

    For a file with several scans, libjpeg keeps all coefficients (2 bytes each) until the last
    scan. libjpeg expects several scans if the first scan lacks a component of the frame.
    """
    first, *others = (part for part in parts if part[1] == _JPEG_SCAN_MARKER)
    has_all_components = first[4:5] == frame[9:10]
    if frame[1] != _PROGRESSIVE_FRAME_MARKER and has_all_components and not others:
        return
    height, width = struct.unpack_from('>HH', frame, 5)
    across, down = zip(*((each >> 4, each & 15) for each in frame[11::3]), strict=True)
    samples = sum(x * y for x, y in zip(across, down, strict=True))
    if 2 * width * height * samples > 3 * MAX_PIXELS * max(across) * max(down):
        found = f'{width}x{height} in several scans'
        raise too_large_error('JPEG', found, f'{3 * MAX_PIXELS // 2} coefficients')


def _check_restart_markers(parts: Sequence[bytes | memoryview], markers: bytes) -> None:
    """Refuse a file with one scan of all components that lacks its last restart markers.

    libjpeg reports only the first problem of a file. Spare bytes before a marker are such a
    problem, and hide a later truncation. If the last marker exists but earlier markers are
    missing, the file is not truncated.
    """
    frame = next(part for part in parts if part[1] in _JPEG_FRAME_MARKERS)
    intervals = [part[4:6] for part in parts if part[1] == _RESTART_INTERVAL_MARKER]
    interval = int.from_bytes(intervals[-1], 'big') if intervals else 0
    scans = [part[4:5] for part in parts if part[1] == _JPEG_SCAN_MARKER]
    samplings = frame[11::3]
    across, down = (max(each >> shift & 15 for each in samplings) for shift in (4, 0))
    if not interval or len(scans) > 1 or scans[0] != frame[9:10] or not across * down:
        return
    if len(samplings) == 1:
        across = down = 1
    height, width = struct.unpack_from('>HH', frame, 5)
    expected = (-(-width // (8 * across)) * -(-height // (8 * down)) - 1) // interval
    found = markers.replace(b'\xff', b'')
    is_last = found[-1:] == bytes((_FIRST_RESTART_MARKER + (expected - 1) % 8,))
    missing = expected - len(found)
    if missing >= 8 or (missing > 0 and not is_last):
        raise truncated_error('JPEG')


def _check_all_scans(parts: Sequence[bytes | memoryview]) -> None:
    """Refuse a file whose scans do not contain all bits of all coefficients.

    A progressive file without an end marker that was cut between two scans lacks a scan.
    """
    frame = next(part for part in parts if part[1] in _JPEG_FRAME_MARKERS)
    missing = {(component, index): 1 for component in frame[10::3] for index in range(64)}
    for scan in (part for part in parts if part[1] == _JPEG_SCAN_MARKER):
        header = bytes(scan[4 : 2 + int.from_bytes(scan[2:4], 'big')])
        components, last = header[1:-3:2], header[-3:]
        if frame[1] != _PROGRESSIVE_FRAME_MARKER:
            last = b'\0\x3f\0'
        if len(last) == 3:
            places = itertools.product(components, range(last[0], last[1] + 1))
            missing.update(dict.fromkeys(places, last[2] & 15))
    if any(missing.values()):
        raise truncated_error('JPEG')


def find_scan_end(file: npt.NDArray[np.uint8], offset: int) -> tuple[int, bytes]:
    """Find the end of a scan's entropy-coded data.

    NumPy searches many bytes at once, and releases the GIL.

    Args:
        file: the JPEG, uint8, one-dimensional.
        offset: start of the scan's data in the file, in bytes.

    Returns:
        The offset of the end, and the non-zero bytes after each 0xff in the data.

    Raises:
        ImageError: the file ends before the scan does.
    """
    end, markers = search_scan(file, offset)
    if end is None:
        raise truncated_error('JPEG')
    return end, markers


def search_scan(file: npt.NDArray[np.uint8], offset: int) -> tuple[int | None, bytes]:
    """Search the end of a scan as `find_scan_end`. The end is None if no marker follows."""
    markers: list[bytes] = []
    for start in range(offset, file.size - 1, _SEARCH_BYTES):
        piece = file[start : start + _SEARCH_BYTES + 1]  # + 1 for a marker at the end
        # True for each byte 0xff that a non-zero byte follows.
        marked = np.equal(piece[:-1], 0xFF).view(np.uint8)
        marked = np.minimum(marked, piece[1:], out=marked).view(np.bool_)
        place = int(marked.argmax())
        if marked[place] and _IS_SCAN_END_BY_NEXT_BYTE[piece[place + 1]]:  # the usual case
            return start + place, b''.join(markers)
        places = np.flatnonzero(marked)
        following = piece[places + 1]
        ends = np.flatnonzero(_IS_SCAN_END_BY_NEXT_BYTE[following])
        if ends.size:
            markers.append(following[: ends[0]].tobytes())
            return start + int(places[ends[0]]), b''.join(markers)
        markers.append(following.tobytes())
    return None, b''.join(markers)


def truncated_error(kind: str) -> ImageError:
    """Return the error for a truncated file."""
    return ImageError('not_decodable', kind, 'truncated file: it ends inside one of its parts')


def unsupported_error(kind: str, found: str, expected: str, fix: str = '') -> ImageError:
    """Return the error for a file in an unsupported format."""
    return ImageError('not_decodable', kind, found, expected=expected, fix=fix)


def too_large_error(kind: str, found: str, most: str) -> ImageError:
    """Return the error for a file above one of the limits."""
    fix = 'use a smaller image, or reduce the image size of the camera'
    return ImageError('too_large', kind, found, expected=f'at most {most}', fix=fix)


def damaged_error(kind: str, found: str) -> ImageError:
    """Return the error for a file that contradicts its own header or its format."""
    return ImageError('not_decodable', kind, f'damaged file: {found}')
