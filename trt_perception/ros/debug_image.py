"""The debug image: detections drawn into the picture, while somebody looks."""

from __future__ import annotations

import array

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.detections import Detections
from trt_perception.drawing import draw_detections
from trt_perception.frame import Frame
from trt_perception.stages.host_preprocess import bgr_image

__all__ = ['DebugImage']


class DebugImage:
    """Publishes ``debug_image`` at most ``max_rate_hz`` times a second.

    The worker only leaves its newest frame here; a timer draws it in the executor's thread, where
    a late image delays no detection.

    Args:
        node: publishes on it.
        class_names: by class id.
        max_rate_hz: 0 offers no debug image.
    """

    def __init__(
        self, node: LifecycleNode, class_names: tuple[str, ...], max_rate_hz: float
    ) -> None:
        self._node = node
        self._class_names = class_names
        self._newest: tuple[Header, Frame, Detections] | None = None
        self._wanted = False
        self._publisher = self._timer = None
        if max_rate_hz > 0:
            self._publisher = node.create_publisher(Image, 'debug_image', QoSProfile(depth=1))
            self._timer = node.create_timer(1 / max_rate_hz, self._draw)

    def offer(self, header: Header, frame: Frame, detections: Detections) -> None:
        """Leave the newest result; from any thread.

        Keeps a reference to the frame only while somebody looks.
        """
        if self._wanted:
            self._newest = header, frame, detections

    def close(self) -> None:
        """Destroy publisher and timer. May be called again."""
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._node.destroy_publisher(self._publisher)
            self._publisher = self._timer = None
        self._wanted = False
        self._newest = None

    def _draw(self) -> None:
        self._wanted = self._publisher.get_subscription_count() > 0
        newest, self._newest = self._newest, None
        if newest is None or not self._wanted:
            return
        header, frame, detections = newest
        bgr = bgr_image(frame)
        draw_detections(bgr, detections, self._class_names)
        message = Image(
            header=header,
            height=frame.height,
            width=frame.width,
            encoding='bgr8',
            step=3 * frame.width,
        )
        message.data = array.array('B', bgr.tobytes())  # bytes would take rclpy's slow path
        self._publisher.publish(message)
