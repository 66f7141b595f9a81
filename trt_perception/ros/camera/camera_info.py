# SPDX-License-Identifier: Apache-2.0
"""Receives the calibration of a camera."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo

from trt_perception.errors import ImageError
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.topics import camera_info_topic
from trt_perception.wire.camera_info import CameraInfoFields, read_camera_info


def subscribe_camera_info(
    node: LifecycleNode, camera: str, on_info: Callable[[CameraInfoFields], None]
) -> Subscription:
    """Subscribe to the calibration of a camera, next to the topic of its images.

    A calibration that is too large or cannot be parsed is ignored.
    """
    log = camera_logger(node, camera)

    def on_message(message: bytes) -> None:
        try:
            info = read_camera_info(np.frombuffer(message, np.uint8))
        except ImageError as error:
            log.warning(f'camera_info is ignored: {log_text(error)}', throttle_duration_sec=30.0)
            return
        on_info(info)

    return node.create_subscription(
        CameraInfo,
        camera_info_topic(node, camera),
        on_message,
        # Compatible with every publisher of this topic.
        QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT),
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        raw=True,
    )
