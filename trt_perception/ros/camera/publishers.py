# SPDX-License-Identifier: Apache-2.0
"""The publishers of one camera: topics of the task, label_info, debug image."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import Any, Final

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.lifecycle import LifecycleNode
from rclpy.timer import Timer
from std_msgs.msg import Header
from vision_msgs.msg import LabelInfo

from trt_perception.errors import ImageError
from trt_perception.images.frame import Frame
from trt_perception.images.results.image_limits import is_large_result
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import LABEL_INFO, Task, TaskResult
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.debug_image import NO_EVENTS, DebugImage
from trt_perception.ros.camera.result_images import SizeLimit, wait_for_turn
from trt_perception.ros.camera.task_topics import TASK_TOPICS, CameraInfoTopic, TaskTopic
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.runtime.timers import steady_timer
from trt_perception.ros.topics import topic_name, topic_qos
from trt_perception.wire.camera_info import CameraInfoFields
from trt_perception.wire.cdr import HeaderFields, StampFields
from trt_perception.wire.result_messages import label_info_message

_RETRY_S: Final = 0.05
# Asking a publisher for its number of subscribers takes 10 µs, for up to four topics per image.
_SUBSCRIBERS_KEPT_S: Final = 0.1


class OnDemandPublisher:
    """Publishes a topic in a thread, so that no other topic waits for it.

    The thread holds one result, but not its image, and skips results that come while it is busy.
    Errors in the thread are logged, and the thread continues.

    Args:
        topic: publishes the messages. The caller closes the topic after this publisher.
    """

    def __init__(self, topic: TaskTopic[TaskResult], log: RcutilsLogger) -> None:
        self._topic = topic
        self._log = log
        self._limit = SizeLimit(topic.topic.name, topic.size_fix, log)
        # Protects the two following attributes. Notified after each change.
        self._changed = threading.Condition()
        # The result that is being published; None while the thread is not busy.
        self._result: tuple[Header | HeaderFields, tuple[int, int], TaskResult] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=topic.topic.name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._topic.topic.name

    @property
    def has_subscriber(self) -> bool:
        """Whether the topic has a subscriber."""
        return self._topic.has_subscriber

    def put(
        self, header: Header | HeaderFields, size_wh: tuple[int, int], found: TaskResult
    ) -> bool:
        """Start publishing a result.

        Args:
            size_wh: width and height of the image in pixels.

        Returns:
            False if the result is skipped: the thread is busy with an earlier one, the message
            would be too large, or the GPU has not made it.
        """
        made_wh = self._topic.image_size(size_wh, found)
        if made_wh is not None and not self._limit.allows(made_wh):
            return False
        if not self._topic.can_make(found):
            return False
        with self._changed:
            if self._result is not None:
                return False
            self._result = header, size_wh, found
            self._changed.notify()
        return True

    def close(self) -> None:
        """End the thread after its current result. May be called again.

        No other thread may call `put` at the same time.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._result = None

    def _run(self) -> None:
        while self._publish_next():
            with self._changed:
                self._result = None

    def _publish_next(self) -> bool:
        """Wait for a result, and publish it. Return False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._result is not None)
            if self._closed or self._result is None:
                return False
            header, size_wh, found = self._result
        try:
            self._publish(header, size_wh, found)
        except Exception as error:
            self._report(error)
        return True

    def _publish(
        self, header: Header | HeaderFields, size_wh: tuple[int, int], found: TaskResult
    ) -> None:
        made_wh = self._topic.image_size(size_wh, found) or (0, 0)
        with wait_for_turn(made_wh, lambda: self._closed) as may_publish:
            if not may_publish:
                return
            try:
                self._topic.publish(header, size_wh, found)
            finally:
                if is_large_result(made_wh):
                    self._topic.free_memory()

    def _report(self, error: Exception) -> None:
        with contextlib.suppress(Exception):  # logging may fail, too, if memory is short
            reason = f'{type(error).__name__}: {error}'.rstrip(': ')
            self._log.error(
                f'a message on {self.name} was not published: {log_text(reason)}; '
                'other topics continue',
                throttle_duration_sec=5.0,
            )


class CameraPublishers:
    """The publishers of one camera for a configured model.

    Args:
        class_names: names by class id.
        task: task of the model, which determines the topics.
        camera: name of the camera; empty if the node has only one camera.
    """

    def __init__(
        self,
        node: LifecycleNode,
        class_names: tuple[str, ...],
        parameters: ParameterValues,
        task: Task = DETECT,
        camera: str = '',
    ) -> None:
        self._node = node
        self._log = camera_logger(node, camera)
        self._class_names = class_names
        self._topics: list[TaskTopic[TaskResult]] = []
        self._on_demand: list[OnDemandPublisher] = []
        self._wanted_topics: frozenset[str] = frozenset()
        self._next_count_s = 0.0
        self._finds_objects = task.finds_objects
        self._label_infos: list[Any] = []
        self._debug_image: DebugImage | None = None
        self._retry_timer: Timer | None = None
        try:
            for topic in task.topics:
                kind = TASK_TOPICS[topic.name]
                if not kind.is_available():
                    continue
                self._topics.append(kind(node, class_names, parameters, task, camera))
                if topic.on_demand:
                    self._on_demand.append(OnDemandPublisher(self._topics[-1], self._log))
            for topic in (LABEL_INFO, *task.label_topics):
                # A lifecycle publisher would drop this message, because configure publishes it.
                publisher = node.create_publisher(
                    LabelInfo,
                    topic_name(camera, topic.name),
                    topic_qos(topic),
                    event_callbacks=NO_EVENTS,
                )
                self._label_infos.append(publisher)
            self._debug_image = DebugImage(
                node, class_names, parameters.debug_image_max_rate_hz, task, camera
            )
            self.publish_label_info(parameters.confidence_threshold)
        except BaseException:
            self.close()
            raise

    def publish(self, header: Header | HeaderFields, frame: Frame, found: TaskResult) -> bool:
        """Publish the result of one image on the task's topics, in their order.

        The worker calls this method. Threads publish the topics on demand.

        Returns:
            False if a topic on demand skips this image: its thread is busy, the image would be too
            large, or the GPU has not made it.

        Raises:
            ImageError: the middleware refused a message (reason `not_published`). Failures of
                topics on demand are only logged.
        """
        assert self._debug_image is not None
        size_wh = frame.width, frame.height
        for topic in self._topics:
            if topic.topic.on_demand:
                continue
            try:
                topic.publish(header, size_wh, found)
            except rclpy_implementation.RCLError as error:
                raise ImageError(
                    'not_published',
                    topic.topic.name,
                    f'the middleware refused the message: {error}',
                    fix='find a subscriber that is too slow or has a slow network',
                ) from error
        wanted = self.wanted_topics()
        # A new viewer gets no image of a frame that entered the pipeline without masks or maps.
        accepted = []
        if not self._on_demand or self._debug_image.name in wanted:
            accepted.append(self._debug_image.put(header, frame, found))
        # Last, because the threads of these topics start when this thread releases the GIL.
        accepted += [
            topic.put(header, size_wh, found) for topic in self._on_demand if topic.name in wanted
        ]
        return all(accepted)

    @property
    def needs_camera_info(self) -> bool:
        """Whether a topic needs the calibration of the camera."""
        return any(isinstance(topic, CameraInfoTopic) for topic in self._topics)

    def use_camera_info(self, info: CameraInfoFields) -> None:
        """Publish this calibration of the camera with the next maps."""
        for topic in self._topics:
            if isinstance(topic, CameraInfoTopic):
                topic.info = info

    def wanted_topics(self) -> frozenset[str]:
        """Return the names of the topics on demand that have a subscriber.

        If the task has such topics, ``debug_image`` is among them, because it shows masks or
        maps. The answer is up to 0.1 s old.
        """
        now_s = time.monotonic()
        if self._on_demand and now_s >= self._next_count_s:
            assert self._debug_image is not None
            topics: list[OnDemandPublisher | DebugImage] = [*self._on_demand, self._debug_image]
            self._wanted_topics = frozenset(topic.name for topic in topics if topic.has_subscriber)
            self._next_count_s = now_s + _SUBSCRIBERS_KEPT_S
        return self._wanted_topics

    def publish_label_info(self, confidence_threshold: float) -> None:
        """Publish the class names and the threshold, for present and later subscribers.

        Fast DDS refuses the message while it sends the previous one, because its queue has room
        for one message. The method then tries again after 50 ms.
        """
        self._cancel_retry()
        threshold = confidence_threshold if self._finds_objects else 0.0
        stamp = StampFields(*self._node.get_clock().now().seconds_nanoseconds())
        message = label_info_message(HeaderFields(stamp, ''), self._class_names, threshold)
        try:
            for publisher in self._label_infos:
                publisher.publish(bytes(message))
        except rclpy_implementation.RCLError as error:
            self._log.warning(
                f'label_info was not published, trying again: {log_text(error)}',
                throttle_duration_sec=5.0,
            )
            retry = partial(self.publish_label_info, confidence_threshold)
            self._retry_timer = steady_timer(self._node, _RETRY_S, retry)

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._node.destroy_timer(self._retry_timer)
            self._retry_timer = None

    def close(self) -> None:
        """Destroy the publishers. May be called again."""
        if self._debug_image is not None:
            self._debug_image.close()
            self._debug_image = None
        threads, self._on_demand = self._on_demand, []
        self._wanted_topics = frozenset()
        for thread in threads:
            thread.close()
        topics, self._topics = self._topics, []
        for topic in topics:
            topic.close()
        publishers, self._label_infos = self._label_infos, []
        for publisher in publishers:
            self._node.destroy_publisher(publisher)
        self._cancel_retry()
