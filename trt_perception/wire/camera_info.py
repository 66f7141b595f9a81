# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the calibration of a camera, and scales it to maps of another size."""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.wire.cdr import CdrReader, HeaderFields, bad_message_error
from trt_perception.wire.serialize import append_cdr, cdr_header, cdr_string

_MAX_UINT32: Final = 2**32 - 1
# The distortion models of ROS have at most 14 coefficients.
_MAX_COEFFICIENTS: Final = 64
# The last calibration is stored, and published for each map.
_MAX_TEXT_LENGTH: Final = 256


class RegionFields(NamedTuple):
    """A sensor_msgs/RegionOfInterest, with the same field names."""

    x_offset: int
    y_offset: int
    height: int
    width: int
    do_rectify: bool


class CameraInfoFields(NamedTuple):
    """A sensor_msgs/CameraInfo, with the same field names."""

    header: HeaderFields
    height: int
    width: int
    distortion_model: str
    d: tuple[float, ...]
    k: tuple[float, ...]
    r: tuple[float, ...]
    p: tuple[float, ...]
    binning_x: int
    binning_y: int
    roi: RegionFields


def read_camera_info(message: npt.NDArray[np.uint8]) -> CameraInfoFields:
    """Parse a serialised sensor_msgs/CameraInfo.

    Args:
        message: uint8 (n,), starting with the encapsulation header.

    Raises:
        ImageError: the message cannot be parsed, or d, distortion_model or frame_id is too long
            (reason `bad_message`).
    """
    reader = CdrReader(message)
    header = reader.read_header()
    height, width = reader.read_integers('II')
    model = reader.read_text('distortion_model')
    for name, text in (('frame_id', header.frame_id), ('distortion_model', model)):
        if len(text) > _MAX_TEXT_LENGTH:
            raise bad_message_error(
                f'{name} with {len(text)} characters', f'at most {_MAX_TEXT_LENGTH} characters'
            )
    distortion = reader.read_doubles(reader.read_count('values in d', _MAX_COEFFICIENTS))
    k, r, p = (reader.read_doubles(count) for count in (9, 9, 12))
    binning_x, binning_y = reader.read_integers('II')
    x_offset, y_offset, rows, columns = reader.read_integers('IIII')
    (do_rectify,) = reader.read_integers('B')
    roi = RegionFields(x_offset, y_offset, rows, columns, bool(do_rectify))
    return CameraInfoFields(
        header, height, width, model, distortion, k, r, p, binning_x, binning_y, roi
    )


def camera_info_message(header: HeaderFields, info: CameraInfoFields) -> bytearray:
    """Return a serialised sensor_msgs/CameraInfo with another header than the calibration's."""
    message = bytearray(cdr_header(header))
    append_cdr(message, 4, struct.pack('<II', info.height, info.width))
    append_cdr(message, 4, cdr_string(info.distortion_model))
    append_cdr(message, 4, struct.pack('<I', len(info.d)))
    numbers = *info.d, *info.k, *info.r, *info.p
    append_cdr(message, 8, struct.pack(f'<{len(numbers)}d', *numbers))
    append_cdr(message, 4, struct.pack('<6I?', info.binning_x, info.binning_y, *info.roi))
    return message


def scaled_camera_info(
    info: CameraInfoFields, size_wh: tuple[int, int]
) -> CameraInfoFields | None:
    """Return the calibration for the image in another size, as image_proc's resize node does.

    Size, region of interest, K and P are multiplied by the ratio of the sizes. Distortion,
    rectification and binning stay. Numbers of a broken calibration may become infinite.

    Args:
        info: the calibration for the image.
        size_wh: width and height of the scaled image.

    Returns:
        None if the calibration has no size.
    """
    roi = info.roi
    columns = (roi.width or info.width) / max(info.binning_x, 1)
    rows = (roi.height or info.height) / max(info.binning_y, 1)
    if not columns or not rows:
        return None
    ratio_x, ratio_y = size_wh[0] / columns, size_wh[1] / rows
    return info._replace(
        width=_scaled(info.width, ratio_x),
        height=_scaled(info.height, ratio_y),
        k=_scaled_rows(info.k, 3, ratio_x, ratio_y),
        p=_scaled_rows(info.p, 4, ratio_x, ratio_y),
        roi=RegionFields(
            x_offset=_scaled(roi.x_offset, ratio_x),
            y_offset=_scaled(roi.y_offset, ratio_y),
            height=_scaled(roi.height, ratio_y),
            width=_scaled(roi.width, ratio_x),
            do_rectify=roi.do_rectify,
        ),
    )


def _scaled(pixels: int, ratio: float) -> int:
    return min(round(pixels * ratio), _MAX_UINT32)


def _scaled_rows(
    matrix: tuple[float, ...], columns: int, ratio_x: float, ratio_y: float
) -> tuple[float, ...]:
    """Return a matrix of three rows with its first row times ratio_x, its second times ratio_y."""
    return (
        *(number * ratio_x for number in matrix[:columns]),
        *(number * ratio_y for number in matrix[columns : 2 * columns]),
        *matrix[2 * columns :],
    )


def normalised_focal_lengths(info: CameraInfoFields) -> tuple[float, float] | None:
    """Return fx / width and fy / height of the image.

    Only K, size and region of interest are read. K belongs to the size without binning.

    Returns:
        None if the calibration has no size or no focal length.
    """
    columns, rows = info.roi.width or info.width, info.roi.height or info.height
    fx, fy = info.k[0], info.k[4]
    if not columns or not rows or not all(0 < focal < math.inf for focal in (fx, fy)):
        return None
    return fx / columns, fy / rows
