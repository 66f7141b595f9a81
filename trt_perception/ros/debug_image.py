"""The debug image: detections drawn into the picture, while somebody looks."""

from __future__ import annotations

import array
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.timer import Timer
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.detections import Detections
from trt_perception.drawing import draw_detections
from trt_perception.frame import Frame
from trt_perception.ros.timers import steady_timer
from trt_perception.stages.host_preprocess import bgr_image

__all__ = ['DebugImage']


class DebugImage:
    """Publishes ``debug_image`` at most ``max_rate_hz`` times a second.

    The worker only leaves its newest frame here; a timer draws it in the executor's thread, where
    a late image delays no detection. The timer exists only while somebody subscribes: each time it
    fires costs the executor about as much as receiving an image.

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
        self._max_rate_hz = max_rate_hz
        self._newest: tuple[Header, Frame, Detections] | None = None
        self._timer: Timer | None = None
        self._publisher: Publisher | None = None
        if max_rate_hz > 0:
            self._publisher = node.create_publisher(
                Image,
                'debug_image',
                QoSProfile(depth=1),
                event_callbacks=PublisherEventCallbacks(
                    matched=self._on_matched, use_default_callbacks=False
                ),
            )

    def offer(self, header: Header, frame: Frame, detections: Detections) -> None:
        """Leave the newest result; from any thread. Keeps the frame only while somebody looks."""
        if self._timer is not None:
            self._newest = header, frame, detections

    def close(self) -> None:
        """Destroy publisher and timer. May be called again."""
        self._stop()
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
            self._publisher = None

    def _on_matched(self, event: Any) -> None:
        if event.current_count and self._timer is None and self._publisher is not None:
            self._timer = steady_timer(self._node, 1 / self._max_rate_hz, self._draw)
        elif not event.current_count:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        self._newest = None

    def _draw(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None or self._publisher is None:
            return
        header, frame, detections = newest
        bgr = bgr_image(frame)
        draw_detections(bgr, detections, self._class_names)
        message = Image(header=header, height=frame.height, width=frame.width, encoding='bgr8')
        message.step = 3 * frame.width
        message.data = array.array('B', bgr.tobytes())  # bytes would take rclpy's slow path
        self._publisher.publish(message)
