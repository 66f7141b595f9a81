# SPDX-License-Identifier: Apache-2.0
"""Checks image messages and converts them to frames.

The functions accept parsed messages and rclpy's message objects, which have the same field names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import Mistake, name_mistake, short_repr
from trt_perception.images.compressed import check_image_file
from trt_perception.images.decompress import SIXTEEN_BIT_WARNING
from trt_perception.images.encodings import (
    CV_BRIDGE_ENCODINGS,
    check_has_colors,
    read_compressed_format,
)
from trt_perception.images.frame import PIXEL_FORMATS, Frame, frame_from_bgr
from trt_perception.images.jpeg import decode_to_frame
from trt_perception.wire.cdr import (
    CompressedImageView,
    HeaderFields,
    ImageFields,
    read_compressed,
    read_image,
)

_Bytes = npt.NDArray[np.uint8]
#: Checks an image file (uint8 (n,)) and returns its frame.
FileReader: TypeAlias = Callable[[_Bytes], Frame]

# Each detection carries the frame_id, so a long frame_id would be multiplied a thousandfold.
_MAX_FRAME_ID_BYTES: Final = 256
_MAX_ENCODING_BYTES: Final = 64


def decode_file(file: _Bytes) -> Frame:
    """Check and decode a JPEG or PNG file.

    Args:
        file: uint8 (n,).

    Raises:
        ImageError: the reason is `not_decodable` or `too_large`.
    """
    return decode_to_frame(check_image_file(file))


def read_image_frame(message: bytes) -> tuple[HeaderFields, Frame]:
    """Return the header and the frame of a serialised sensor_msgs/Image.

    The frame views the bytes of the message. cv_bridge converts encodings that the pipelines do
    not support.

    Raises:
        ImageError: the message cannot be parsed, or its frame_id, size, step, length or encoding
            is wrong.
    """
    image = read_image(np.frombuffer(message, np.uint8))
    check_frame_id(image.header)
    return image.header, frame_from_pixels(image)


def read_compressed_frame(
    message: bytes, read_file: FileReader = decode_file
) -> tuple[HeaderFields, Frame]:
    """Return the header and the frame of a serialised sensor_msgs/CompressedImage.

    Raises:
        ImageError: the reason is `bad_message`, `bad_frame_id`, or a reason of `frame_from_file`.
    """
    image = read_compressed(np.frombuffer(message, np.uint8))
    check_frame_id(image.header)
    return image.header, frame_from_file(image, read_file)


def check_frame_id(header: HeaderFields) -> None:
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


def frame_from_pixels(image: ImageFields) -> Frame:
    """Return a frame that views the pixels of an Image. The caller checks its frame_id.

    cv_bridge converts a copy if the pipelines do not support the encoding.

    Raises:
        ImageError: size, step, length or encoding is wrong.
    """
    if image.encoding not in PIXEL_FORMATS:
        return _frame_by_cv_bridge(image)
    return Frame.view(
        image.data,
        width=image.width,
        height=image.height,
        step=image.step,
        encoding=image.encoding,
        big_endian=bool(image.is_bigendian),
    )


def _frame_by_cv_bridge(image: ImageFields) -> Frame:
    if mistake := _name_mistake(image.encoding, _MAX_ENCODING_BYTES):
        raise ImageError('unknown_encoding', 'the image encoding', **mistake)
    check_has_colors(image.encoding)
    try:
        import cv_bridge  # cv_bridge is an optional dependency
    except ImportError as error:
        if image.encoding not in CV_BRIDGE_ENCODINGS:
            raise ImageError(
                'unknown_encoding',
                'image encoding',
                repr(image.encoding),
                expected=f'one of {", ".join((*PIXEL_FORMATS, *CV_BRIDGE_ENCODINGS))}',
            ) from error
        raise ImageError(
            'unknown_encoding',
            f'image encoding {image.encoding!r}',
            'this encoding needs cv_bridge, which is not installed',
            fix='run sudo apt install ros-$ROS_DISTRO-cv-bridge, or let the camera send one of '
            f'{", ".join(PIXEL_FORMATS)}',
        ) from error
    try:
        bgr = cv_bridge.CvBridge().imgmsg_to_cv2(image, 'bgr8')
    except Exception as error:  # cv_bridge raises errors of OpenCV, NumPy and its own
        raise ImageError(
            'unknown_encoding',
            f'image encoding {image.encoding!r}',
            f'cv_bridge cannot convert it to bgr8: {error}',
        ) from error
    return frame_from_bgr(bgr)


def frame_from_file(image: CompressedImageView, read_file: FileReader = decode_file) -> Frame:
    """Return the frame of a CompressedImage. The caller checks its frame_id.

    Raises:
        ImageError: the reason is `not_decodable` or `too_large`; for depth, unknown words of the
            format and mosaics also `unknown_encoding` or `bad_size`.
    """
    data = np.frombuffer(image.data, np.uint8) if len(image.data) else np.empty(0, np.uint8)
    try:
        image_format = read_compressed_format(image.format)
        if image_format.is_mosaic:
            return _read_mosaic(image_format.encoding, data)
        frame = read_file(data)
    except ImageError as error:
        raise ImageError(
            error.reason,
            f'compressed image (format {short_repr(image.format)}, {data.size} bytes)',
            error.statement,
            fix=error.fix,
        ) from error
    if image_format.is_swapped:
        # The bytes that a decoder writes as BGR are RGB. JPEG may still be undecoded.
        frame = replace(frame, format=PIXEL_FORMATS['rgb8'])
    if image_format.encoding == 'mono16' and frame.warning == SIXTEEN_BIT_WARNING:
        frame = replace(frame, warning='')
    return frame


def _read_mosaic(encoding: str, file: _Bytes) -> Frame:
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
