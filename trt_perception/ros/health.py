"""The node's health: what it knows of itself, once a period, on /diagnostics."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile

from trt_perception.detector import Detector
from trt_perception.frame_statistics import StatisticsSnapshot
from trt_perception.ros.diagnostics import Health
from trt_perception.ros.diagnostics import diagnostics_message
from trt_perception.ros.image_input import ImageInput
from trt_perception.ros.outputs import NO_EVENTS

__all__ = ['NodeHealth']


class NodeHealth:
    """Publishes /diagnostics from the first configure on, in every state.

    Attributes:
        error: what went wrong last, empty where nothing did.
        engine: path of the model, empty before it is configured.
    """

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self.error = ''
        self.engine = ''
        # Made by the first configure and kept, so that a failed one is heard of.
        self._publisher = self._timer = None
        self._active: tuple[Detector[Any], ImageInput] | None = None
        self._ages_ms: deque[float] = deque(maxlen=512)
        self._last: tuple[float, int, int] = (time.monotonic(), 0, 0)
        # What the last activation came to, shown until the next one.
        self._settled = StatisticsSnapshot()
        self._not_delivered: int | None = 0

    def start(self, period_s: float) -> None:
        """Publish each period from now on; the period may have changed since the last time."""
        if self._publisher is None:
            self._publisher = self._node.create_publisher(
                DiagnosticArray, '/diagnostics', QoSProfile(depth=10), event_callbacks=NO_EVENTS
            )
        else:
            self._node.destroy_timer(self._timer)
        self._timer = self._node.create_timer(period_s, self.publish)

    def watch(self, detector: Detector[Any], image_input: ImageInput) -> None:
        """Report of these from now on."""
        self._last = (time.monotonic(), 0, 0)
        self._ages_ms.clear()
        self._active = detector, image_input

    def settle(self, counts: StatisticsSnapshot, not_delivered: int | None) -> None:
        """Keep what an activation came to."""
        self._active = None
        self._settled = counts
        self._not_delivered = not_delivered

    def published(self, stamp: Time) -> None:
        """Take the stamp of an image whose detections are out; from the worker."""
        # Not by rclpy's Time, which refuses a negative stamp: a camera may send any.
        age_ns = self._node.get_clock().now().nanoseconds - (stamp.sec * 10**9 + stamp.nanosec)
        self._ages_ms.append(age_ns * 1e-6)

    def publish(self) -> None:
        """Publish now."""
        if self._publisher is None:
            return
        state = str(self._node._state_machine.current_state[1])
        health = Health(
            state=state,
            error=self.error,
            engine=self.engine,
            statistics=self._settled,
            not_delivered=self._not_delivered,
        )
        if self._active is not None:
            health = self._active_health(health, *self._active)
        self._publisher.publish(
            diagnostics_message(
                self._node.get_fully_qualified_name(), self._node.get_clock().now(), health
            )
        )

    def publish_for_the_last_time(self) -> None:
        """Publish, and wait until it has arrived: the process ends."""
        self.publish()
        if self._publisher is not None:
            self._publisher.wait_for_all_acked(Duration(seconds=1))

    def _active_health(
        self, health: Health, detector: Detector[Any], image_input: ImageInput
    ) -> Health:
        counts = detector.statistics()
        now = time.monotonic()
        then, received, published = self._last
        self._last = (now, counts.received, counts.published)
        ages = np.percentile(list(self._ages_ms), [50, 99]) if self._ages_ms else None
        return Health(
            state=health.state,
            error=health.error,
            engine=health.engine,
            statistics=counts,
            elapsed_s=now - then,
            received=counts.received - received,
            published=counts.published - published,
            not_delivered=image_input.not_delivered,
            age_ms=None if ages is None else (float(ages[0]), float(ages[1])),
            reliability=image_input.reliability,
        )
