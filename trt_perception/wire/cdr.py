# SPDX-License-Identifier: Apache-2.0
"""Parses serialised Image and CompressedImage messages in place, and checks every length.

Format: classic CDR of either byte order (OMG CORBA 3.4, 9.3), in XCDR1 encapsulation (OMG
DDSI-RTPS 2.5, 10.2). Two bytes of representation and two bytes of options come first. Each value
then starts at a multiple of its size, counted from the end of the options. A string is its length
with the final NUL (uint32), followed by the bytes. Bytes after the last value are padding.

A message that cannot be parsed comes from a hostile or broken publisher. It is refused with the
reason `bad_message`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError

_Bytes = npt.NDArray[np.uint8]
# Layouts of consecutive integers, by the first two bytes of a message, then by format characters
# of `struct`.
_INTEGER_LAYOUTS: Final = {
    begin: {
        codes: struct.Struct(order + codes)
        for codes in ('iII', 'iI', 'IIII', 'III', 'II', 'I', 'B')
    }
    for begin, order in ((b'\x00\x00', '>'), (b'\x00\x01', '<'))
}
_ENCAPSULATION_BYTES: Final = 4
_STAMP_OFFSET: Final = _ENCAPSULATION_BYTES
# Later checks refuse far shorter strings. Decoding 200 MB would hold the GIL for seconds, and the
# header caches keep the strings of each camera.
_MAX_STRING_BYTES: Final = 4096


class StampFields(NamedTuple):
    """A builtin_interfaces/Time, with the same field names."""

    sec: int
    nanosec: int


class HeaderFields(NamedTuple):
    """A std_msgs/Header, with the same field names."""

    stamp: StampFields
    frame_id: str


class ImageFields(NamedTuple):
    """A sensor_msgs/Image, with the same field names. `data` is a view of the message's bytes."""

    header: HeaderFields
    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: _Bytes


class CompressedImageView(NamedTuple):
    """A sensor_msgs/CompressedImage, with the same field names.

    `data` is a view of the message's bytes.
    """

    header: HeaderFields
    format: str
    data: _Bytes


def read_image(message: _Bytes) -> ImageFields:
    """Parse a serialised sensor_msgs/Image.

    Args:
        message: uint8 (n,), starting with the encapsulation header.

    Raises:
        ImageError: the message cannot be parsed (reason `bad_message`).
    """
    reader = CdrReader(message)
    header = reader.read_header()
    height, width, size = reader.read_integers('III')
    encoding = reader.read_string('encoding', size)
    (is_bigendian,) = reader.read_integers('B')
    step, size = reader.read_integers('II')
    return ImageFields(
        header, height, width, encoding, is_bigendian, step, reader.read_bytes('data', size)
    )


def read_compressed(message: _Bytes) -> CompressedImageView:
    """Parse a serialised sensor_msgs/CompressedImage.

    Args:
        message: uint8 (n,), starting with the encapsulation header.

    Raises:
        ImageError: the message cannot be parsed (reason `bad_message`).
    """
    reader = CdrReader(message)
    header = reader.read_header()
    (size,) = reader.read_integers('I')
    encoding = reader.read_string('format', size)
    (size,) = reader.read_integers('I')
    return CompressedImageView(header, encoding, reader.read_bytes('data', size))


class HeaderCache:
    """Reuses the parsed header of an image for images that differ only in stamp and pixels.

    Args:
        message: uint8 (n,), a serialised image that was parsed.
        pixels: the pixels of the image, a view of the message.

    Attributes:
        pixels: byte range of the pixels in a message.
    """

    def __init__(self, message: _Bytes, header: HeaderFields, pixels: _Bytes) -> None:
        start = _address(pixels) - _address(message)
        self.pixels = slice(start, start + pixels.size)
        self._frame_id = header.frame_id
        self._size = message.size
        self._encapsulation = message[:_STAMP_OFFSET].tobytes()
        self._fields = slice(_STAMP_OFFSET + 8, start)
        self._same_bytes = message[self._fields].tobytes()
        self._stamp = _INTEGER_LAYOUTS[self._encapsulation[:2]]['iI']

    def read(self, message: _Bytes) -> HeaderFields | None:
        """Return the header of another message; None if more than stamp and pixels differ."""
        memory = message.data
        if (
            message.size != self._size
            or bytes(memory[self._fields]) != self._same_bytes
            or bytes(memory[:_STAMP_OFFSET]) != self._encapsulation
        ):
            return None
        sec, nanosec = self._stamp.unpack_from(memory, _STAMP_OFFSET)
        return HeaderFields(StampFields(sec, nanosec), self._frame_id)


class CompressedHeaderCache:
    """Reuses the parsed header of a compressed image, as `HeaderCache` does.

    Args:
        message: uint8 (n,), a serialised compressed image that was parsed.
        view: the parsed message. Its file must not be empty.
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
        """Return the parsed form of another message; None if more than stamp and file differ."""
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
        stamp = StampFields(*self._stamp.unpack_from(memory, _STAMP_OFFSET))
        header = HeaderFields(stamp, self._frame_id)
        return CompressedImageView(header, self._format, message[begin : begin + size])


def _address(array: _Bytes) -> int:
    address: int = array.__array_interface__['data'][0]
    return address


class CdrReader:
    """Reads the values of a message in order. Each method reads the next value."""

    def __init__(self, message: _Bytes) -> None:
        memory = message.data
        begin = bytes(memory[:_ENCAPSULATION_BYTES])
        layouts = _INTEGER_LAYOUTS.get(begin[:2]) if len(begin) == _ENCAPSULATION_BYTES else None
        if layouts is None:
            raise bad_message_error(
                f'{message.size} bytes ({begin.hex(" ")} …)',
                'CDR that starts with 00 00 or 00 01',
            )
        self._layouts = layouts
        self._order = '<' if begin[1] else '>'
        self._message = message
        self._memory = memory
        self._size = message.size
        # The 4-byte encapsulation header does not change 4-byte alignment.
        self._offset = _ENCAPSULATION_BYTES

    def read_integers(self, codes: str) -> tuple[int, ...]:
        """Read consecutive integers, given by format characters of `struct`."""
        layout = self._layouts[codes]
        start = self._offset + (-self._offset % 4 if layout.size > 1 else 0)
        self._offset = self._end_offset(start, layout.size, 'a number')
        return layout.unpack_from(self._memory, start)

    def read_doubles(self, count: int) -> tuple[float, ...]:
        """Read consecutive float64 values of a fixed number or of a checked length."""
        start = self._offset + (_ENCAPSULATION_BYTES - self._offset) % 8
        self._offset = self._end_offset(start, 8 * count, 'a number')
        return struct.unpack_from(f'{self._order}{count}d', self._memory, start)

    def read_count(self, name: str, largest: int) -> int:
        """Read the length of a sequence, which must not exceed a limit."""
        (count,) = self.read_integers('I')
        if count > largest:
            raise bad_message_error(f'{count} {name}', f'at most {largest} {name}')
        return count

    def read_text(self, name: str) -> str:
        """Read a string with its length."""
        (size,) = self.read_integers('I')
        return self.read_string(name, size)

    def read_string(self, name: str, size: int) -> str:
        """Read `size` bytes as a string. NULs at its end are padding.

        Bytes that are not UTF-8 become replacement characters, as in rclpy.
        """
        start, self._offset = self._offset, self._end_offset(self._offset, size, name)
        if size > _MAX_STRING_BYTES:
            raise bad_message_error(
                f'{name} with {size} bytes', f'strings of at most {_MAX_STRING_BYTES} bytes'
            )
        text = bytes(self._memory[start : self._offset]).rstrip(b'\0')
        if b'\0' in text:
            raise bad_message_error(
                f'bytes after the NUL of {name}', 'no bytes after the end of a string'
            )
        return text.decode('utf-8', 'replace')

    def read_bytes(self, name: str, size: int) -> _Bytes:
        """Return a view of the next `size` bytes, uint8 (size,)."""
        start, self._offset = self._offset, self._end_offset(self._offset, size, name)
        return self._message[start : self._offset]

    def read_header(self) -> HeaderFields:
        """Read a std_msgs/Header."""
        sec, nanosec, size = self.read_integers('iII')
        return HeaderFields(StampFields(sec, nanosec), self.read_string('frame_id', size))

    def _end_offset(self, start: int, size: int, value_name: str) -> int:
        end = start + size
        if end > self._size:
            raise bad_message_error(
                f'{self._size} bytes, but {value_name} ends at byte {end}',
                'a complete message',
            )
        return end


def bad_message_error(found: str, expected: str) -> ImageError:
    """Return the error for a message that cannot be parsed (reason ``bad_message``)."""
    return ImageError(
        'bad_message',
        'message',
        found,
        expected=expected,
        fix='find the publisher of the topic: ros2 topic info --verbose',
    )
