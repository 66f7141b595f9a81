"""Between ROS messages and the core's types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import Fault, name_fault, short_repr
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import PIXEL_FORMATS, Frame, PixelFormat, frame_from_bgr
from trt_perception.images.jpeg import decode_to_frame
from trt_perception.ros.intake.buffers import MAX_MESSAGE_BYTES
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.ros.wire.cdr import (
    CompressedHeaderCache,
    HeaderCache,
    HeaderView,
    read_compressed,
    read_image,
)

__all__ = [
    *('CompressedReader', 'FrameReader', 'empty_image', 'frame_from_compressed'),
    *('frame_from_image', 'header_message'),
]

_FileReader: TypeAlias = Callable[[npt.NDArray[np.uint8]], Frame]

# Each detection carries the frame_id, so a long one would grow a thousandfold.
_MAX_FRAME_ID_BYTES: Final = 256
_MAX_ENCODING_BYTES: Final = 64


def header_message(header: Header | HeaderView) -> Header:
    """Return the header of a message that belongs to an image."""
    stamp = Time(sec=header.stamp.sec, nanosec=header.stamp.nanosec)
    return Header(stamp=stamp, frame_id=header.frame_id)


def empty_image(
    header: Header | HeaderView, frame: Frame, encoding: str, pixel_bytes: int
) -> Image:
    """Return an Image of a frame's size without data, for ``serialize_with_room``.

    Args:
        header: of the image that it belongs to.
        frame: that image.
        encoding: of the message.
        pixel_bytes: of each pixel.
    """
    return Image(
        header=header_message(header),
        height=frame.height,
        width=frame.width,
        encoding=encoding,
        step=pixel_bytes * frame.width,
    )


def frame_from_image(message: Any) -> Frame:
    """View an Image's bytes as a Frame; what neither host nor GPU reads goes through cv_bridge.

    Args:
        message: an Image, or a serialised one, whose ``header`` is set.

    Raises:
        ImageError: it is not a message, or frame_id, size, step, length or encoding are wrong.
    """
    lease = message.lease if isinstance(message, SerializedMessage) else None
    message = _deserialize(message, read_image)
    _check_frame_id(message.header)
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
    """``frame_from_image`` for the images of one subscription; for one thread at a time.

    What is the same in all images of a camera is read and checked once: each time it costs more
    than all else that Python does to hand an image on.
    """

    def __init__(self) -> None:
        self._cache: tuple[HeaderCache, tuple[int, int, int, PixelFormat, bool]] | None = None

    def __call__(self, message: Any) -> Frame:
        """Return the message's frame; as ``frame_from_image``."""
        if not isinstance(message, SerializedMessage) or message.lease is None:
            return frame_from_image(message)
        if self._cache is not None:
            cache, fields = self._cache
            header = cache.read(message.data)
            if header is not None:
                message.header = header
                return Frame(message.data[cache.pixels], *fields, message.lease.memory)
        frame = frame_from_image(message)
        if frame.memory is not None:  # else the pixels are cv_bridge's
            # Not the frame itself: that would keep the memory.
            fields = frame.width, frame.height, frame.step, frame.format, frame.big_endian
            self._cache = HeaderCache(message.data, message.header, frame.data), fields
        return frame


def _deserialize(message: Any, read: Callable[[npt.NDArray[np.uint8]], Any]) -> Any:
    """Return the message of a serialised one, any other as it is."""
    if not isinstance(message, SerializedMessage):
        return message
    if message.lease is None:
        raise ImageError(
            'too_large',
            "the camera's message",
            f'{message.size} bytes',
            expected=f'at most {MAX_MESSAGE_BYTES}, and memory for them',
        )
    view = read(message.data)
    message.header = view.header
    return view


def _check_frame_id(header: Any) -> None:
    if fault := _name_fault(header.frame_id, _MAX_FRAME_ID_BYTES):
        raise ImageError(
            'bad_frame_id',
            "the image's header.frame_id",
            **fault,
            fix='correct it in the camera driver',
        )


def _name_fault(text: str, max_bytes: int) -> Fault | None:
    """Return what is wrong with a short text; None where it is fine or empty."""
    if len(text.encode(errors='replace')) > max_bytes:
        return Fault(found=f'more: {short_repr(text)}', expected=f'at most {max_bytes} bytes')
    return name_fault(text) if text else None


def _frame_by_cv_bridge(message: Any) -> Frame:
    if fault := _name_fault(message.encoding, _MAX_ENCODING_BYTES):
        raise ImageError('unknown_encoding', 'the image encoding', **fault)
    try:
        import cv_bridge  # optional
    except ImportError as error:
        raise ImageError(
            'unknown_encoding',
            f'image encoding {message.encoding!r}',
            'needs cv_bridge, which is not installed',
            fix='run sudo apt install ros-$ROS_DISTRO-cv-bridge, or let the camera send one of '
            f'{", ".join(PIXEL_FORMATS)}',
        ) from error
    try:
        bgr = cv_bridge.CvBridge().imgmsg_to_cv2(message, 'bgr8')
    except Exception as error:  # cv_bridge passes OpenCV's, NumPy's and its own errors on
        raise ImageError(
            'unknown_encoding',
            f'image encoding {message.encoding!r}',
            f'cv_bridge cannot convert it to bgr8: {error}',
        ) from error
    return frame_from_bgr(bgr)


def _decode_file(file: npt.NDArray[np.uint8]) -> Frame:
    return decode_to_frame(check_image_file(file))


def frame_from_compressed(message: Any, read_file: _FileReader = _decode_file) -> Frame:
    """Make a frame of a JPEG or PNG.

    Args:
        message: a CompressedImage, or a serialised one, whose ``header`` is set.
        read_file: makes the frame, and checks the file.

    Raises:
        ImageError: with the reason ``bad_message``, ``bad_frame_id``, ``not_decodable`` or
            ``too_large``; of a Bayer mosaic also ``unknown_encoding`` or ``bad_size``.
    """
    view = _deserialize(message, read_compressed)
    _check_frame_id(view.header)
    return _read_file(view, read_file)


class CompressedReader:
    """``frame_from_compressed`` for one subscription, as FrameReader is ``frame_from_image``.

    Any thread may use it, several at once, if they may use ``read_file`` so.
    """

    def __init__(self, read_file: _FileReader) -> None:
        self._read_file = read_file
        self._cache: CompressedHeaderCache | None = None

    def __call__(self, message: Any) -> Frame:
        """Return the message's frame; as ``frame_from_compressed``."""
        cache = self._cache
        if not isinstance(message, SerializedMessage) or message.lease is None:
            return frame_from_compressed(message, self._read_file)
        if cache is not None and (view := cache.read(message.data)) is not None:
            message.header = view.header
            return _read_file(view, self._read_file)
        view = _deserialize(message, read_compressed)
        _check_frame_id(view.header)
        if view.data.size:  # else it has no place in the message
            self._cache = CompressedHeaderCache(message.data, view)
        return _read_file(view, self._read_file)


def _read_mosaic(encoding: str, file: npt.NDArray[np.uint8]) -> Frame:
    """Return the frame of a Bayer mosaic, compressed as if it were grey."""
    if encoding not in PIXEL_FORMATS:
        raise ImageError(
            'unknown_encoding',
            'encoding of the compressed image',
            short_repr(encoding),
            expected='8 bits',
            fix='let the camera send raw images, or image_proc make colours of them',
        )
    bgr = check_image_file(file).decode()
    if (bgr != bgr[..., :1]).any():
        return frame_from_bgr(bgr)  # it has colours, so it is none
    height, width = bgr.shape[:2]
    pixels = np.ascontiguousarray(bgr[..., 0]).reshape(-1)
    return Frame.view(pixels, width=width, height=height, step=width, encoding=encoding)


def _read_file(message: Any, read_file: _FileReader) -> Frame:
    # As image_transport writes it: `rgb8; jpeg compressed bgr8`; where the camera's own encoding
    # was compressed nothing stands behind it, as with PNG of a Bayer camera. Or `jpeg` alone.
    encoding, _, compressed = message.format.partition(';')
    if encoding.startswith('bayer_') and compressed.rstrip().endswith('compressed'):
        read_file = partial(_read_mosaic, encoding)
    data = np.frombuffer(message.data, np.uint8) if len(message.data) else np.empty(0, np.uint8)
    try:
        return read_file(data)
    except ImageError as error:
        raise ImageError(
            error.reason,
            f'compressed image (format {short_repr(message.format)}, {data.size} bytes)',
            error.statement,
            fix=error.fix,
        ) from error
