# SPDX-License-Identifier: Apache-2.0
"""Finds the boxes of the objects of one image, and says in words why it cannot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.boxes_3d.calibration import Calibration, Pinhole
from trt_perception.boxes_3d.depth_image import (
    DepthImage,
    read_compressed_depth,
    read_depth,
    wrong_unit_error,
)
from trt_perception.boxes_3d.keypoints import place_keypoints
from trt_perception.boxes_3d.pairing import Pair
from trt_perception.boxes_3d.surface import Mask, find_surface
from trt_perception.errors import DepthError, ImageError
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.messages import Keypoints, LocatedObject
from trt_perception.wire.cdr import CompressedImageView, HeaderFields, ImageFields
from trt_perception.wire.detections import FoundObjects

#: Topics whose messages have the stamp of the detections.
MASKS: Final = 'masks'
KEYPOINTS: Final = 'keypoints'
_ALIGN: Final = (
    'use the depth that the driver or depth_image_proc aligns to the camera image (often called '
    'aligned_depth_to_color or depth_registered)'
)


class LocatedImage(NamedTuple):
    """The objects of one image in space.

    Attributes:
        header: header of the image.
        objects: those with a visible surface, in the order of the detections.
        keypoints: float32 (n, k, 4), a row for each of `objects`; None without keypoints.
        left_out: number of objects without enough points.
        without_mask: whether masks were expected, but boxes were used.
    """

    header: HeaderFields
    objects: list[LocatedObject]
    keypoints: npt.NDArray[np.float32] | None = None
    left_out: int = 0
    without_mask: bool = False


class DroppedError(Exception):
    """Raised if nothing can be published for a detection message.

    Args:
        reason: the count that the message belongs to.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Locator:
    """Finds boxes in pairs of detections and depth. Only one thread at a time may use it.

    Args:
        report: called with each mistake in what other nodes publish.

    Attributes:
        parameters: the current values.
        calibration: header and content of the last camera_info; None before the first.
        until_s: monotonic time after which all messages are dropped, so that the node can end.
    """

    def __init__(self, parameters: BoxParameters, report: Callable[[ImageError], None]) -> None:
        self.parameters = parameters
        self.calibration: tuple[HeaderFields, Calibration] | None = None
        self.until_s = math.inf
        self._report = report

    def locate(self, pair: Pair) -> LocatedImage:
        """Return the objects of an image in space.

        Raises:
            DroppedError: nothing can be published.
        """
        detections: FoundObjects = pair.detections
        header = detections.header
        if not detections.objects:
            return LocatedImage(header, [], _no_keypoints(pair))
        if pair.depth is None:
            raise DroppedError('no_depth')
        self._check_time()
        camera = self._camera(header)
        depth = self._depth(pair.depth, header, camera)
        numbers = self._mask(pair, camera)
        keypoints = self._keypoints(pair)
        values = self.parameters
        objects, places = [], []
        for index, found in enumerate(detections.objects):
            self._check_time()
            surface = find_surface(
                found.box,
                depth,
                camera,
                mask=None if numbers is None else Mask(numbers, index + 1),
                min_points=values.min_points,
                min_depth_m=values.min_depth_m,
            )
            if surface is None:
                continue
            objects.append(LocatedObject(found, surface))
            if keypoints is not None:
                places.append(place_keypoints(keypoints[index], depth, camera, surface))
        if not objects and not depth.has_any():
            self._report(
                DepthError(
                    'empty_depth',
                    'depth image',
                    'no pixel has a depth',
                    fix='look at the depth image: the camera may be covered, too near, or outside',
                )
            )
            raise DroppedError('no_valid_depth')
        rows = None
        if keypoints is not None:
            rows = np.array(places, np.float32).reshape(len(places), keypoints.shape[1], 4)
        has_masks = MASKS in (*pair.missing, *pair.others)
        left_out = len(detections.objects) - len(objects)
        return LocatedImage(header, objects, rows, left_out, numbers is None and has_masks)

    def _check_time(self) -> None:
        if time.monotonic() > self.until_s:
            raise DroppedError('replaced')

    def _camera(self, header: HeaderFields) -> Pinhole:
        if self.calibration is None:
            raise DroppedError('no_camera_info')
        own_header, calibration = self.calibration
        try:
            _check_frame('camera_info', own_header, header)
            camera = calibration.pinhole()
        except ImageError as error:
            self._report(error)
            raise DroppedError('no_camera_info') from error
        if mistake := calibration.find_distortion():
            self._report(mistake)
        return camera

    def _depth(self, message: Any, header: HeaderFields, camera: Pinhole) -> DepthImage:
        unit_m = self.parameters.depth_unit_m
        try:
            _check_frame('depth image', message.header, header)
            if isinstance(message, CompressedImageView):
                encoding = message.format.partition(';')[0].strip()
                depth = read_compressed_depth(message.format, message.data, unit_m=unit_m)
            else:
                encoding = message.encoding
                depth = read_depth(
                    encoding,
                    (message.width, message.height),
                    message.step,
                    message.data,
                    big_endian=bool(message.is_bigendian),
                    unit_m=unit_m,
                )
            _check_size('depth image', depth.size_wh, camera, _ALIGN)
            if mistake := wrong_unit_error(depth, encoding, unit_m):
                raise mistake
        except ImageError as error:
            self._report(error)
            raise DroppedError('no_valid_depth') from error
        return depth

    def _mask(self, pair: Pair, camera: Pinhole) -> npt.NDArray[np.uint16] | None:
        message: ImageFields | None = pair.others.get(MASKS)
        if message is None:
            return None
        try:
            return _read_mask(message, camera)
        except ImageError as error:
            self._report(error)
            return None

    def _keypoints(self, pair: Pair) -> npt.NDArray[np.float32] | None:
        message: Keypoints | None = pair.others.get(KEYPOINTS)
        if message is None:
            return None
        if len(message.values) != len(pair.detections.objects):
            self._report(
                DepthError(
                    'bad_keypoints',
                    'keypoints',
                    f'{len(message.values)} rows',
                    expected=f'as many rows as detections ({len(pair.detections.objects)})',
                    fix='let detections and keypoints come from one detector',
                )
            )
            return None
        return message.values


def _no_keypoints(pair: Pair) -> npt.NDArray[np.float32] | None:
    message: Keypoints | None = pair.others.get(KEYPOINTS)
    return None if message is None else np.empty((0, message.values.shape[1], 4), np.float32)


def _check_frame(subject: str, own: HeaderFields, header: HeaderFields) -> None:
    names = [each.frame_id.lstrip('/') for each in (own, header)]
    if all(names) and names[0] != names[1]:
        raise DepthError(
            f'{subject.partition(" ")[0]}_frame',
            f'frame_id of the {subject}',
            repr(own.frame_id),
            expected=f'{header.frame_id!r}, as the detections',
            fix=_ALIGN
            if subject == 'depth image'
            else 'remap camera_info to the topic next to the camera image (-r camera_info:=/…, '
            'with launch camera_info_topic:=/…)',
        )


def _check_size(subject: str, size_wh: tuple[int, int], camera: Pinhole, fix: str) -> None:
    expected = camera.width, camera.height
    if size_wh != expected:
        raise DepthError(
            f'{subject.partition(" ")[0]}_size',
            f'size of the {subject}',
            '{}x{}'.format(*size_wh),
            expected='{}x{}, as camera_info'.format(*expected),
            fix=fix,
        )


def _read_mask(message: ImageFields, camera: Pinhole) -> npt.NDArray[np.uint16]:
    """Return the number of each pixel's object, uint16 (height, width); 0 is background."""
    size_wh = message.width, message.height
    _check_size(
        'mask',
        size_wh,
        camera,
        'remap camera_info to the camera whose images the detector gets (-r camera_info:=/…, '
        'with launch camera_info_topic:=/…)',
    )
    row_bytes = 2 * message.width
    if (
        message.encoding != 'mono16'
        or message.step < row_bytes
        or message.data.size != message.step * message.height
    ):
        found = f'{message.encoding}, step {message.step}, {message.data.size} bytes'
        expected = f'mono16, {row_bytes * message.height} bytes'
        raise DepthError('bad_mask', 'mask', found, expected=expected)
    rows = message.data.reshape(message.height, message.step)[:, :row_bytes]
    return np.ascontiguousarray(rows).view('<>'[bool(message.is_bigendian)] + 'u2')
