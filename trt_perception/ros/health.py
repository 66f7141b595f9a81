"""The node's health: what it knows of itself, on /diagnostics and, where it is bad, in the log."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.timer import Timer

from trt_perception.detector import Detector
from trt_perception.errors import ImageError
from trt_perception.monitoring.age import AgeOfOutput
from trt_perception.monitoring.announcer import Announcer
from trt_perception.monitoring.file_watch import FileWatch
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.problem import Level
from trt_perception.monitoring.problem import Problem
from trt_perception.monitoring.transport_advice import loss_cure
from trt_perception.monitoring.watch import PERIOD_S
from trt_perception.monitoring.watch import SilenceWatch
from trt_perception.plain_text import plain
from trt_perception.ros.debug_image import NO_EVENTS
from trt_perception.ros.diagnostics import Health
from trt_perception.ros.diagnostics import diagnostics_message
from trt_perception.ros.image_input import ImageInput
from trt_perception.ros.intake.cdr import StampView
from trt_perception.ros.log import NodeLog
from trt_perception.ros.log import log_text
from trt_perception.ros.log import say
from trt_perception.ros.same_name import same_name
from trt_perception.ros.timers import steady_timer

__all__ = ['NodeHealth']

# The diagnostics' rates are of at least so long: a message may follow another at once.
_RATE_S = 1.0
# By Level.
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)


class NodeHealth:
    """Publishes /diagnostics from the first configure on, in every state; watches an active node.

    What the watch finds is published at once when it changes, and logged as Announcer says.

    Args:
        node: publishes on it.
        log: its warnings that the package asks to be shown.
        died: called with an exception where the worker has died without reporting one.

    Attributes:
        error: what went wrong last, empty where nothing did.
        engine: the model's file, None before it is configured.
    """

    def __init__(
        self, node: LifecycleNode, log: NodeLog, died: Callable[[BaseException], None]
    ) -> None:
        self._node = node
        self._log = log
        self._died = died
        self._clock: Any = node.get_clock().handle
        self.error = ''
        self.engine: FileWatch | None = None
        self._soon = node.create_guard_condition(self.publish)
        # Made by the first configure and kept, so that a failed one is heard of.
        self._publisher: Publisher | None = None
        self._timer: Timer | None = None
        # Made by watch, freed by settle.
        self._active: tuple[Detector[Any], ImageInput] | None = None
        self._watch_timer: Timer | None = None
        self._watch = SilenceWatch('', start_s=0.0)
        self._announcer = Announcer()
        self._finding: Problem | None = None
        self._refusal = ''
        self._age = AgeOfOutput()
        # Time, received and published of the last messages, for rates.
        self._said: deque[tuple[float, int, int]] = deque()
        # What the last activation came to, shown until the next one.
        self._settled = FrameStatistics()
        self._not_delivered: int | None = 0

    def start(self, period_s: float) -> None:
        """Publish each period from now on; the period may have changed since the last time."""
        if self._publisher is None:
            self._publisher = self._node.create_publisher(
                DiagnosticArray, '/diagnostics', QoSProfile(depth=10), event_callbacks=NO_EVENTS
            )
        timer = steady_timer(self._node, period_s, self.publish)
        if self._timer is not None:  # only now: where the new one cannot be made it stays
            self._node.destroy_timer(self._timer)
        self._timer = timer

    def watch(self, detector: Detector[Any], image_input: ImageInput, frame_s: float) -> None:
        """Watch these from now on; one frame takes ``frame_s`` seconds."""
        now = time.monotonic()
        self._said = deque([(now, 0, 0)])
        self._age = AgeOfOutput()
        self._active = detector, image_input
        profile = Path(get_package_share_directory('trt_perception')) / 'config'
        self._watch = SilenceWatch(
            image_input.topic,
            start_s=now,
            frame_s=frame_s,
            look=image_input.look,
            loss_cure=loss_cure(
                str(profile / 'fastdds_large_images.xml'), image_input.reliability
            ),
        )
        self._announcer = Announcer()
        self._finding = Problem(Level.OK, '', 'active, waiting for images')
        self._watch_timer = steady_timer(self._node, PERIOD_S, self._check)
        # In step with each other: to wake the executor costs more than either does. The period
        # begins anew, so there is a message now, too.
        for timer in (self._timer, self._watch_timer):
            if timer is not None:
                timer.reset()
        self.publish_soon()

    def settle(self) -> None:
        """Stop watching, and keep what the activation came to."""
        if self._active is None:
            return
        detector, image_input = self._active
        self._settled, self._not_delivered = detector.statistics()[0], image_input.not_delivered
        self._active = self._finding = None
        timer, self._watch_timer = self._watch_timer, None
        if timer is not None:
            self._node.destroy_timer(timer)
        lost = 'unknown' if self._not_delivered is None else self._not_delivered
        self._node.get_logger().info(f'counts: {self._settled}; never delivered: {lost}')

    def refused(self, error: ImageError) -> None:
        """Take an image that cannot be read; from the worker."""
        self._refusal = plain(error)
        self._node.get_logger().warning(
            f'image dropped ({error.reason}): {log_text(error)}', throttle_duration_sec=5.0
        )

    def _check(self) -> None:
        if self._active is None or self.error:
            return
        detector, image_input = self._active
        if not detector.alive:
            self._died(RuntimeError('the worker thread has died'))
            return
        now = time.monotonic()
        if image_input.restore():
            finding = Problem(
                Level.ERROR,
                'subscription_lost',
                f'the subscription to {image_input.topic} was lost; subscribed again',
            )
        else:
            finding = self._watch.worst_problem(
                now,
                detector.statistics()[0],
                image_input.not_delivered,
                refusal=self._refusal,
                same_name=same_name(self._node),
                notes=self._notes(now),
            )
        line = self._announcer.line(finding, now)
        if line is not None:
            say(self._node.get_logger(), _SEVERITIES[line[0]], line[1])
        changed = self._finding is None or finding.kind != self._finding.kind
        self._finding = finding
        if changed:
            self.publish()

    def _notes(self, now_s: float) -> list[str]:
        change = self.engine.change() if self.engine is not None else ''
        return [note for note in (change, self._age.note(now_s), *self._log.shown) if note]

    def published(self, stamp: Time | StampView) -> None:
        """Take the stamp of an image whose detections are out; from the worker."""
        # Not by rclpy's Time, which refuses a negative stamp: a camera may send any. And to make
        # one of what the clock says takes much longer than to ask it.
        with self._clock:
            now_ns = self._clock.get_now().nanoseconds
        self._age.take(stamp.sec * 10**9 + stamp.nanosec, now_ns, time.monotonic())

    def publish(self) -> None:
        """Publish now."""
        if self._publisher is None:
            return
        health = Health(
            state=str(self._node._state_machine.current_state[1]),
            error=self.error,
            engine=self.engine.path if self.engine is not None else '',
            statistics=self._settled,
            not_delivered=self._not_delivered,
        )
        if self._active is not None:
            detector, image_input = self._active
            health.statistics = detector.statistics()[0]
            health.received_hz, health.published_hz = self._rates_hz(health.statistics)
            health.not_delivered = image_input.not_delivered
            health.age_ms = self._age.percentiles_ms()
            health.reliability = image_input.reliability
            health.finding = self._finding
        name, now = self._node.get_fully_qualified_name(), self._node.get_clock().now()
        self._publisher.publish(diagnostics_message(name, now, health))

    def publish_soon(self) -> None:
        """Publish once the executor is through with what it does now; from any thread."""
        self._soon.trigger()

    def publish_for_the_last_time(self) -> None:
        """Publish, and wait until it has arrived: the process ends."""
        self.publish()
        if self._publisher is not None:
            self._publisher.wait_for_all_acked(Duration(seconds=1))

    def _rates_hz(self, counts: FrameStatistics) -> tuple[float, float]:
        """Return how many frames a second were received and published since the last message."""
        now = time.monotonic()
        self._said.append((now, counts.received, counts.published))
        while now - self._said[1][0] >= _RATE_S:
            self._said.popleft()
        then, received, published = self._said[0]
        seconds = max(now - then, 1e-3)
        return (counts.received - received) / seconds, (counts.published - published) / seconds
