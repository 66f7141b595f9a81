"""One camera image in memory: a checked view of somebody else's bytes, never a copy.

Guarantees: a Frame that exists has a known pixel format and as many bytes as its size and stride
    ask for, so
whoever reads it needs no checks. Non-guarantee: the bytes stay valid only while their owner does;
the view keeps a reference to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import short_repr
from trt_perception.images.memory import HostMemory

__all__ = [
    *('MAX_SIDE', 'PIXEL_FORMATS', 'DeferredFrame', 'Frame', 'PipelineInput', 'PixelFormat'),
    'frame_from_bgr',
]

# No camera sends larger images. The limit bounds the memory that one message can request.
MAX_SIDE: Final = 32767
# As many bytes as no camera sends. Below it every offset within an image fits 31 bits.
MAX_BYTES: Final = 2**30
# A GPU decodes a JPEG of so many pixels in 1 to 2 ms. Full HD has half as many.
_FAST_PIXELS: Final = 2**22


@dataclass(frozen=True)
class PixelFormat:
    """How the bytes of one row make pixels.

    Attributes:
        name: canonical name; encodings that mean the same bytes share it (``8UC3`` is ``bgr8``).
        bytes_per_pixel: bytes of one pixel in a row of the (first) plane.
        even_width: the width must be even, because two columns share their chroma.
        even_height: the height must be even, because two rows share their chroma.
        chroma_rows: the luma plane is followed by height / 2 rows of interleaved chroma of the
            same stride.
        min_side: the smallest width and height that can be converted.
    """

    name: str
    bytes_per_pixel: int
    even_width: bool = False
    even_height: bool = False
    chroma_rows: bool = False
    min_side: int = 1

    @property
    def rows_are_independent(self) -> bool:
        """Whether a row says the colours of its pixels without its neighbours."""
        return not self.chroma_rows and self.min_side == 1

    def rows(self, height: int) -> int:
        """Return the number of byte rows that an image of this height has."""
        return height + height // 2 if self.chroma_rows else height

    def height(self, rows: int) -> int:
        """Return the height of an image that has this many byte rows."""
        return rows * 2 // 3 if self.chroma_rows else rows


def _table() -> dict[str, PixelFormat]:
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


#: Every encoding that host and GPU read by themselves, by its ROS name.
PIXEL_FORMATS: Final[Mapping[str, PixelFormat]] = MappingProxyType(_table())


@dataclass(frozen=True)
class Frame:
    """One image as it came.

    Attributes:
        data: uint8, one-dimensional, ``format.rows(height) * step`` bytes, not copied.
        width: pixels.
        height: pixels.
        step: bytes from one row to the next, padding included.
        format: how the bytes make pixels.
        big_endian: byte order of 16-bit formats.
        memory: where the bytes lie, if the pipeline that runs the model has allocated it.
        jpeg: parts of a JPEG file that is not decoded yet; empty if ``data`` has the pixels. The
            size and the format are those of the decoded image, and ``data`` is empty.
    """

    data: npt.NDArray[np.uint8]
    width: int
    height: int
    step: int
    format: PixelFormat
    big_endian: bool = False
    memory: HostMemory | None = None
    jpeg: tuple[bytes | memoryview, ...] = ()

    @property
    def is_decoded(self) -> bool:
        """Whether ``data`` has the pixels."""
        return not self.jpeg

    @property
    def is_fast_to_decode(self) -> bool:
        """Whether it is a JPEG that a GPU decodes in a moment."""
        return bool(self.jpeg) and self.width * self.height <= _FAST_PIXELS

    def read(self) -> Frame:
        """Return this frame, as a DeferredFrame returns its frame."""
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
        """Check an image's description against its bytes and wrap them.

        Args:
            data: anything with the buffer protocol (array.array, bytes, uint8 ndarray).
            width: pixels.
            height: pixels.
            step: bytes from one row to the next.
            encoding: a name of PIXEL_FORMATS.
            big_endian: byte order of 16-bit formats.

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
        size = pixel_format.rows(height) * step
        if pixels.size != size:
            subject = f'{width}x{height} {encoding} image with step {step}'
            found = str(pixels.size)
            raise ImageError('bad_length', subject, found, expected=f'{size} bytes')
        if size > MAX_BYTES:
            subject, expected = f'image with step {step}', f'at most {MAX_BYTES} bytes'
            raise ImageError('too_large', subject, str(size), expected=expected)
        return cls(pixels, width, height, step, pixel_format, big_endian)

    def plane(self) -> npt.NDArray[np.uint8]:
        """Return all byte rows unpadded: uint8 (rows, width * bytes_per_pixel), a view."""
        row_bytes = self.width * self.format.bytes_per_pixel
        return self.data.reshape(-1, self.step)[:, :row_bytes]


class DeferredFrame:
    """An image that is not read yet, because it takes time to check a compressed file.

    Args:
        read: reads the frame; raises ImageError if there is no valid image.
        is_fast_to_decode: a guess: it is a JPEG that a GPU decodes in a moment.

    Attributes:
        read: as given.
        is_fast_to_decode: as given.
    """

    __slots__ = ('is_fast_to_decode', 'read')

    is_decoded: ClassVar[bool] = False

    def __init__(self, read: Callable[[], Frame], *, is_fast_to_decode: bool = False) -> None:
        self.read = read
        self.is_fast_to_decode = is_fast_to_decode


class PipelineInput(Protocol):
    """What a pipeline takes: a Frame or a DeferredFrame."""

    @property
    def is_decoded(self) -> bool:
        """Whether ``read`` returns pixels at once."""

    @property
    def is_fast_to_decode(self) -> bool:
        """Whether it is a JPEG, or probably one, that a GPU decodes in a moment."""

    def read(self) -> Frame:
        """Return the frame. Call this method once.

        Raises:
            ImageError: there is no valid image.
        """


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


def frame_from_bgr(bgr: npt.NDArray[np.uint8]) -> Frame:
    """Return an image, uint8 (height, width, 3), BGR, as a frame.

    Raises:
        ImageError: with the reason ``bad_size`` or ``too_large``.
    """
    height, width = bgr.shape[:2]
    pixels = np.ascontiguousarray(bgr).reshape(-1)
    return Frame.view(pixels, width=width, height=height, step=3 * width, encoding='bgr8')
