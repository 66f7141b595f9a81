# SPDX-License-Identifier: Apache-2.0
"""Says what is wrong with the inputs of the node detections_3d, and publishes /diagnostics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.timer import Timer

from trt_perception.errors import DepthError, ImageError
from trt_perception.files.plain_text import escape_controls, join_first_items
from trt_perception.monitoring.percentiles import percentiles
from trt_perception.monitoring.status_summary import Level
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.inputs import CAMERA_INFO, DEPTH, DETECTIONS, TopicInput
from trt_perception.ros.boxes_3d.worker import OUTCOMES, BoxWorker, WorkerFacts
from trt_perception.ros.camera.debug_image import NO_EVENTS
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.timers import steady_timer
from trt_perception.ros.same_name import same_name_problem

_WATCH_PERIOD_S: Final = 1.0
# A topic without messages is reported after this time.
_SILENT_S: Final = 3.0
# A problem stays on /diagnostics this long after it was last seen.
_SHOWN_S: Final = 5.0
# Stamps that differ by more are of two clocks.
_CLOCK_NS: Final = 1_000_000_000
_IMAGE_TYPES: Final = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')


class Problems:
    """The problems of an activation. Each kind is logged once. Any thread may report.

    Args:
        log: writes a warning.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, str]] = {}

    def report(self, error: ImageError) -> None:
        """Log a mistake in what other nodes publish, unless its kind was logged before."""
        with self._lock:
            is_new = error.reason not in self._seen
            self._seen[error.reason] = self._clock(), str(error)
        if is_new:
            self._log(str(error))

    def current(self) -> list[str]:
        """Return the problems of the last seconds."""
        since_s = self._clock() - _SHOWN_S
        with self._lock:
            return [text for seen_s, text in self._seen.values() if seen_s >= since_s]


class InputWatch:
    """Finds topics without messages, stamps that do not fit, and too many messages.

    Args:
        similar_topics: returns topics that the user may have meant, by the name of an input.
    """

    def __init__(
        self,
        report: Callable[[ImageError], None],
        similar_topics: Callable[[str], list[str]],
        now_s: float,
    ) -> None:
        self._report = report
        self._similar_topics = similar_topics
        self._since_s = now_s
        self._last_no_depth = 0
        self._last_replaced = 0
        self._last_depth = 0
        self._last_depth_s = now_s

    def check(
        self,
        facts: WorkerFacts,
        topics: Mapping[str, tuple[str, int]],
        parameters: BoxParameters,
        now_s: float,
    ) -> None:
        """Report the problems at a moment.

        Args:
            topics: full name and number of publishers of each input, by its name.
        """
        counts = facts.counts
        without_depth = counts.get('no_depth', 0)
        is_new, self._last_no_depth = without_depth > self._last_no_depth, without_depth
        if now_s - self._since_s >= _SILENT_S:
            for name in (DETECTIONS, DEPTH, CAMERA_INFO):
                key = 'received' if name == DETECTIONS else f'received: {name}'
                if not counts.get(key):
                    since = 'since the activation'
                    self._report(self._silent(name, *topics[name], since))
        if is_new and facts.depth_offset_ns is not None:
            self._report(_offset(facts.depth_offset_ns, parameters.sync_tolerance_ms))
        depth_images = counts.get(f'received: {DEPTH}', 0)
        if depth_images > self._last_depth:
            self._last_depth, self._last_depth_s = depth_images, now_s
        silent_s = now_s - self._last_depth_s
        if is_new and depth_images and silent_s >= _SILENT_S:
            self._report(self._silent(DEPTH, *topics[DEPTH], f'for {silent_s:.0f} s'))
        replaced = counts.get('replaced', 0)
        new, self._last_replaced = replaced - self._last_replaced, replaced
        if new > 0:
            self._report(_overload(new))

    def _silent(self, name: str, topic: str, publishers: int, since: str) -> DepthError:
        found = f'no message {since}'
        if publishers:
            fix = 'wait for its publisher, and look at its log'
        else:
            found += ', and no publisher of the right type'
            base = topic.removesuffix('/compressedDepth')
            similar = self._similar_topics(name)
            there = f' (there are {join_first_items(similar)})' if similar else ''
            fix = (
                f'start its publisher, or remap the topic{there}: -r {name}:=/its/topic, with '
                f'launch {name}_topic:=/its/topic'
            )
            if base != topic:
                fix += ', both without /compressedDepth'
        return DepthError(f'no_{name}', topic, found, fix=fix)


def _overload(replaced: int) -> DepthError:
    """Return the mistake that detections come faster than the node finishes them."""
    return DepthError(
        'overload',
        'detections',
        f'{replaced} messages were late and replaced by newer ones',
        fix='process fewer images per second or fewer objects in the detector; if depth is '
        'missing, lower max_wait_ms',
    )


def _offset(offset_ns: int, tolerance_ms: float) -> DepthError:
    """Return the mistake that the stamps of depth are too far from those of the detections."""
    side = 'before' if offset_ns < 0 else 'after'
    if abs(offset_ns) > _CLOCK_NS:
        return DepthError(
            'clocks',
            'stamps of depth and detections',
            f'the nearest depth image {abs(offset_ns) / 1e9:.0f} s {side} the detections',
            expected='stamps of one clock',
            fix='take both images from one driver, synchronise the clocks of the machines (chrony '
            'or PTP), or set use_sim_time on all nodes when a bag is played',
        )
    return DepthError(
        'late_depth',
        'stamps of depth and detections',
        f'the nearest depth image {abs(offset_ns) / 1e6:.0f} ms {side} the detections',
        expected=f'a difference of at most {tolerance_ms:g} ms, sync_tolerance_ms',
        fix='let the camera take both images together, or set sync_tolerance_ms to half the time '
        'between two depth images; if depth comes later than detections, raise max_wait_ms',
    )


class BoxMonitor:
    """Publishes /diagnostics in every state after the first *configure*, and watches the inputs.

    Attributes:
        error: the error of the last transition; empty if there was none.
        problems: the problems of the last activation.
    """

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self.error = ''
        self.problems = Problems(self._warn)
        self._publisher: Publisher | None = None
        self._timers: list[Timer] = []
        self._watch_timer: Timer | None = None
        self._worker: BoxWorker | None = None
        self._inputs: Mapping[str, TopicInput] = {}
        self._parameters = BoxParameters()
        self._watch = InputWatch(self.problems.report, self._similar_topics, time.monotonic())
        self._last_facts = WorkerFacts({}, 0, [], None)

    def _warn(self, text: str) -> None:
        self._node.get_logger().warning(log_text(text))

    def forget_problems(self) -> Problems:
        """Return the object for the problems of a new activation."""
        self.problems = Problems(self._warn)
        return self.problems

    def start_publishing(self, period_s: float) -> None:
        """Publish once per period from now on."""
        if self._publisher is None:
            self._publisher = self._node.create_publisher(
                DiagnosticArray, '/diagnostics', QoSProfile(depth=10), event_callbacks=NO_EVENTS
            )
        for timer in self._timers:
            self._node.destroy_timer(timer)
        self._timers = [steady_timer(self._node, period_s, self.publish)]

    def start_watching(
        self, worker: BoxWorker, inputs: Mapping[str, TopicInput], parameters: BoxParameters
    ) -> None:
        """Watch an active node from now on."""
        self._worker, self._inputs, self._parameters = worker, inputs, parameters
        self._watch = InputWatch(self.problems.report, self._similar_topics, time.monotonic())
        self._watch_timer = steady_timer(self._node, _WATCH_PERIOD_S, self._check)

    def set_parameters(self, parameters: BoxParameters) -> None:
        """Use these values from now on."""
        self._parameters = parameters

    def stop_watching(self) -> None:
        """Stop watching. The counts of the activation stay on /diagnostics."""
        if self._worker is None:
            return
        self._last_facts = self._worker.facts()
        self._worker, self._inputs = None, {}
        if self._watch_timer is not None:
            self._node.destroy_timer(self._watch_timer)
            self._watch_timer = None
        counts = ', '.join(f'{key} {self._last_facts.counts.get(key, 0)}' for key in _COUNT_KEYS)
        self._node.get_logger().info(f'counts: {counts}')

    def _check(self) -> None:
        assert self._worker is not None
        for topic in self._inputs.values():
            topic.resubscribe_if_lost()
        topics = {name: (topic.topic, topic.publishers) for name, topic in self._inputs.items()}
        self._watch.check(self._worker.facts(), topics, self._parameters, time.monotonic())

    def _similar_topics(self, name: str) -> list[str]:
        """Return topics of images whose names speak of depth, or of the type of another input."""
        kinds = {
            DETECTIONS: ('vision_msgs/msg/Detection2DArray',),
            CAMERA_INFO: ('sensor_msgs/msg/CameraInfo',),
            DEPTH: _IMAGE_TYPES,
        }[name]
        return [
            topic
            for topic, types in self._node.get_topic_names_and_types()
            if types[0] in kinds
            and (name != DEPTH or 'depth' in topic)
            and self._node.count_publishers(topic)
        ]

    def publish(self) -> None:
        """Publish the status now."""
        if self._publisher is None:
            return
        name = self._node.get_fully_qualified_name()
        facts = self._last_facts if self._worker is None else self._worker.facts()
        state = str(self._node._state_machine.current_state[1])
        found = self.problems.current() if self._worker is not None else []
        if same_name := same_name_problem(self._node):
            found = [same_name, *found]
        level = Level.WARN if found else Level.OK
        message = '; '.join(found) or state
        if self.error:
            level, message = Level.ERROR, self.error
        values = {'state': state, **_values(facts), **self._not_delivered()}
        status = DiagnosticStatus(
            level=bytes([level]),
            name=f'{name}: boxes',
            message=escape_controls(message),
            values=[
                KeyValue(key=key, value=escape_controls(str(value)))
                for key, value in values.items()
            ],
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)

    def _not_delivered(self) -> dict[str, Any]:
        return {
            f'not delivered: {name}': 'unknown: several publishers'
            if topic.not_delivered is None
            else topic.not_delivered
            for name, topic in self._inputs.items()
        }


_COUNT_KEYS: Final = ('received', *OUTCOMES)


def _values(facts: WorkerFacts) -> dict[str, Any]:
    values: dict[str, Any] = {key: facts.counts.get(key, 0) for key in _COUNT_KEYS}
    values['waiting'] = facts.waiting
    for key in ('objects_left_out', 'masks_missing', 'received: depth', 'received: camera_info'):
        values[key] = facts.counts.get(key, 0)
    if (both := percentiles(facts.latencies_ms)) is not None:
        values['time from the later message p50 / p99 (ms)'] = (
            f'{both.p50_ms:.1f} / {both.p99_ms:.1f}'
        )
    return values
