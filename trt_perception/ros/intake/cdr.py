"""Reads Image and CompressedImage where they lie, every length held against the bytes there are.

Format: classic CDR of either byte order (OMG CORBA 3.4, 9.3), as XCDR1 encapsulates it (OMG
DDSI-RTPS 2.5, 10.2): two bytes of representation, two of options, then values, each at a multiple
of its size counted from there; a string is its length with the final NUL (uint32), then the bytes.
Bytes behind the last value are padding. What does not parse is a hostile or broken publisher, and
is refused as ``bad_message``.
"""

from __future__ import annotations

import struct
from typing import Final
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError

__all__ = [
    'CompressedImageView',
    'HeaderView',
    'ImageView',
    'StampView',
    'read_compressed',
    'read_image',
]

_Bytes = npt.NDArray[np.uint8]
# By what a message begins with: its numbers, by their letters of ``struct``.
_ORDERS: Final = {
    begin: {kind: struct.Struct(order + kind) for kind in 'BiI'}
    for begin, order in ((b'\x00\x00', '>'), (b'\x00\x01', '<'))
}
_ENCAPSULATION_BYTES: Final = 4


class StampView(NamedTuple):
    """builtin_interfaces/Time, by its names."""

    sec: int
    nanosec: int


class HeaderView(NamedTuple):
    """std_msgs/Header, by its names."""

    stamp: StampView
    frame_id: str


class ImageView(NamedTuple):
    """sensor_msgs/Image, by its names; ``data`` is a view of the message's bytes."""

    header: HeaderView
    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: _Bytes


class CompressedImageView(NamedTuple):
    """sensor_msgs/CompressedImage, by its names; ``data`` is a view of the message's bytes."""

    header: HeaderView
    format: str
    data: _Bytes


def read_image(message: _Bytes) -> ImageView:
    """Read a serialised sensor_msgs/Image.

    Args:
        message: uint8 (n,), with the encapsulation header in front.

    Raises:
        ImageError: with the reason ``bad_message``.
    """
    reader = _Reader(message)
    header = reader.header()
    height, width = reader.number('I'), reader.number('I')
    encoding = reader.string('encoding')
    is_bigendian, step = reader.number('B'), reader.number('I')
    return ImageView(header, height, width, encoding, is_bigendian, step, reader.octets('data'))


def read_compressed(message: _Bytes) -> CompressedImageView:
    """Read a serialised sensor_msgs/CompressedImage; as ``read_image``."""
    reader = _Reader(message)
    return CompressedImageView(reader.header(), reader.string('format'), reader.octets('data'))


class _Reader:
    """Goes through a message once, from front to back."""

    def __init__(self, message: _Bytes) -> None:
        begin = message[:_ENCAPSULATION_BYTES].tobytes()
        numbers = _ORDERS.get(begin[:2]) if len(begin) == _ENCAPSULATION_BYTES else None
        if numbers is None:
            raise _bad(
                f'{message.size} bytes ({begin.hex(" ")} …)',
                'CDR, which begins with 00 00 or 00 01',
            )
        self._numbers = numbers
        self._values = message[_ENCAPSULATION_BYTES:]
        self._memory = self._values.data
        self._size = self._values.size
        self._at = 0

    def number(self, kind: str) -> int:
        """Return the next integer, by its letter of ``struct``."""
        layout = self._numbers[kind]
        start = self._at + -self._at % layout.size
        self._at = self._end(start, layout.size, 'a number')
        value: int = layout.unpack_from(self._memory, start)[0]
        return value

    def string(self, name: str) -> str:
        """Return the next string up to its first NUL; what is not UTF-8 as in rclpy."""
        return self.octets(name).tobytes().partition(b'\0')[0].decode(errors='replace')

    def octets(self, name: str) -> _Bytes:
        """Return the next string or sequence of bytes as a view."""
        size = self.number('I')
        start, self._at = self._at, self._end(self._at, size, name)
        return self._values[start : self._at]

    def header(self) -> HeaderView:
        """Return the next std_msgs/Header."""
        stamp = StampView(self.number('i'), self.number('I'))
        return HeaderView(stamp, self.string('frame_id'))

    def _end(self, start: int, size: int, what: str) -> int:
        end = start + size
        if end > self._size:
            raise _bad(
                f'{self._size} bytes, of which {what} would end at {end}',
                'a whole message',
            )
        return end


def _bad(found: str, expected: str) -> ImageError:
    return ImageError(
        'bad_message',
        "the camera's message",
        found,
        expected=expected,
        fix='look who publishes on the topic: ros2 topic info --verbose',
    )
