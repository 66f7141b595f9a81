# SPDX-License-Identifier: Apache-2.0
"""Serialises the results of tasks, except detections (see `serialize`).

The bytes equal rclpy's serialisation, except that padding is zero here and undefined in rclpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import NumberedMasks
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.image_message import (
    image_message_start,
    serialize_in_place,
    serialize_with_room,
)
from trt_perception.wire.serialize import append_cdr, cdr_header, cdr_string

#: FLOAT32 of sensor_msgs/PointField.
POINT_FLOAT32: Final = 7
_KEYPOINT_FIELDS: Final = ('x', 'y', 'score')
#: Encodings of maps, by kind of map.
_MAP_ENCODINGS: Final = MappingProxyType(
    {'class_ids': 'mono8', 'confidence': 'mono8', 'depth': '32FC1'}
)


def keypoints_message(header: HeaderFields, keypoints: npt.NDArray[np.float32]) -> bytearray:
    """Return a serialised point cloud with x, y (source pixels) and score of each keypoint.

    Args:
        header: header of the image.
        keypoints: float32 (n, k, 3): x, y and score of k keypoints of n detections.
    """
    return point_cloud_message(header, _KEYPOINT_FIELDS, keypoints, is_dense=True)


def point_cloud_message(
    header: HeaderFields,
    fields: Sequence[str],
    points: npt.NDArray[np.float32],
    *,
    is_dense: bool,
) -> bytearray:
    """Return a serialised sensor_msgs/PointCloud2.

    Args:
        header: header of the image.
        fields: names of the values of a point.
        points: float32 (rows, columns, fields).
        is_dense: whether all values are finite.
    """
    rows, columns, count = points.shape
    message = bytearray(cdr_header(header))
    append_cdr(message, 4, struct.pack('<3I', rows, columns, count))
    for index, name in enumerate(fields):
        append_cdr(message, 4, cdr_string(name))
        append_cdr(message, 4, struct.pack('<IB3xI', 4 * index, POINT_FLOAT32, 1))
    data = points.astype('<f4').tobytes()
    sizes = 4 * count, 4 * count * columns, len(data)
    append_cdr(message, 4, struct.pack('<B3x3I', 0, *sizes))  # is_bigendian comes first
    message += data
    message.append(is_dense)
    return message


def classification_message(
    header: HeaderFields, found: ClassScores, class_names: Sequence[str], count: int
) -> bytearray:
    """Return a serialised vision_msgs/Classification with the best classes, best first.

    Args:
        header: header of the image.
        found: the scores of all classes.
        class_names: names by class id.
        count: largest number of classes.
    """
    class_ids, scores = found.best(count)
    message = bytearray(cdr_header(header))
    append_cdr(message, 4, struct.pack('<I', len(class_ids)))
    for class_id, score in zip(class_ids.tolist(), scores.tolist(), strict=True):
        append_cdr(message, 4, cdr_string(class_names[class_id]))
        append_cdr(message, 8, struct.pack('<d', score))
    return message


def label_info_message(
    header: HeaderFields, class_names: Sequence[str], threshold: float
) -> bytearray:
    """Return a serialised vision_msgs/LabelInfo.

    Args:
        header: its stamp is the time of the message.
        class_names: names by class id.
        threshold: lowest score of published objects; 0 for models of the whole image.
    """
    message = bytearray(cdr_header(header))
    append_cdr(message, 4, struct.pack('<I', len(class_names)))
    for class_id, name in enumerate(class_names):
        append_cdr(message, 2, struct.pack('<H', class_id))
        append_cdr(message, 4, cdr_string(name))
    append_cdr(message, 4, struct.pack('<f', threshold))
    return message


def masks_message(
    header: HeaderFields,
    size_wh: tuple[int, int],
    masks: NumberedMasks,
    memory: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Return a serialised Image with i in the pixels of the i-th mask (from 1), 0 elsewhere.

    Args:
        header: header of the image.
        size_wh: width and height of the image in pixels.
        masks: drawn into the message.
        memory: memory of an earlier message; reused if it has the right size.

    Returns:
        uint8, one-dimensional; encoding ``mono16``.
    """
    start = image_message_start(header, size_wh, 'mono16', 2)
    message, pixels = serialize_with_room(start, memory)
    masks.number(pixels.view('<u2').reshape(size_wh[::-1]))
    return message


def map_message(
    header: HeaderFields,
    found: ClassMap | DepthMap | KernelMaps,
    kind: str,
    size_wh: tuple[int, int],
    memory: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8] | None:
    """Return a map as a serialised Image.

    Args:
        header: header of the image.
        found: the maps of the image.
        kind: the map: ``class_ids`` or ``confidence`` (``mono8``), or ``depth`` (``32FC1``).
        size_wh: width and height of the map in pixels. Kernels have already chosen the size of
            their maps.
        memory: memory of an earlier message; reused if it has the right size. Maps of kernels do
            not need it.

    Returns:
        uint8, one-dimensional; None if the result has no such map. The message of a map of kernels
        is in the map's memory, and is valid while the map exists.

    Raises:
        CudaError: the GPU work failed.
    """
    encoding = _MAP_ENCODINGS[kind]
    if isinstance(found, KernelMaps):
        made = found.maps.get(kind)
        if made is None:
            return None
        start = image_message_start(header, made.size_wh, encoding, made.dtype.itemsize)
        # The start of the message is written in front of the pixels.
        return serialize_in_place(start, made.memory(), HEADER_ROOM)
    pixels = found.image(kind, size_wh)
    if pixels is None:
        return None
    start = image_message_start(header, size_wh, encoding, pixels.itemsize)
    message, room = serialize_with_room(start, memory)
    np.copyto(room.view(pixels.dtype).reshape(pixels.shape), pixels)
    return message
