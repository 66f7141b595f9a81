"""Publishes a topic on demand in a thread of its own."""

from __future__ import annotations

import contextlib
import threading

from rclpy.impl.rcutils_logger import RcutilsLogger
from std_msgs.msg import Header

from trt_perception.images.results.image_limits import is_large_result
from trt_perception.model.tasks.task import TaskResult
from trt_perception.ros.camera.result_images import SizeLimit, wait_for_turn
from trt_perception.ros.camera.task_topics import TaskTopic
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.wire.cdr import HeaderFields


class OnDemandPublisher:
    """Publishes a topic in a thread, so that no other topic waits for it.

    The thread holds one result, but not its image, and skips results that come while it is busy.
    Errors in the thread are logged, and the thread continues.

    Args:
        topic: publishes the messages. The caller closes the topic after this publisher.
    """

    def __init__(self, topic: TaskTopic, log: RcutilsLogger) -> None:
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
                f'{self._topic.topic.name} were not published: {log_text(reason)}; '
                'detections continue',
                throttle_duration_sec=5.0,
            )
