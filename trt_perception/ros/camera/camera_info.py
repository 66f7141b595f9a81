"""Receives the calibration of a camera, and scales it to maps of another size."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from operator import le
from typing import Final

import numpy as np
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo

from trt_perception.ros.runtime.log import camera_logger
from trt_perception.ros.topics import camera_info_topic

_MAX_UINT32: Final = 2**32 - 1
# Largest lengths of d, distortion_model and frame_id. The distortion models of ROS have at most 14
# coefficients in d.
_MAX_LENGTHS: Final = (64, 256, 256)


def scaled_camera_info(info: CameraInfo, size_wh: tuple[int, int]) -> CameraInfo | None:
    """Return the calibration for the image in another size, as image_proc's resize node does.

    Size, region of interest, K and P are multiplied by the ratio of the sizes. Distortion,
    rectification and binning stay.

    Args:
        info: the calibration for the image.
        size_wh: width and height of the scaled image.

    Returns:
        None if the calibration has no size.
    """
    columns = (info.roi.width or info.width) / max(info.binning_x, 1)
    rows = (info.roi.height or info.height) / max(info.binning_y, 1)
    if not columns or not rows:
        return None
    ratio_x, ratio_y = size_wh[0] / columns, size_wh[1] / rows
    scaled = copy.deepcopy(info)
    scaled.width, scaled.height = _scaled(info.width, ratio_x), _scaled(info.height, ratio_y)
    scaled.roi.x_offset = _scaled(info.roi.x_offset, ratio_x)
    scaled.roi.y_offset = _scaled(info.roi.y_offset, ratio_y)
    scaled.roi.width = _scaled(info.roi.width, ratio_x)
    scaled.roi.height = _scaled(info.roi.height, ratio_y)
    with np.errstate(over='ignore'):  # numbers of a broken calibration may become infinite
        for matrix, columns_of_row in ((scaled.k, 3), (scaled.p, 4)):
            matrix[:columns_of_row] *= ratio_x
            matrix[columns_of_row : 2 * columns_of_row] *= ratio_y
    return scaled


def _scaled(pixels: int, ratio: float) -> int:
    return min(round(pixels * ratio), _MAX_UINT32)


def normalised_focal_lengths(info: CameraInfo) -> tuple[float, float] | None:
    """Return fx / width and fy / height of the image.

    Only K, size and region of interest are read. K belongs to the size without binning.

    Returns:
        None if the calibration has no size or no focal length.
    """
    columns, rows = info.roi.width or info.width, info.roi.height or info.height
    fx, fy = map(float, (info.k[0], info.k[4]))
    if not columns or not rows or not all(0 < focal < math.inf for focal in (fx, fy)):
        return None
    return fx / columns, fy / rows


def subscribe_camera_info(
    node: LifecycleNode, camera: str, on_info: Callable[[CameraInfo], None]
) -> Subscription:
    """Subscribe to the calibration of a camera, next to the topic of its images.

    A calibration that is too large is ignored, because the last calibration is stored and copied
    for each map.
    """
    log = camera_logger(node, camera)

    def on_message(info: CameraInfo) -> None:
        lengths = len(info.d), len(info.distortion_model), len(info.header.frame_id)
        if all(map(le, lengths, _MAX_LENGTHS)):
            on_info(info)
            return
        log.warning(
            f'camera_info is ignored: d, distortion_model and frame_id have the lengths '
            f'{lengths}, but at most {_MAX_LENGTHS} are allowed: correct the driver',
            throttle_duration_sec=30.0,
        )

    return node.create_subscription(
        CameraInfo,
        camera_info_topic(node, camera),
        on_message,
        # Compatible with every publisher of this topic.
        QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT),
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
    )
