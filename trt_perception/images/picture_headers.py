"""What BMP, WebP, TIFF, PPM and PGM files declare, held against the bytes that are there.

Guarantee: a file that passes here asks its decoder for no more memory than its pixels need, and
both see the same size. What two readers may understand differently is refused: two tags of a kind,
values of unusual types, lengths that lead out of the file, headers of unknown kinds.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.compressed import (
    MAX_PIXELS,
    check_size,
    damaged,
    too_large,
    truncated,
    unsupported,
)

__all__ = ['declared_size']

_HEAD: Final = 1024
# A comment ends with either; https://netpbm.sourceforge.net/doc/ppm.html
_GAP: Final = rb'\s+(?:#[^\r\n]*[\r\n]\s*)*'
_PNM: Final = re.compile(rb'P([2356])%b(\d{1,9})%b(\d{1,9})%b(\d{1,5})\s' % (_GAP, _GAP, _GAP))
_PNM_TEXT: Final = (b'2', b'3')
_PNM_COLORS: Final = (b'3', b'6')

_BMP_INFO: Final = (40, 52, 56, 64, 108, 124)
_BMP_CORE: Final = 12
_BMP_PLAIN: Final = (0, 3)

_WEBP_ANIMATED: Final = 2
_WEBP_PARTS: Final = 64

# Bytes of a value by its type (TIFF 6.0, section 2).
_TIFF_TYPES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_TIFF_NUMBERS: Final = {3: 'H', 4: 'I'}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SAMPLES = 256, 257, 258, 259, 277
_PLANES, _ROWS, _OFFSETS, _LENGTHS = 284, 278, 273, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_LENGTHS = 322, 323, 324, 325
_COLORS: Final = 262
# Of volumes.
_DEPTHS: Final = frozenset((32997, 32998))
_OF_STRIPS: Final = frozenset((_OFFSETS, _LENGTHS))
_OF_TILES: Final = frozenset((_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_LENGTHS))
#: Grey either way, RGB, palette, CMYK.
_TIFF_COLORS: Final = (0, 1, 2, 3, 5)
#: None, LZW, Deflate by both of its numbers, PackBits.
_TIFF_METHODS: Final = (1, 5, 8, 32946, 32773)
_TIFF_PAGES: Final = 1000
_TILE_SIDE: Final = 4096
# Writers take strips of some size, however small the picture is; and tiles, all of which are
# decoded whole, although most of one may lie outside the picture.
_STRIP_PIXELS: Final = 2**22
_TILED_PIXELS: Final = 2**24


def declared_size(content: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
    """Return width and height as a file's header has them; None where it is another format.

    A size that is returned is one that may be decoded.

    Args:
        content: the file's bytes, uint8, one-dimensional.

    Raises:
        ImageError: ``not_decodable`` or ``too_large``.
    """
    head = content[:_HEAD].tobytes()
    try:
        if head[:2] == b'BM':
            return _bmp_size(head, content.size)
        if head[:4] == b'RIFF' and head[8:12] == b'WEBP':
            return _webp_size(content.data)
        if head[:4] in (b'II*\0', b'MM\0*'):
            return _Tiff(content).size()
    except struct.error:
        raise truncated('image') from None
    match = _PNM.match(head)
    return None if match is None else _pnm_size(match, content.size)


def _pnm_size(match: re.Match[bytes], size: int) -> tuple[int, int]:
    width, height = int(match[2]), int(match[3])
    samples = width * height * (3 if match[1] in _PNM_COLORS else 1)
    # A digit and a space for each, but the last; or one or two bytes.
    needed = 2 * samples - 1 if match[1] in _PNM_TEXT or int(match[4]) > 255 else samples
    check_size(width, height)
    _check_room('PPM or PGM', needed, size - match.end())
    return width, height


def _bmp_size(head: bytes, size: int) -> tuple[int, int]:
    start, kind = struct.unpack_from('<II', head, 10)
    method = 0
    if kind == _BMP_CORE:
        width, height, _, bits = struct.unpack_from('<HHHH', head, 18)
    elif kind in _BMP_INFO:
        width, height, _, bits, method = struct.unpack_from('<iiHHI', head, 18)
    else:
        raise damaged('BMP', f'a header of {kind} bytes, which no BMP has')
    height = abs(height)  # upside down where it is negative
    check_size(width, height)
    if method in _BMP_PLAIN:
        _check_room('BMP', height * (-(-width * bits // 32) * 4), size - start)
    return width, height


def _check_room(kind: str, needed: int, there: int) -> None:
    if needed > there:
        found = f'{there}: it is truncated'
        raise unsupported(kind, found, f'{needed} bytes for its pixels')


def _webp_size(content: memoryview) -> tuple[int, int]:
    """Read https://developers.google.com/speed/webp/docs/riff_container; RFC 6386, 9.1."""
    end = 8 + struct.unpack_from('<I', content, 4)[0]
    if end > len(content):
        raise truncated('WebP')
    at, canvas = 12, None
    for _ in range(_WEBP_PARTS):
        kind, size = struct.unpack_from('<4sI', content, at)
        if at + 8 + size > end:
            raise truncated('WebP')
        if kind == b'VP8X' and at == 12:
            if content[at + 8] & _WEBP_ANIMATED:
                raise unsupported('WebP', 'several', 'a single image')
            canvas = 1 + _three_bytes(content, at + 12), 1 + _three_bytes(content, at + 15)
            check_size(*canvas)
        elif kind in (b'VP8 ', b'VP8L'):
            found = _webp_pixels(content, kind, at + 8)
            check_size(*found)
            if canvas not in (None, found):
                raise damaged('WebP', f'a canvas of {canvas} pixels with an image of {found}')
            return found
        elif canvas is None:
            break
        at += 8 + size + size % 2
    raise damaged('WebP', 'no pixels')


def _webp_pixels(content: memoryview, kind: bytes, at: int) -> tuple[int, int]:
    if kind == b'VP8L':
        (bits,) = struct.unpack_from('<I', content, at + 1)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from('<HH', content, at + 6)
    return width & 0x3FFF, height & 0x3FFF


def _three_bytes(content: memoryview, at: int) -> int:
    low, high = struct.unpack_from('<HB', content, at)
    return int(low + (high << 16))


class _Tiff:
    """The first directory of a TIFF (TIFF 6.0, section 2)."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._content = content
        self._order = '<' if content[0] == ord('I') else '>'
        # By tag: type, number of values, and where they stand.
        self._entries: dict[int, tuple[int, int, int]] = {}
        (at,) = self._unpack('I', 4)
        (count,) = self._unpack('H', at)
        total = 0
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind, values = self._unpack('HHI', entry)
            size = values * self._width(kind)
            place = self._unpack('I', entry + 8)[0] if size > 4 else entry + 8
            total += size
            if tag in self._entries:
                raise damaged('TIFF', f'two tags {tag}, of which readers take one or other')
            # Each value has bytes of its own; else a small file may name gigabytes.
            if place + size > content.size or total > content.size:
                raise truncated('TIFF')
            self._entries[tag] = kind, values, place
        self._check_pages(at + 2 + 12 * count)

    def size(self) -> tuple[int, int]:
        """Return width and height; the picture's parts are as large as those ask for."""
        width, height = self._number(_WIDTH), self._number(_HEIGHT)
        check_size(width, height)
        samples, planes = self._number(_SAMPLES, 1), self._number(_PLANES, 1)
        bits = self._numbers(_BITS) if _BITS in self._entries else np.ones(1, np.int64)
        method = self._number(_COMPRESSION, 1)
        if method not in _TIFF_METHODS:
            expected = 'no compression, LZW, Deflate or PackBits'
            raise unsupported('TIFF', f'compression {method}', expected, 'convert it')
        plain = 1 <= samples <= 4 and planes in (1, 2) and 1 <= bits.max(initial=0) <= 16
        if not plain or self._number(_COLORS) not in _TIFF_COLORS or self._has(_DEPTHS):
            found = 'another kind, such as floating point'
            expected = '8 or 16 bits and one to four channels'
            raise unsupported('TIFF', found, expected, 'convert it')
        if width * height * samples * int(bits.max()) > 32 * MAX_PIXELS:
            found = f'{width}x{height} with {samples} channels of {bits.max()} bits'
            raise too_large('TIFF', found, f'{4 * MAX_PIXELS} bytes of pixels')
        tiled = self._has(_OF_TILES)
        if tiled and self._has(_OF_STRIPS):
            raise damaged('TIFF', 'both strips and tiles, of which readers take one or other')
        parts = self._tiles(width, height) if tiled else self._strips(width, height)
        self._check_parts(parts * (samples if planes == 2 else 1), tiled)
        return width, height

    def _tiles(self, width: int, height: int) -> int:
        """Return the number of tiles."""
        wide, high = self._number(_TILE_WIDTH), self._number(_TILE_HEIGHT)
        if not (1 <= wide <= _TILE_SIDE and 1 <= high <= _TILE_SIDE):
            found = f'tiles of {wide}x{high}'
            raise unsupported('TIFF', found, f'{_TILE_SIDE} pixels a side at most')
        parts = -(-width // wide) * -(-height // high)
        most = max(2 * width * height, _TILED_PIXELS)
        if parts * wide * high > most:
            found = f'{parts} tiles of {wide}x{high} for {width}x{height} pixels'
            raise unsupported('TIFF', found, f'{most} pixels in all tiles at most')
        return parts

    def _strips(self, width: int, height: int) -> int:
        rows = self._number(_ROWS, 2**32 - 1)
        rows = height if rows == 2**32 - 1 else rows
        if rows < 1 or width * rows > max(width * height, _STRIP_PIXELS):
            raise damaged('TIFF', f'{height} rows in strips of {rows}')
        return -(-height // rows)

    def _check_parts(self, parts: int, tiled: bool) -> None:
        """Hold what is said of strips or tiles against the file."""
        offsets = self._numbers(_TILE_OFFSETS if tiled else _OFFSETS)
        lengths = self._numbers(_TILE_LENGTHS if tiled else _LENGTHS)
        if offsets.size != parts or lengths.size != parts:
            raise damaged(
                'TIFF', f'{parts} parts with {offsets.size} offsets and {lengths.size} lengths'
            )
        if (offsets + lengths > self._content.size).any():
            raise truncated('TIFF')

    def _check_pages(self, at: int) -> None:
        """Follow the chain of directories: some decoders count them."""
        for _ in range(_TIFF_PAGES):
            (page,) = self._unpack('I', at)
            if page == 0:
                return
            at = page + 2 + 12 * self._unpack('H', page)[0]
        raise unsupported('TIFF', 'more', f'{_TIFF_PAGES} pages at most')

    def _has(self, tags: frozenset[int]) -> bool:
        return not tags.isdisjoint(self._entries)

    def _number(self, tag: int, default: int | None = None) -> int:
        if default is not None and tag not in self._entries:
            return default
        numbers = self._numbers(tag)
        if numbers.size != 1:
            raise damaged('TIFF', f'{numbers.size} values of tag {tag}, which has one')
        return int(numbers[0])

    def _numbers(self, tag: int) -> npt.NDArray[np.int64]:
        kind, values, place = self._entries.get(tag, (0, 0, 0))
        if kind not in _TIFF_NUMBERS:
            raise damaged('TIFF', f'tag {tag} is missing or not a number')
        dtype = np.dtype(f'{self._order}u{_TIFF_TYPES[kind]}')
        raw = self._content[place : place + values * dtype.itemsize].tobytes()
        return np.frombuffer(raw, dtype).astype(np.int64)

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, self._content.data, at)

    def _width(self, kind: int) -> int:
        if kind not in _TIFF_TYPES:
            raise damaged('TIFF', f'a value of type {kind}, which TIFF does not have')
        return _TIFF_TYPES[kind]
