# SPDX-License-Identifier: Apache-2.0
"""Reads the frames of a camera's messages, and creates the headers of published messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.images.frame import PIXEL_FORMATS, Frame, PixelFormat
from trt_perception.ros.intake.buffers import MAX_MESSAGE_BYTES
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.wire.cdr import (
    CompressedHeaderCache,
    HeaderCache,
    HeaderFields,
    read_compressed,
    read_image,
)
from trt_perception.wire.frames import (
    FileReader,
    check_frame_id,
    decode_file,
    frame_from_file,
    frame_from_pixels,
)


def header_message(header: Header | HeaderFields) -> Header:
    """Return the header for a message about an image, with the image's stamp and frame_id."""
    stamp = Time(sec=header.stamp.sec, nanosec=header.stamp.nanosec)
    return Header(stamp=stamp, frame_id=header.frame_id)


def frame_from_image(message: Any) -> Frame:
    """Return a Frame that views the bytes of an Image.

    cv_bridge converts encodings that the pipelines do not support.

    Args:
        message: an Image, or a SerializedMessage, whose `header` is set here.

    Raises:
        ImageError: the message cannot be parsed, or its frame_id, size, step, length or encoding
            is wrong.
    """
    lease = message.lease if isinstance(message, SerializedMessage) else None
    image = _checked_message(message, read_image)
    frame = frame_from_pixels(image)
    if lease is None or image.encoding not in PIXEL_FORMATS:  # cv_bridge has copied the pixels
        return frame
    return replace(frame, memory=lease.memory)


class FrameReader:
    """Converts the images of one subscription like `frame_from_image`, but faster.

    The reader parses and checks the constant header of a camera's images only once. Doing this for
    each image would cost more than all other Python code on the path of an image. Only one thread
    at a time may use a reader.
    """

    def __init__(self) -> None:
        self._cache: tuple[HeaderCache, tuple[int, int, int, PixelFormat, bool]] | None = None

    def __call__(self, message: Any) -> Frame:
        """Return the frame of a message. Arguments and errors as for `frame_from_image`."""
        if not isinstance(message, SerializedMessage) or message.lease is None:
            return frame_from_image(message)
        if self._cache is not None:
            cache, fields = self._cache
            header = cache.read(message.data)
            if header is not None:
                message.header = header
                return Frame(message.data[cache.pixels], *fields, message.lease.memory)
        frame = frame_from_image(message)
        # Without memory, cv_bridge has copied the pixels: nothing to cache.
        if frame.memory is not None:
            # Store values instead of the frame, because a frame keeps the message's memory in use.
            fields = frame.width, frame.height, frame.step, frame.format, frame.big_endian
            self._cache = HeaderCache(message.data, message.header, frame.data), fields
        return frame


def _checked_message(message: Any, read: Callable[[npt.NDArray[np.uint8]], Any]) -> Any:
    """Parse a SerializedMessage and set its header. Check the frame_id of any message.

    Returns:
        The parsed message. Messages of rclpy are returned unchanged.
    """
    if isinstance(message, SerializedMessage):
        if message.lease is None:
            raise ImageError(
                'too_large',
                "the camera's message",
                f'{message.size} bytes',
                expected=f'at most {MAX_MESSAGE_BYTES} bytes, and enough free memory',
            )
        view = read(message.data)
        message.header = view.header
        message = view
    check_frame_id(message.header)
    return message


def frame_from_compressed(message: Any, read_file: FileReader = decode_file) -> Frame:
    """Return the frame of a JPEG or PNG file in a message.

    Args:
        message: a CompressedImage, or a SerializedMessage, whose `header` is set here.
        read_file: checks the file (uint8 (n,)) and returns its frame.

    Raises:
        ImageError: the reason is `bad_message`, `bad_frame_id`, `not_decodable` or `too_large`;
            for depth, unknown words of the format and mosaics also `unknown_encoding` or
            `bad_size`.
    """
    return frame_from_file(_checked_message(message, read_compressed), read_file)


class CompressedReader:
    """Converts the compressed images of one subscription. Reuses headers, as FrameReader does.

    Several threads may use a reader at the same time if `read_file` allows this.

    Args:
        read_file: checks the file (uint8 (n,)) and returns its frame.
    """

    def __init__(self, read_file: FileReader) -> None:
        self._read_file = read_file
        self._cache: CompressedHeaderCache | None = None

    def __call__(self, message: Any) -> Frame:
        """Return the frame of a message. Arguments and errors as for `frame_from_compressed`."""
        cache = self._cache
        if not isinstance(message, SerializedMessage) or message.lease is None:
            return frame_from_compressed(message, self._read_file)
        if cache is not None and (view := cache.read(message.data)) is not None:
            message.header = view.header
            return frame_from_file(view, self._read_file)
        view = _checked_message(message, read_compressed)
        if view.data.size:  # the cache needs the position of the file in the message
            self._cache = CompressedHeaderCache(message.data, view)
        return frame_from_file(view, self._read_file)
