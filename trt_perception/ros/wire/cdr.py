"""Reads Image and CompressedImage where they lie, every length held against the bytes there are.

Format: classic CDR of either byte order (OMG CORBA 3.4, 9.3), as XCDR1 encapsulates it (OMG
DDSI-RTPS 2.5, 10.2): two bytes of representation, two of options, then values, each at a multiple
of its size counted from there; a string is its length with the final NUL (uint32), then the bytes.
Bytes behind the last value are padding. What does not parse is a hostile or broken publisher, and
is refused as ``bad_message``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError

__all__ = [
    'CompressedHeaderCache',
    'CompressedImageView',
    'HeaderCache',
    'HeaderView',
    'ImageView',
    'StampView',
    'read_compressed',
    'read_image',
]

_Bytes = npt.NDArray[np.uint8]
# By what a message begins with: numbers that follow each other, by their letters of ``struct``.
_INTEGER_LAYOUTS: Final = {
    begin: {codes: struct.Struct(order + codes) for codes in ('iII', 'iI', 'III', 'II', 'I', 'B')}
    for begin, order in ((b'\x00\x00', '>'), (b'\x00\x01', '<'))
}
_ENCAPSULATION_BYTES: Final = 4
_STAMP_OFFSET: Final = _ENCAPSULATION_BYTES
# Bytes of a text that are read: whoever looks at it refuses far less, and 200 MB of it would keep
# the interpreter's lock for seconds and take a gigabyte.
_MAX_TEXT_BYTES: Final = 2**16


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
    header = reader.read_header()
    height, width, size = reader.read_integers('III')
    encoding = reader.read_string('encoding', size)
    (is_bigendian,) = reader.read_integers('B')
    step, size = reader.read_integers('II')
    return ImageView(
        header, height, width, encoding, is_bigendian, step, reader.read_bytes('data', size)
    )


def read_compressed(message: _Bytes) -> CompressedImageView:
    """Read a serialised sensor_msgs/CompressedImage; as ``read_image``."""
    reader = _Reader(message)
    header = reader.read_header()
    (size,) = reader.read_integers('I')
    encoding = reader.read_string('format', size)
    (size,) = reader.read_integers('I')
    return CompressedImageView(header, encoding, reader.read_bytes('data', size))


class HeaderCache:
    """Reuses the parsed header of an image for others that differ in stamp and pixels only.

    Args:
        message: uint8 (n,), a serialised image that could be read.
        header: of the image.
        pixels: of the image, a view of the message.

    Attributes:
        pixels: place of the pixels in a message.
    """

    def __init__(self, message: _Bytes, header: HeaderView, pixels: _Bytes) -> None:
        start = _address(pixels) - _address(message)
        self.pixels = slice(start, start + pixels.size)
        self._frame_id = header.frame_id
        self._size = message.size
        self._encapsulation = message[:_STAMP_OFFSET].tobytes()
        self._fields = slice(_STAMP_OFFSET + 8, start)
        self._same_bytes = message[self._fields].tobytes()
        self._stamp = _INTEGER_LAYOUTS[self._encapsulation[:2]]['iI']

    def read(self, message: _Bytes) -> HeaderView | None:
        """Return the header of another message; None if other bytes differ, too."""
        memory = message.data
        if (
            message.size != self._size
            or bytes(memory[self._fields]) != self._same_bytes
            or bytes(memory[:_STAMP_OFFSET]) != self._encapsulation
        ):
            return None
        sec, nanosec = self._stamp.unpack_from(memory, _STAMP_OFFSET)
        return HeaderView(StampView(sec, nanosec), self._frame_id)


class CompressedHeaderCache:
    """Reuses the parsed header of a compressed image, as `HeaderCache` does.

    Args:
        message: uint8 (n,), a serialised compressed image that could be read.
        view: the parsed message; its file has at least one byte.
    """

    def __init__(self, message: _Bytes, view: CompressedImageView) -> None:
        self._size_offset = _address(view.data) - _address(message) - 4
        self._encapsulation = message[:_STAMP_OFFSET].tobytes()
        self._fields = slice(_STAMP_OFFSET + 8, self._size_offset)
        self._same_bytes = message[self._fields].tobytes()
        self._frame_id, self._format = view.header.frame_id, view.format
        layouts = _INTEGER_LAYOUTS[self._encapsulation[:2]]
        self._stamp, self._file_size = layouts['iI'], layouts['I']

    def read(self, message: _Bytes) -> CompressedImageView | None:
        """Return the view of another message; None if more than stamp and file differ."""
        memory = message.data
        if (
            message.size < self._size_offset + 4
            or bytes(memory[self._fields]) != self._same_bytes
            or bytes(memory[:_STAMP_OFFSET]) != self._encapsulation
        ):
            return None
        (size,) = self._file_size.unpack_from(memory, self._size_offset)
        begin = self._size_offset + 4
        if begin + size > message.size:
            return None
        stamp = StampView(*self._stamp.unpack_from(memory, _STAMP_OFFSET))
        header = HeaderView(stamp, self._frame_id)
        return CompressedImageView(header, self._format, message[begin : begin + size])


def _address(array: _Bytes) -> int:
    address: int = array.__array_interface__['data'][0]
    return address


class _Reader:
    """Goes through a message once, from front to back."""

    def __init__(self, message: _Bytes) -> None:
        memory = message.data
        begin = bytes(memory[:_ENCAPSULATION_BYTES])
        layouts = _INTEGER_LAYOUTS.get(begin[:2]) if len(begin) == _ENCAPSULATION_BYTES else None
        if layouts is None:
            raise _bad_message(
                f'{message.size} bytes ({begin.hex(" ")} …)',
                'CDR, which begins with 00 00 or 00 01',
            )
        self._layouts = layouts
        self._message = message
        self._memory = memory
        self._size = message.size
        # The 4-byte encapsulation header does not change 4-byte alignment.
        self._offset = _ENCAPSULATION_BYTES

    def read_integers(self, codes: str) -> tuple[int, ...]:
        """Return the next integers, which follow each other, by their letters of ``struct``."""
        layout = self._layouts[codes]
        start = self._offset + (-self._offset % 4 if layout.size > 1 else 0)
        self._offset = self._end_offset(start, layout.size, 'a number')
        return layout.unpack_from(self._memory, start)

    def read_string(self, name: str, size: int) -> str:
        """Return the next bytes up to their first NUL; what is not UTF-8 as in rclpy.

        What is longer than 64 KiB is cut there.
        """
        start, self._offset = self._offset, self._end_offset(self._offset, size, name)
        text = self._memory[start : min(self._offset, start + _MAX_TEXT_BYTES)]
        return str(text, 'utf-8', 'replace').partition('\0')[0]

    def read_bytes(self, name: str, size: int) -> _Bytes:
        """Return the next bytes as a view."""
        start, self._offset = self._offset, self._end_offset(self._offset, size, name)
        return self._message[start : self._offset]

    def read_header(self) -> HeaderView:
        """Return the next std_msgs/Header."""
        sec, nanosec, size = self.read_integers('iII')
        return HeaderView(StampView(sec, nanosec), self.read_string('frame_id', size))

    def _end_offset(self, start: int, size: int, value_name: str) -> int:
        end = start + size
        if end > self._size:
            raise _bad_message(
                f'{self._size} bytes, of which {value_name} would end at {end}',
                'a whole message',
            )
        return end


def _bad_message(found: str, expected: str) -> ImageError:
    return ImageError(
        'bad_message',
        "the camera's message",
        found,
        expected=expected,
        fix='look who publishes on the topic: ros2 topic info --verbose',
    )
