# SPDX-License-Identifier: Apache-2.0
"""Camera images in memory: checked views of message bytes, without a copy.

Guarantees: a Frame has a known pixel format, and its bytes match its size and stride. Code that
reads a frame needs no further checks.
Limitation: the bytes are valid only as long as the buffer. A frame keeps a reference to its
buffer, but the owner of the buffer can still close or reuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import short_repr
from trt_perception.images.memory import HostMemory

# No camera sends larger images. The limit bounds the memory that one message can request.
MAX_SIDE: Final = 32767
# No camera sends larger images. Below this limit all offsets within an image fit into 31 bits.
MAX_FRAME_BYTES: Final = 2**30
# A GPU decodes a JPEG of this size (in pixels) in 1 to 2 ms. Full HD has half as many pixels.
_MAX_FAST_PIXELS: Final = 2**22


@dataclass(frozen=True)
class PixelFormat:
    """The layout of pixels in the bytes of an image.

    Attributes:
        name: canonical name, shared by all encodings of the same layout (``8UC3`` is ``bgr8``).
        bytes_per_pixel: bytes of one pixel in a row of the first plane.
        even_width: the width must be even, because two columns share their chroma.
        even_height: the height must be even, because two rows share their chroma.
        chroma_rows: height / 2 rows of interleaved chroma follow the luma plane, with the same
            stride.
        min_side: the smallest width and height that can be converted, in pixels.
    """

    name: str
    bytes_per_pixel: int
    even_width: bool = False
    even_height: bool = False
    chroma_rows: bool = False
    min_side: int = 1

    @property
    def rows_are_independent(self) -> bool:
        """Whether the colours of a row's pixels depend on this row only."""
        return not self.chroma_rows and self.min_side == 1

    def byte_row_count(self, height: int) -> int:
        """Return the number of byte rows of an image with this height, all planes together."""
        return height + height // 2 if self.chroma_rows else height

    def image_height(self, byte_rows: int) -> int:
        """Return the height of an image with this many byte rows."""
        return byte_rows * 2 // 3 if self.chroma_rows else byte_rows


def _pixel_formats() -> dict[str, PixelFormat]:
    table = {
        'bgr8': PixelFormat('bgr8', 3),
        'rgb8': PixelFormat('rgb8', 3),
        'bgra8': PixelFormat('bgra8', 4),
        'rgba8': PixelFormat('rgba8', 4),
        'mono8': PixelFormat('mono8', 1),
        'mono16': PixelFormat('mono16', 2),
        'uyvy': PixelFormat('uyvy', 2, even_width=True),
        'yuyv': PixelFormat('yuyv', 2, even_width=True),
        'nv12': PixelFormat('nv12', 1, even_width=True, even_height=True, chroma_rows=True),
        'nv21': PixelFormat('nv21', 1, even_width=True, even_height=True, chroma_rows=True),
    }
    for pattern in ('rggb', 'bggr', 'gbrg', 'grbg'):
        # Bilinear demosaicing reads a pixel's eight neighbours.
        table[f'bayer_{pattern}8'] = PixelFormat(f'bayer_{pattern}8', 1, min_side=3)
    # ROS names for the same bytes (sensor_msgs/image_encodings.hpp).
    for alias, name in {
        '8UC1': 'mono8',
        '8UC3': 'bgr8',
        'yuv422': 'uyvy',
        'yuv422_yuy2': 'yuyv',
    }.items():
        table[alias] = table[name]
    return table


#: All encodings that both host and GPU can read, by ROS name.
PIXEL_FORMATS: Final[Mapping[str, PixelFormat]] = MappingProxyType(_pixel_formats())


@dataclass(frozen=True)
class Frame:
    """One image in the encoding of the camera.

    Attributes:
        data: uint8, one-dimensional, ``format.byte_row_count(height) * step`` bytes, not copied.
        width: pixels.
        height: pixels.
        step: bytes from one row to the next, including padding.
        format: the layout of the pixels in ``data``.
        big_endian: True if 16-bit values have their high byte first.
        memory: the memory around ``data`` if the pipeline allocated it, else None.
        jpeg: parts of a JPEG that is not decoded yet; empty if ``data`` has the pixels. With
            these parts ``data`` is empty, and size and format describe the decoded image.
        warning: the decoder's report about the file of a decoded image; empty without a report.
    """

    data: npt.NDArray[np.uint8]
    width: int
    height: int
    step: int
    format: PixelFormat
    big_endian: bool = False
    memory: HostMemory | None = None
    jpeg: tuple[bytes | memoryview, ...] = ()
    warning: str = ''

    @property
    def is_decoded(self) -> bool:
        """Whether ``data`` has the pixels."""
        return not self.jpeg

    @property
    def is_fast_to_decode(self) -> bool:
        """Whether the frame is a JPEG that a GPU decodes in about 2 ms."""
        return bool(self.jpeg) and self.width * self.height <= _MAX_FAST_PIXELS

    def read(self) -> Frame:
        """Return this frame. ``DeferredFrame`` has the same method."""
        return self

    @classmethod
    def view(
        cls,
        data: Any,
        *,
        width: int,
        height: int,
        step: int,
        encoding: str,
        big_endian: bool = False,
    ) -> Frame:
        """Return a frame over the bytes of an image, after checking size, step and encoding.

        Args:
            data: an object with the buffer protocol (array.array, bytes, uint8 ndarray).
            width: pixels.
            height: pixels.
            step: bytes from one row to the next.
            encoding: a name of PIXEL_FORMATS.
            big_endian: True if 16-bit values have their high byte first.

        Raises:
            ImageError: with the reason ``unknown_encoding``, ``bad_size``, ``odd_size``,
                ``bad_step``, ``bad_length`` or ``too_large``.
        """
        pixel_format = PIXEL_FORMATS.get(encoding)
        if pixel_format is None:
            known = f'one of {", ".join(PIXEL_FORMATS)}'
            raise ImageError(
                'unknown_encoding', 'image encoding', short_repr(encoding), expected=known
            )
        _check_size(pixel_format, width, height)
        row_bytes = width * pixel_format.bytes_per_pixel
        if step < row_bytes:
            subject = f'step of a {width}-pixel-wide {encoding} image'
            expected = f'at least {row_bytes} bytes'
            raise ImageError('bad_step', subject, str(step), expected=expected)
        pixels = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, np.uint8)
        size = pixel_format.byte_row_count(height) * step
        if pixels.size != size:
            subject = f'{width}x{height} {encoding} image with step {step}'
            found = str(pixels.size)
            raise ImageError('bad_length', subject, found, expected=f'{size} bytes')
        _check_bytes(step, size)
        return cls(pixels, width, height, step, pixel_format, big_endian)

    def plane(self) -> npt.NDArray[np.uint8]:
        """Return all rows without padding: uint8 (rows, width * bytes_per_pixel), a view."""
        row_bytes = self.width * self.format.bytes_per_pixel
        return self.data.reshape(-1, self.step)[:, :row_bytes]


class DeferredFrame:
    """A frame that a thread of the pipeline reads, because checking a compressed file takes time.

    Args:
        read: reads the frame. Raises ImageError if the image is invalid.
        is_fast_to_decode: whether the image probably is a JPEG that a GPU decodes in 2 ms.

    Attributes:
        read: function without arguments that returns the Frame. Call it once.
        is_fast_to_decode: whether a GPU probably decodes the JPEG in about 2 ms.
    """

    __slots__ = ('is_fast_to_decode', 'read')

    is_decoded: ClassVar[bool] = False

    def __init__(self, read: Callable[[], Frame], *, is_fast_to_decode: bool = False) -> None:
        self.read = read
        self.is_fast_to_decode = is_fast_to_decode


def _check_size(pixel_format: PixelFormat, width: int, height: int) -> None:
    smallest = pixel_format.min_side
    subject, found = f'{pixel_format.name} image', f'{width}x{height}'
    if not (smallest <= width <= MAX_SIDE and smallest <= height <= MAX_SIDE):
        expected = f'{smallest} to {MAX_SIDE} pixels a side'
        raise ImageError('bad_size', subject, found, expected=expected)
    if (pixel_format.even_width and width % 2) or (pixel_format.even_height and height % 2):
        sides = 'width and height' if pixel_format.even_height else 'width'
        expected = f'an even {sides}, because chroma is shared'
        raise ImageError('odd_size', subject, found, expected=expected)


def _check_bytes(step: int, size: int) -> None:
    if size > MAX_FRAME_BYTES:
        subject, expected = f'image with step {step}', f'at most {MAX_FRAME_BYTES} bytes'
        raise ImageError('too_large', subject, str(size), expected=expected)


def frame_from_bgr(bgr: npt.NDArray[np.uint8], warning: str = '') -> Frame:
    """Return a BGR image as a frame of the encoding bgr8.

    Args:
        bgr: uint8 (height, width, 3). Copied only if not contiguous, after the size is checked.
        warning: the decoder's report about the file; empty without a report.

    Raises:
        ImageError: with the reason ``bad_size`` or ``too_large``.
    """
    height, width = bgr.shape[:2]
    _check_size(PIXEL_FORMATS['bgr8'], width, height)
    _check_bytes(3 * width, 3 * width * height)
    pixels = np.ascontiguousarray(bgr).reshape(-1)
    frame = Frame.view(pixels, width=width, height=height, step=3 * width, encoding='bgr8')
    return replace(frame, warning=warning) if warning else frame
