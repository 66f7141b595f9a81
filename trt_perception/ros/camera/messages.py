"""Converts image messages to frames, and creates the headers of published messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import Mistake, name_mistake, short_repr
from trt_perception.images.compressed import check_image_file
from trt_perception.images.decompress import SIXTEEN_BIT_WARNING
from trt_perception.images.encodings import (
    CV_BRIDGE_ENCODINGS,
    check_has_colors,
    read_compressed_format,
)
from trt_perception.images.frame import PIXEL_FORMATS, Frame, PixelFormat, frame_from_bgr
from trt_perception.images.jpeg import decode_to_frame
from trt_perception.ros.intake.buffers import MAX_MESSAGE_BYTES
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.wire.cdr import (
    CompressedHeaderCache,
    HeaderCache,
    HeaderFields,
    read_compressed,
    read_image,
)

_FileReader: TypeAlias = Callable[[npt.NDArray[np.uint8]], Frame]

# Each detection carries the frame_id, so a long frame_id would be multiplied a thousandfold.
_MAX_FRAME_ID_BYTES: Final = 256
_MAX_ENCODING_BYTES: Final = 64


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
    message = _deserialize(message, read_image)
    check_frame_id(message.header)
    if message.encoding not in PIXEL_FORMATS:
        return _frame_by_cv_bridge(message)
    frame = Frame.view(
        message.data,
        width=message.width,
        height=message.height,
        step=message.step,
        encoding=message.encoding,
        big_endian=bool(message.is_bigendian),
    )
    return frame if lease is None else replace(frame, memory=lease.memory)


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


def _deserialize(message: Any, read: Callable[[npt.NDArray[np.uint8]], Any]) -> Any:
    """Parse a SerializedMessage and set its header. Return other messages unchanged."""
    if not isinstance(message, SerializedMessage):
        return message
    if message.lease is None:
        raise ImageError(
            'too_large',
            "the camera's message",
            f'{message.size} bytes',
            expected=f'at most {MAX_MESSAGE_BYTES} bytes, and enough free memory',
        )
    view = read(message.data)
    message.header = view.header
    return view


def check_frame_id(header: Any) -> None:
    """Check that a frame_id is a short name, because each object carries it.

    Raises:
        ImageError: with the reason ``bad_frame_id``.
    """
    if mistake := _name_mistake(header.frame_id, _MAX_FRAME_ID_BYTES):
        raise ImageError(
            'bad_frame_id',
            "the image's header.frame_id",
            **mistake,
            fix='correct it in the camera driver',
        )


def _name_mistake(text: str, max_bytes: int) -> Mistake | None:
    """Return why a short text is invalid; None if the text is valid or empty."""
    if len(text.encode(errors='replace')) > max_bytes:
        return Mistake(found=f'more: {short_repr(text)}', expected=f'at most {max_bytes} bytes')
    return name_mistake(text) if text else None


def _frame_by_cv_bridge(message: Any) -> Frame:
    if mistake := _name_mistake(message.encoding, _MAX_ENCODING_BYTES):
        raise ImageError('unknown_encoding', 'the image encoding', **mistake)
    check_has_colors(message.encoding)
    try:
        import cv_bridge  # cv_bridge is an optional dependency
    except ImportError as error:
        if message.encoding not in CV_BRIDGE_ENCODINGS:
            raise ImageError(
                'unknown_encoding',
                'image encoding',
                repr(message.encoding),
                expected=f'one of {", ".join((*PIXEL_FORMATS, *CV_BRIDGE_ENCODINGS))}',
            ) from error
        raise ImageError(
            'unknown_encoding',
            f'image encoding {message.encoding!r}',
            'this encoding needs cv_bridge, which is not installed',
            fix='run sudo apt install ros-$ROS_DISTRO-cv-bridge, or let the camera send one of '
            f'{", ".join(PIXEL_FORMATS)}',
        ) from error
    try:
        bgr = cv_bridge.CvBridge().imgmsg_to_cv2(message, 'bgr8')
    except Exception as error:  # cv_bridge raises errors of OpenCV, NumPy and its own
        raise ImageError(
            'unknown_encoding',
            f'image encoding {message.encoding!r}',
            f'cv_bridge cannot convert it to bgr8: {error}',
        ) from error
    return frame_from_bgr(bgr)


def _decode_file(file: npt.NDArray[np.uint8]) -> Frame:
    return decode_to_frame(check_image_file(file))


def frame_from_compressed(message: Any, read_file: _FileReader = _decode_file) -> Frame:
    """Return the frame of a JPEG or PNG file in a message.

    Args:
        message: a CompressedImage, or a SerializedMessage, whose `header` is set here.
        read_file: checks the file (uint8 (n,)) and returns its frame.

    Raises:
        ImageError: the reason is `bad_message`, `bad_frame_id`, `not_decodable` or `too_large`;
            for depth, unknown words of the format and mosaics also `unknown_encoding` or
            `bad_size`.
    """
    view = _deserialize(message, read_compressed)
    check_frame_id(view.header)
    return _read_file(view, read_file)


class CompressedReader:
    """Converts the compressed images of one subscription. Reuses headers, as FrameReader does.

    Several threads may use a reader at the same time if `read_file` allows this.

    Args:
        read_file: checks the file (uint8 (n,)) and returns its frame.
    """

    def __init__(self, read_file: _FileReader) -> None:
        self._read_file = read_file
        self._cache: CompressedHeaderCache | None = None

    def __call__(self, message: Any) -> Frame:
        """Return the frame of a message. Arguments and errors as for `frame_from_compressed`."""
        cache = self._cache
        if not isinstance(message, SerializedMessage) or message.lease is None:
            return frame_from_compressed(message, self._read_file)
        if cache is not None and (view := cache.read(message.data)) is not None:
            message.header = view.header
            return _read_file(view, self._read_file)
        view = _deserialize(message, read_compressed)
        check_frame_id(view.header)
        if view.data.size:  # the cache needs the position of the file in the message
            self._cache = CompressedHeaderCache(message.data, view)
        return _read_file(view, self._read_file)


def _read_mosaic(encoding: str, file: npt.NDArray[np.uint8]) -> Frame:
    """Return the frame of a Bayer mosaic that was compressed as a grey image."""
    if encoding not in PIXEL_FORMATS:
        raise ImageError(
            'unknown_encoding',
            'encoding of the compressed image',
            short_repr(encoding),
            expected='8 bits per pixel',
            fix='let the camera send raw images, or convert them to colour with image_proc',
        )
    bgr, warning = check_image_file(file).decode()
    if (bgr != bgr[..., :1]).any():
        return frame_from_bgr(bgr, warning)  # the image has colours, so it is no mosaic
    height, width = bgr.shape[:2]
    pixels = np.ascontiguousarray(bgr[..., 0]).reshape(-1)
    frame = Frame.view(pixels, width=width, height=height, step=width, encoding=encoding)
    return replace(frame, warning=warning)


def _read_file(message: Any, read_file: _FileReader) -> Frame:
    data = np.frombuffer(message.data, np.uint8) if len(message.data) else np.empty(0, np.uint8)
    try:
        image_format = read_compressed_format(message.format)
        if image_format.is_mosaic:
            return _read_mosaic(image_format.encoding, data)
        frame = read_file(data)
    except ImageError as error:
        raise ImageError(
            error.reason,
            f'compressed image (format {short_repr(message.format)}, {data.size} bytes)',
            error.statement,
            fix=error.fix,
        ) from error
    if image_format.is_swapped:
        # The bytes that a decoder writes as BGR are RGB. JPEG may still be undecoded.
        frame = replace(frame, format=PIXEL_FORMATS['rgb8'])
    if image_format.encoding == 'mono16' and frame.warning == SIXTEEN_BIT_WARNING:
        frame = replace(frame, warning='')
    return frame
