# SPDX-License-Identifier: Apache-2.0
"""Reads serialised calibrations and keypoints, and writes boxes in space.

No read takes more memory than a small multiple of the message. Format: see `wire.cdr`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Header

from trt_perception.boxes_3d.calibration import Calibration
from trt_perception.boxes_3d.surface import Box3D
from trt_perception.errors import DepthError
from trt_perception.wire.camera_info import read_camera_info
from trt_perception.wire.cdr import CdrReader, HeaderFields
from trt_perception.wire.detections import MAX_DETECTIONS, FoundObject
from trt_perception.wire.result_messages import POINT_FLOAT32, point_cloud_message
from trt_perception.wire.serialize import CDR_ENCAPSULATION, append_cdr, cdr_header, cdr_string

_Bytes = npt.NDArray[np.uint8]
_MAX_FIELDS: Final = 16
# Models of whole bodies and faces have at most 478 keypoints.
_MAX_KEYPOINTS: Final = 1024
_MAX_POINT_BYTES: Final = 256
_NO_COVARIANCE: Final = bytes(36 * 8)


class Keypoints(NamedTuple):
    """The keypoints of the objects of an image: float32 (n, k, 3), x and y in pixels, score."""

    header: HeaderFields
    values: npt.NDArray[np.float32]


class LocatedObject(NamedTuple):
    """An object in an image, and the box of its visible surface."""

    found: FoundObject
    box: Box3D


def read_calibration(message: _Bytes) -> tuple[HeaderFields, Calibration]:
    """Parse a serialised sensor_msgs/CameraInfo.

    Raises:
        ImageError: the message cannot be parsed (reason ``bad_message``).
    """
    info = read_camera_info(message)
    region = info.roi
    return info.header, Calibration(
        (info.width, info.height),
        info.d,
        info.k,
        info.p,
        (info.binning_x, info.binning_y),
        (region.x_offset, region.y_offset, region.width, region.height),
    )


def read_keypoints(message: _Bytes) -> Keypoints:
    """Parse a serialised sensor_msgs/PointCloud2 with the layout of the topic ``keypoints``.

    Raises:
        ImageError: the message cannot be parsed, or has another layout (reason ``bad_message``).
    """
    reader = CdrReader(message)
    header = reader.read_header()
    rows, columns = reader.read_integers('II')
    fields = {}
    for _ in range(reader.read_count('fields', _MAX_FIELDS)):
        name = reader.read_text('name of a field')
        (offset,) = reader.read_integers('I')
        (datatype,) = reader.read_integers('B')
        reader.read_integers('I')
        fields[name] = offset, datatype
    (is_bigendian,) = reader.read_integers('B')
    point_step, row_step, size = reader.read_integers('III')
    data = reader.read_bytes('data', size)
    places = [fields.get(name, (0, 0)) for name in ('x', 'y', 'score')]
    if (
        any(kind != POINT_FLOAT32 or offset + 4 > point_step for offset, kind in places)
        or point_step > _MAX_POINT_BYTES
        or columns > _MAX_KEYPOINTS
        or rows > MAX_DETECTIONS
        or row_step != point_step * columns
        or size != row_step * rows
    ):
        found = f'{columns}x{rows} points in {size} bytes, fields {", ".join(fields) or "none"}'
        expected = (
            'the fields x, y and score as float32, without padding, and at most '
            f'{_MAX_KEYPOINTS}x{MAX_DETECTIONS} points'
        )
        raise DepthError('bad_message', 'keypoints', found, expected=expected)
    kind = '>f4' if is_bigendian else '<f4'
    offsets = [offset for offset, _ in places]
    layout = np.dtype(
        {'names': list('xys'), 'formats': [kind] * 3, 'offsets': offsets, 'itemsize': point_step}
    )
    points = data.view(layout).reshape(rows, columns)
    return Keypoints(header, np.stack([points[name] for name in 'xys'], 2).astype(np.float32))


def detections_3d_message(
    header: Header | HeaderFields, objects: Sequence[LocatedObject]
) -> bytes:
    """Return a serialised vision_msgs/Detection3DArray. rclpy would take 100 µs for each object.

    A box turns about the optical axis by its angle. The pose of each hypothesis is the box's
    centre.
    """
    message = bytearray(cdr_header(header))
    header_fields = bytes(message[len(CDR_ENCAPSULATION) :])
    append_cdr(message, 4, struct.pack('<I', len(objects)))
    for found, box in objects:
        half = box.theta / 2
        pose = struct.pack('<7d', *box.center, 0, 0, math.sin(half), math.cos(half))
        append_cdr(message, 4, header_fields)
        append_cdr(message, 4, struct.pack('<I', len(found.hypotheses)))
        for class_id, score in found.hypotheses:
            append_cdr(message, 4, cdr_string(class_id))
            append_cdr(message, 8, struct.pack('<d', score) + pose + _NO_COVARIANCE)
        append_cdr(message, 8, pose + struct.pack('<3d', *box.size))
        append_cdr(message, 4, cdr_string(found.id))
    return bytes(message)


def keypoints_3d_message(
    header: Header | HeaderFields, keypoints: npt.NDArray[np.float32]
) -> bytes:
    """Return a serialised point cloud with x, y, z (metres) and score of each keypoint.

    Args:
        keypoints: float32 (n, k, 4). NaN for unknown places.
    """
    is_dense = not bool(np.isnan(keypoints).any())
    fields = 'x', 'y', 'z', 'score'
    return bytes(point_cloud_message(header, fields, keypoints, is_dense=is_dense))
