# SPDX-License-Identifier: Apache-2.0
"""Reads depth images: raw, or as compressed_depth_image_transport writes them.

Everything in a message may be wrong. No read takes more memory than MAX_DEPTH_PIXELS needs.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import DepthError
from trt_perception.files.plain_text import short_repr
from trt_perception.images.compressed import check_image_file
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS

_Bytes = npt.NDArray[np.uint8]
#: The values of a pixel, and metres per unit, by encoding.
ENCODINGS: Final = {'16UC1': ('u2', 0.001), '32FC1': ('f4', 1.0)}
MAX_DEPTH_PIXELS: Final = MAX_RESULT_PIXELS
# Format, and the parameters A and B of inverse depth (compression_common.h).
_HEADER: Final = struct.Struct('<iff')
_PNG_START: Final = b'\x89PNG'
_USE_DEPTH: Final = (
    'remap depth to a topic of depth images that are aligned to the camera image (-r depth:=/…, '
    'with launch depth_topic:=/…)'
)
# Pixels of each side that `wrong_unit_error` reads.
_SAMPLES: Final = 32
# In millimetres: nearer than any depth camera measures. Also the largest depth in metres that is
# taken for a depth of most of an image.
_UNIT_LIMIT: Final = 100.0
# Share of the pixels beyond the limit that shows another unit.
_MOST: Final = 0.9


@dataclass(frozen=True)
class DepthImage:
    """The depth of each pixel of an image.

    Attributes:
        values: uint16 or float32 (height, width), perhaps in the byte order of another machine.
        unit_m: metres per unit of `values`.
    """

    values: npt.NDArray[Any]
    unit_m: float

    @property
    def size_wh(self) -> tuple[int, int]:
        """Width and height in pixels."""
        height, width = self.values.shape
        return width, height

    def metres(self, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        """Return a part in metres, as float32 (rows, columns).

        The depth of a pixel is unknown unless it is above 0 and finite.
        """
        with np.errstate(over='ignore', invalid='ignore'):  # a float may be anything
            return np.asarray(
                np.multiply(self.values[rows, columns], self.unit_m, dtype=np.float32)
            )

    def has_any(self) -> bool:
        """Return whether the depth of any pixel is known."""
        return bool(np.any((self.values > 0) & (self.values < np.inf)))


def read_depth(
    encoding: str,
    size_wh: tuple[int, int],
    step: int,
    data: _Bytes,
    *,
    big_endian: bool = False,
    unit_m: float = 0.0,
) -> DepthImage:
    """Return a view of the depth in the fields of an Image.

    Args:
        step: bytes from one row to the next.
        data: uint8 (step * height,).
        unit_m: metres per unit; 0 takes the unit of the encoding.

    Raises:
        DepthError: the encoding is not one of depth (reason ``unknown_encoding``), or size, step
            and length do not fit (``bad_size``, ``bad_step``, ``bad_length``).
    """
    kind, unit = _encoding(encoding, 'encoding of the depth image')
    _check_size(size_wh)
    width, height = size_wh
    row_bytes = width * np.dtype(kind).itemsize
    if step < row_bytes:
        raise DepthError(
            'bad_step',
            'step of the depth image',
            f'{step} bytes',
            expected=f'at least {row_bytes} bytes',
        )
    if data.size != step * height:
        expected = f'{step * height} bytes'
        raise DepthError('bad_length', 'depth image', f'{data.size} bytes', expected=expected)
    rows = data.reshape(height, step)[:, :row_bytes]
    if step % np.dtype(kind).itemsize or data.ctypes.data % np.dtype(kind).itemsize:
        rows = np.ascontiguousarray(rows)
    values = rows.view(('>' if big_endian else '<') + kind)
    return DepthImage(values, unit_m or unit)


def read_compressed_depth(image_format: str, data: _Bytes, *, unit_m: float = 0.0) -> DepthImage:
    """Return the depth in the fields of a CompressedImage of compressed_depth_image_transport.

    Args:
        image_format: such as ``16UC1; compressedDepth png``.
        data: uint8 (n,): a header of 12 bytes, then a PNG.
        unit_m: metres per unit; 0 takes the unit of the encoding.

    Raises:
        ImageError: the format is RVL or unknown (reason ``unknown_encoding``), or the data cannot
            be decoded (``not_decodable``, ``bad_size``, ``too_large``).
    """
    encoding, _, rest = (part.strip() for part in image_format.partition(';'))
    transport, *codec = rest.split() or ['']
    subject = f'format of the compressed depth, {short_repr(image_format)}'
    if codec == ['rvl']:
        raise DepthError(
            'unknown_encoding',
            subject,
            'RVL',
            expected='PNG',
            fix='set the parameter .compressedDepth.format of the publisher to png, or use the '
            'raw images (depth_transport: raw)',
        )
    if transport != 'compressedDepth' or codec not in ([], ['png']):
        raise DepthError(
            'unknown_encoding',
            subject,
            'not of compressed_depth_image_transport',
            fix=f'{_USE_DEPTH}, whose compressed form ends in /compressedDepth',
        )
    kind, unit = _encoding(encoding, subject)
    if data.size < _HEADER.size:
        found, expected = f'{data.size} bytes', f'a header of {_HEADER.size} bytes, then a PNG'
        raise DepthError('not_decodable', 'compressed depth', found, expected=expected)
    _, scale, offset = _HEADER.unpack_from(data.data)
    values: npt.NDArray[Any] = _decode_png(data[_HEADER.size :])
    if kind == 'f4':
        if not (math.isfinite(scale) and math.isfinite(offset)):
            found, expected = f'{scale} and {offset}', 'finite parameters of inverse depth'
            raise DepthError('not_decodable', 'compressed depth', found, expected=expected)
        inverse = values.astype(np.float32)
        with np.errstate(divide='ignore', over='ignore'):
            values = np.where(values > 0, scale / (inverse - np.float32(offset)), np.nan)
        values = values.astype(np.float32, copy=False)
    return DepthImage(values, unit_m or unit)


def wrong_unit_error(depth: DepthImage, encoding: str, unit_m: float) -> DepthError | None:
    """Return the error that values seem to have another unit than their encoding says, or None.

    Args:
        unit_m: value of the parameter; if it is not 0, the user has said the unit.
    """
    values = depth.values
    known = values[:: -(-values.shape[0] // _SAMPLES), :: -(-values.shape[1] // _SAMPLES)]
    known = known[(known > 0) & (known < np.inf)]
    if unit_m or not known.size:
        return None
    # Percentiles take more time than counts.
    most = _MOST * known.size
    if encoding == '16UC1' and np.count_nonzero(known < _UNIT_LIMIT) > most:
        far = np.percentile(known, 100 * _MOST)
        found, expected, unit = f'depths below {far:g}', 'millimetres (16UC1)', 1.0
    elif encoding == '32FC1' and np.count_nonzero(known > _UNIT_LIMIT) > most:
        near = np.percentile(known, 100 * (1 - _MOST))
        found, expected, unit = f'depths above {near:g}', 'metres (32FC1)', 0.001
    else:
        return None
    return DepthError(
        'depth_unit',
        'depth image',
        found,
        expected=expected,
        fix=f'set depth_unit_m to {unit} if the driver means '
        f'{"metres" if unit == 1 else "millimetres"}, or to {ENCODINGS[encoding][1]} if not',
    )


def _encoding(encoding: str, subject: str) -> tuple[str, float]:
    if encoding not in ENCODINGS:
        known = ' or '.join(ENCODINGS)
        raise DepthError(
            'unknown_encoding', subject, short_repr(encoding), expected=known, fix=_USE_DEPTH
        )
    return ENCODINGS[encoding]


def _check_size(size_wh: tuple[int, int]) -> None:
    width, height = size_wh
    if not (width > 0 and height > 0 and width * height <= MAX_DEPTH_PIXELS):
        expected = f'1 to {MAX_DEPTH_PIXELS} pixels'
        raise DepthError('bad_size', 'depth image', f'{width}x{height}', expected=expected)


def _decode_png(file: _Bytes) -> npt.NDArray[np.uint16]:
    """Return the grey values of 16 bits in a PNG, uint16 (height, width)."""
    if file[:4].tobytes() != _PNG_START:
        start = file[:4].tobytes().hex(' ')
        raise DepthError('not_decodable', 'compressed depth', f'begins with {start}, not a PNG')
    checked = check_image_file(file)
    _check_size(checked.size_wh)
    bits, color = checked.parts[1][16:18]  # of the header chunk
    if (bits, color) != (16, 0):
        found = f'a PNG of {bits} bits and colour type {color}'
        raise DepthError(
            'not_decodable', 'compressed depth', found, expected='a grey PNG of 16 bits'
        )
    try:
        from PIL.PngImagePlugin import PngImageFile

        with PngImageFile(io.BytesIO(b''.join(checked.parts))) as image:
            return np.asarray(image).astype(np.uint16)
    # Pillow may be missing, and raises a dozen exception types for damaged files.
    except Exception as error:
        found = f'Pillow cannot decode the PNG: {error}'
        raise DepthError('not_decodable', 'compressed depth', found) from error
