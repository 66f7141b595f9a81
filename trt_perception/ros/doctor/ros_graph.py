# SPDX-License-Identifier: Apache-2.0
"""Observes camera topics and the diagnostics of detectors for doctor.

This module is a separate program that prints its findings as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.expand_topic_name import expand_topic_name
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.checks.cameras import CameraReport, CameraScene, camera_findings
from trt_perception.checks.finding import Finding, Level
from trt_perception.checks.shell import export_profile_command
from trt_perception.errors import ImageError
from trt_perception.files.plain_text import escape_controls
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.model.tasks.table import OUTPUT_IMAGE_SUFFIXES
from trt_perception.monitoring.delivery import DeliveryCounter
from trt_perception.monitoring.rates import EvenRate
from trt_perception.parameters.camera import CameraPlan
from trt_perception.ros.camera.messages import frame_from_compressed, frame_from_image
from trt_perception.ros.diagnostics import camera_sentences
from trt_perception.ros.intake.intake import check_intake
from trt_perception.ros.same_name import endpoint_node_name, shared_node_names
from trt_perception.ros.topics import detector_image_topics
from trt_perception.ros.wire.rcl import RclError
from trt_perception.transport.advice import may_be_camera

_IMAGE_TYPE: Final = 'sensor_msgs/msg/Image'
_COMPRESSED_TYPE: Final = 'sensor_msgs/msg/CompressedImage'
_MESSAGE_CLASSES: Final = {_IMAGE_TYPE: Image, _COMPRESSED_TYPE: CompressedImage}
# Running nodes usually appear within 1 s. Wait up to 4 s if cameras are missing, because Fast DDS
# repeats lost messages after 3 s.
_DISCOVERY_LIMITS_S: Final = (1.0, 4.0)
# Interval between queries of the graph. A query takes up to 1 ms for each topic.
_LOOK_INTERVAL_S: Final = 0.25
# Levels for OK, WARN, ERROR and STALE of DiagnosticStatus.
_FINDING_LEVELS: Final[tuple[Level, ...]] = ('green', 'yellow', 'red', 'yellow')


def graph_findings(
    plans: Sequence[CameraPlan],
    seconds: float,
    segment_bytes: int,
    *,
    node_name: str,
    topics_given: bool,
) -> list[Finding]:
    """Listen to all camera topics and detectors, and return the findings.

    Args:
        plans: plan of each camera of the detector. A plan without a topic accepts any topic.
        seconds: how long to listen.
        segment_bytes: bytes of shared memory that a process of this shell allocates.
        node_name: full name of the detector; relative topics of `plans` are in its namespace.
        topics_given: whether the user gave the topics; otherwise they are the default topics.
    """
    namespace, _, own = node_name.rpartition('/')
    plans = [
        replace(plan, topic=plan.topic and expand_topic_name(plan.topic, own, namespace or '/'))
        for plan in plans
    ]
    graph = _look_at_graph([plan.topic for plan in plans if plan.topic], seconds)
    scene = CameraScene(
        graph.reports,
        plans,
        segment_bytes,
        f'in the shells of camera and detector: {export_profile_command(os.environ)}',
        topics_given,
        graph.other_types,
    )
    return [
        graph.intake,
        *camera_findings(scene),
        *_same_name_findings(graph.same_names),
        *_detector_findings(graph.statuses.values()),
    ]


@dataclass(frozen=True)
class _Graph:
    """Observations of the ROS graph.

    Attributes:
        reports: observation of each topic of images.
        other_types: maps each camera topic whose publishers send no images to a text with the node
            and the message type of a publisher.
        same_names: number of nodes for each name that several nodes share.
        statuses: maps the name of each status on /diagnostics to the status.
    """

    reports: list[CameraReport]
    other_types: dict[str, str]
    same_names: dict[str, int]
    statuses: dict[str, Any]
    intake: Finding


def _look_at_graph(topics: Sequence[str], seconds: float) -> _Graph:
    """Listen to all topics of images and to /diagnostics.

    Args:
        topics: full names of the detector's topics of raw images.
        seconds: how long to listen after the topics were found.
    """
    statuses: dict[str, Any] = {}

    def on_diagnostics(message: DiagnosticArray) -> None:
        statuses.update({status.name: status for status in message.status})

    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    try:
        node = Node('doctor', context=context, enable_rosout=False, start_parameter_services=False)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        qos = QoSProfile(depth=10)
        node.create_subscription(DiagnosticArray, '/diagnostics', on_diagnostics, qos)
        listeners = _listen(node, executor, topics, seconds)
        other_types = _other_types(node, topics)
        reports = [
            listener.camera_report()
            for topic, listener in listeners.items()
            if topic not in other_types
        ]
        same_names = shared_node_names(
            node, {*_MESSAGE_CLASSES, 'vision_msgs/msg/Detection2DArray'}
        )
        intake = _intake_finding(context)
        node.destroy_node()
    finally:
        rclpy.shutdown(context=context)
    return _Graph(reports, other_types, same_names, statuses, intake)


def _intake_finding(context: rclpy.Context) -> Finding:
    """Return which intake a detector uses on this machine if `image_intake` is `auto`."""
    try:
        check_intake(context)
    except RclError as error:
        found = f'rclpy takes the images, which doubles the CPU time: {error}'
        fix = 'if the CPU load is too high, report this error with your version of ROS 2'
        return Finding('cameras', 'image intake', 'yellow', found, fix)
    found = 'a separate thread takes the images, through the C interface of ROS 2'
    return Finding('cameras', 'image intake', 'green', found)


def _listen(
    node: Node, executor: SingleThreadedExecutor, wanted: Sequence[str], seconds: float
) -> dict[str, _TopicListener]:
    """Find camera topics and listen to them, including topics that appear later."""
    listeners: dict[str, _TopicListener] = {}
    outputs: set[str] = set()
    started = look_s = time.monotonic()
    end = started + _DISCOVERY_LIMITS_S[0] + seconds
    while (now := time.monotonic()) < end:
        executor.spin_once(timeout_sec=min(0.1, end - now))
        if now < look_s:
            continue  # take all waiting messages before querying the graph again
        look_s = now + _LOOK_INTERVAL_S
        found = {
            topic
            for topic, kinds in node.get_topic_names_and_types()
            if not _MESSAGE_CLASSES.keys().isdisjoint(kinds)
            and (topic.removesuffix('/compressed') in wanted or may_be_camera(topic))
        } - (listeners.keys() | outputs)
        # Skip debug images and maps: a subscriber would make a detector compute them.
        unclear = {
            topic for topic in found.difference(wanted) if topic.endswith(OUTPUT_IMAGE_SUFFIXES)
        }
        if now - started >= _DISCOVERY_LIMITS_S[0]:  # nearly all publishers are known
            unclear = detector_image_topics(node, unclear)
            outputs |= unclear
        for topic in found - unclear:
            listeners[topic] = _TopicListener(node, topic)
        for listener in listeners.values():
            listener.update()
        heard = {topic for topic, listener in listeners.items() if listener.publishers}
        missing = not heard or any(not {topic, f'{topic}/compressed'} & heard for topic in wanted)
        if missing and now - started < _DISCOVERY_LIMITS_S[1]:
            end = now + seconds
    return listeners


def _other_types(node: Node, topics: Iterable[str]) -> dict[str, str]:
    """Map each topic whose publishers send no images to a text about one publisher."""
    found = {}
    for topic in topics:
        publishers = node.get_publishers_info_by_topic(topic)
        if publishers and all(each.topic_type not in _MESSAGE_CLASSES for each in publishers):
            found[topic] = (
                f'{endpoint_node_name(publishers[0])} publishes {publishers[0].topic_type}'
            )
    return found


class _TopicListener:
    """Listens to one topic, and deserializes only the last message.

    A topic is often discovered before its publishers, because a detector subscribes to the topic.

    Attributes:
        publishers: reliability of each publisher whose type the subscription has.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        # Type and reliability of the subscription.
        self._requested: tuple[str, ReliabilityPolicy] | None = None
        self._subscription: Subscription | None = None
        self.publishers: tuple[str, ...] = ()
        self.update()

    def update(self) -> None:
        """Find the publishers. Subscribe again if they need another type or reliability."""
        compressed = self._topic.endswith('/compressed')
        infos = self._node.get_publishers_info_by_topic(self._topic)
        published = {info.topic_type for info in infos} & _MESSAGE_CLASSES.keys()
        if not published and self._requested is not None:
            self.publishers = ()
            return
        meant = _COMPRESSED_TYPE if compressed else _IMAGE_TYPE
        kind = meant if meant in published or not published else published.pop()
        self.publishers = tuple(
            info.qos_profile.reliability.name.lower() for info in infos if info.topic_type == kind
        )
        best_effort = 'best_effort' in self.publishers
        policy = ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE
        if (kind, policy) == self._requested:
            return
        self._requested = kind, policy
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None
        self._kind = _MESSAGE_CLASSES[kind]
        self._started = time.monotonic()
        self._delivery = DeliveryCounter()
        self._received = 0
        self._rate = EvenRate()
        self._last = b''
        qos = QoSProfile(depth=10, reliability=policy)
        heard: Any = self._on_message  # the type hints of Jazzy lack callbacks with info
        try:
            self._subscription = self._node.create_subscription(
                self._kind, self._topic, heard, qos, raw=True
            )
        except rclpy_implementation.RCLError:
            # The executor frees the subscription of the other type in its next round. Retry then.
            self._requested = None

    def camera_report(self) -> CameraReport:
        """Return the observation of the topic."""
        description = cv_bridge_encoding = unreadable_reason = ''
        compressed = self._kind is CompressedImage
        message = None
        if self._last:
            try:
                message = deserialize_message(self._last, self._kind)
            except rclpy_implementation.RMWError:
                unreadable_reason = f'{len(self._last)} bytes that are not a message of its type'
        if message is not None:
            encoding = escape_controls(message.format if compressed else message.encoding, 64)
            size = '' if compressed else f'{message.width}x{message.height} '
            description = f'{size}{encoding}'.strip()
            unreadable_reason = _unreadable_reason(message)
            if not compressed and encoding not in PIXEL_FORMATS:
                cv_bridge_encoding = encoding
        return CameraReport(
            self._topic,
            compressed,
            self.publishers,
            self._received,
            self._delivery.not_delivered if len(self.publishers) == 1 else None,
            time.monotonic() - self._started,
            self._rate.hz(),
            len(self._last),
            description,
            cv_bridge_encoding,
            unreadable_reason,
        )

    def _on_message(self, message: bytes, info: dict[str, int]) -> None:
        self._received += 1
        self._rate.update(self._received, time.monotonic())
        self._last = message
        self._delivery.add_received(info['publication_sequence_number'])


def _unreadable_reason(message: Any) -> str:
    """Return why a detector would drop an image; empty if it would accept the image."""
    read = frame_from_compressed if isinstance(message, CompressedImage) else frame_from_image
    try:
        read(message)
    except ImageError as error:
        # Another check reports encodings that need cv_bridge.
        return '' if error.reason == 'unknown_encoding' else str(error)
    return ''


def _same_name_findings(counts: Mapping[str, int]) -> list[Finding]:
    """Return a finding for each name that several nodes share."""
    fix = (
        'end all but one, or start each with a namespace or a name of its own (--ros-args '
        '-r __ns:=/front or -r __node:=other); a killed node disappears within 20 s'
    )
    return [
        Finding('nodes', name, 'yellow', f'{count} nodes are called {name}', fix)
        for name, count in counts.items()
    ]


def _detector_findings(statuses: Iterable[Any]) -> list[Finding]:
    """Return the diagnostics of running detectors, cameras and GPUs, each problem once."""
    said = list(statuses)
    findings = []
    # The status of a detector ends with ': detector'. The statuses of its cameras and GPUs begin
    # with the same node name.
    for own in said:
        if not own.name.endswith(': detector'):
            continue
        prefix = own.name.removesuffix('detector')
        # After a fault, all statuses have the same message.
        parts = [
            status
            for status in said
            if status.name.startswith(prefix) and status.message != own.message
        ]
        bad = [
            (part.name.removeprefix(prefix), ord(part.level), part.message)
            for part in parts
            if part.level != DiagnosticStatus.OK
        ]
        # The message of the node ends with the problems of its cameras.
        of_cameras = '; '.join(camera_sentences(bad))
        message = own.message.removesuffix(of_cameras).removesuffix('; ')
        if message:
            findings.append(_status_finding(own.name, own.level, message))
        else:
            state = next((pair.value for pair in own.values if pair.key == 'state'), 'running')
            findings.append(_status_finding(own.name, DiagnosticStatus.OK, state))
        findings += [_status_finding(part.name, part.level, part.message) for part in parts]
    return findings


def _status_finding(name: str, diagnostics_level: bytes, message: str) -> Finding:
    level = _FINDING_LEVELS[min(ord(diagnostics_level), 3)]
    fix = '' if level == 'green' else 'see its log and docs/troubleshooting.md'
    return Finding('detectors', name, level, message, fix)


def main(request: str) -> None:
    """Print the findings."""
    arguments = json.loads(request)
    plans = [CameraPlan(**plan) for plan in arguments.pop('plans')]
    findings = graph_findings(plans, **arguments)
    print(json.dumps([asdict(finding) for finding in findings]))


if __name__ == '__main__':
    main(*sys.argv[1:])
