# SPDX-License-Identifier: Apache-2.0
"""The debug image: the camera's image with drawn detections, made only for subscribers."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

import numpy as np
import numpy.typing as npt
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.images.jpeg import decode_on_cpu
from trt_perception.images.results.image_limits import is_large_result
from trt_perception.images.trails import Trails
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import DEBUG_IMAGE, Task, TaskResult
from trt_perception.ros.camera.result_images import SizeLimit, wait_for_turn
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.topics import topic_name, topic_qos
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.image_message import image_message_start, serialize_with_room

# rclpy's executor visits every event handler at each wait, which is twice per image if rclpy takes
# the images. A publisher without handlers does not warn about subscribers with an incompatible QoS
# or type. Subscribers of rclpy and rclcpp warn in their own process.
NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)

# Python refuses very long waits, which would follow from a very low rate.
_MAX_WAIT_S: Final = 3600.0


class DebugImage:
    """Publishes ``debug_image`` at most ``max_rate_hz`` times a second.

    The worker only stores its newest result here. A thread draws and publishes the image, so a
    large image or a slow viewer delays neither other topics nor services. The thread sleeps while
    the topic has no subscriber. Errors in the thread are logged, and the thread continues.

    Args:
        class_names: names by class id.
        max_rate_hz: largest rate in Hz; 0 disables the topic.
        camera: name of the camera; empty if the node has only one camera.
    """

    name: Final = DEBUG_IMAGE.name

    def __init__(
        self,
        node: LifecycleNode,
        class_names: tuple[str, ...],
        max_rate_hz: float,
        task: Task = DETECT,
        camera: str = '',
    ) -> None:
        self._node = node
        self._log = camera_logger(node, camera)
        self._limit = SizeLimit(self.name, 'send smaller images', self._log)
        self._task = task
        self._class_names = class_names
        # Protects the two following attributes. Notified after each change.
        self._changed = threading.Condition()
        self._newest_result: tuple[Header | HeaderFields, Frame, TaskResult] | None = None
        self._closed = False
        # Only the thread uses the serialised message. It is reused while its size is the same.
        self._message: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._trails = Trails()  # of the drawn images; only the thread uses them
        self._publisher: Publisher | None = None
        self._thread: threading.Thread | None = None
        if max_rate_hz > 0:
            self._publisher = node.create_publisher(
                Image,
                topic_name(camera, DEBUG_IMAGE.name),
                topic_qos(DEBUG_IMAGE),
                event_callbacks=NO_EVENTS,
            )
            args = self._publisher, 1 / max_rate_hz
            thread = threading.Thread(target=self._run, args=args, name='debug_image', daemon=True)
            try:
                thread.start()
            except BaseException:
                self.close()
                raise
            self._thread = thread

    @property
    def has_subscriber(self) -> bool:
        """Whether the topic exists and has a subscriber."""
        return self._publisher is not None and self._publisher.get_subscription_count() > 0

    def put(self, header: Header | HeaderFields, frame: Frame, found: TaskResult) -> bool:
        """Store the newest result for drawing, if the topic has a subscriber.

        Any thread may call this method.

        Returns:
            False if the result is skipped, because the image is too large.
        """
        if not self.has_subscriber:
            return True
        if not self._limit.allows((frame.width, frame.height)):
            return False
        with self._changed:
            self._newest_result = header, frame, found
            self._changed.notify()
        return True

    def close(self) -> None:
        """End the thread after its current image, and destroy the publisher.

        No other thread may call `put` at the same time. May be called again.
        """
        with self._changed:
            self._closed = True
            self._newest_result = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
            self._publisher = None

    def _run(self, publisher: Publisher, period_s: float) -> None:
        due_s = 0.0
        while (newest := self._wait_for_result(due_s)) is not None:
            due_s = time.monotonic() + period_s
            try:
                self._publish(publisher, *newest)
            except Exception as error:
                self._report(error)
            del newest  # a frame keeps memory in use, and the next wait may be long

    def _publish(
        self,
        publisher: Publisher,
        header: Header | HeaderFields,
        frame: Frame,
        found: TaskResult,
    ) -> None:
        size_wh = frame.width, frame.height
        with wait_for_turn(size_wh, lambda: self._closed) as may_draw:
            if not may_draw or not publisher.get_subscription_count():  # the subscriber has left
                return
            try:
                self._draw(header, frame, found)
                publish_unlocked(publisher, self._message)
            finally:
                if is_large_result(size_wh):
                    self._message = np.empty(0, np.uint8)

    def _wait_for_result(
        self, due_s: float
    ) -> tuple[Header | HeaderFields, Frame, TaskResult] | None:
        """Wait for a result and for the time `due_s`. Return None when closed."""
        with self._changed:
            while not self._closed:
                wait_s = due_s - time.monotonic()
                if self._newest_result is None:
                    self._changed.wait()
                elif wait_s > 0:
                    self._changed.wait(min(wait_s, _MAX_WAIT_S))
                else:
                    newest, self._newest_result = self._newest_result, None
                    return newest
        return None

    def _draw(self, header: Header | HeaderFields, frame: Frame, found: TaskResult) -> None:
        """Draw the result into the pixels at the end of the serialised message."""
        start = image_message_start(header, (frame.width, frame.height), 'bgr8', 3)
        self._message, pixels = serialize_with_room(start, self._message)
        bgr = pixels.reshape(frame.height, frame.width, 3)
        image = frame_to_bgr(decode_on_cpu(frame), out=bgr)
        if isinstance(found, Detections):
            self._trails.draw(image, found, header.stamp.sec + header.stamp.nanosec * 1e-9)
        self._task.draw(image, found, self._class_names)

    def _report(self, error: Exception) -> None:
        with contextlib.suppress(Exception):  # logging may fail, too, if memory is short
            reason = f'{type(error).__name__}: {error}'.rstrip(': ')
            self._log.error(
                f'a message on {self.name} was not published: {log_text(reason)}; '
                'other topics continue',
                throttle_duration_sec=5.0,
            )
