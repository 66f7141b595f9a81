# SPDX-License-Identifier: Apache-2.0
"""Checks of camera topics: publishers, QoS and the images that arrived.

`camera_findings` reports the cameras of the detector without a publisher first. Then it runs two
tables of checks, `_UNUSABLE_CHECKS` and `_OTHER_CHECKS`, on each topic, and reports the first
problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trt_perception.checks.finding import Finding, Level
from trt_perception.parameters.camera import CameraPlan
from trt_perception.transport.advice import LARGE_MESSAGE_BYTES, SOME_TOPIC, start_arguments

_AREA: Final = 'cameras'
_RAW_TYPE: Final = 'sensor_msgs/msg/Image'
# Added to the finding of a missing topic if the user gave no topic.
_GUESSED_TOPIC_NOTE: Final = ' on the default topic (choose another with --image-topic)'
_SHELL_FIX: Final = 'compare ROS_DOMAIN_ID and RMW_IMPLEMENTATION in its shell and in this shell'
_DISABLED_NOTE: Final = ' (this camera is switched off: enabled is false)'
# Single images are lost at the start. Losses above 1 % mean a problem of the transport.
_MAX_LOSS_SHARE: Final = 0.01
_DEFAULT_SEGMENT_BYTES: Final = 2**20

#: Result of a check: the observation and the fix; None without a problem.
_ProblemOrNone: TypeAlias = 'tuple[str, str] | None'


@dataclass(frozen=True)
class CameraReport:
    """Observations of one topic of images.

    Attributes:
        compressed: whether the type is sensor_msgs/CompressedImage, whatever the topic's name.
        reliability: ``reliable`` or ``best_effort`` for each publisher.
        lost: number of messages that were sent and did not arrive; None if unknown.
        seconds: how long doctor listened.
        rate_hz: rate of the messages; None after too few messages or irregular intervals.
        message_bytes: size of the last message.
        description: size and encoding of an image, such as ``640x480 bgr8``.
        cv_bridge_encoding: encoding of an image if only cv_bridge can convert it; else empty.
        unreadable_reason: why a detector would drop the last image; empty if it is readable.
    """

    topic: str
    compressed: bool
    reliability: tuple[str, ...]
    received: int
    lost: int | None
    seconds: float
    rate_hz: float | None = None
    message_bytes: int = 0
    description: str = ''
    cv_bridge_encoding: str = ''
    unreadable_reason: str = ''

    @property
    def is_published(self) -> bool:
        """Whether the topic has a publisher of images."""
        return bool(self.reliability)

    @property
    def is_readable(self) -> bool:
        """Whether a detector can read the topic.

        A detector expects compressed images if the name ends with ``/compressed``, else raw ones.
        """
        return self.compressed == self.topic.endswith('/compressed')


@dataclass(frozen=True)
class CameraScene:
    """The observations of all topics, and the cameras of the detector.

    Attributes:
        reports: observation of each topic of images.
        plans: plan of each camera of the detector. A plan without a topic accepts any topic.
        segment_bytes: bytes of shared memory of a process; a larger image does not fit.
        profile_fix: command that enlarges the shared memory.
        topics_given: whether the user gave the topics of `plans`; otherwise they are the default
            topics of a node.
        other_types: for each topic of `plans` that does not carry images, a text with its type
            and the node that publishes it.
    """

    reports: Sequence[CameraReport]
    plans: Sequence[CameraPlan]
    segment_bytes: int
    profile_fix: str
    topics_given: bool = True
    other_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def plans_with_known_topic(self) -> list[CameraPlan]:
        """The plans of cameras whose topic is known."""
        return [plan for plan in self.plans if plan.topic]

    @property
    def published_topics(self) -> set[str]:
        """Topics with a publisher of images."""
        return {report.topic for report in self.reports if report.is_published}

    @property
    def missing_level(self) -> Level:
        """Level of a camera without images. Yellow if doctor only guessed the camera's topic."""
        return 'red' if self.topics_given else 'yellow'


def camera_findings(scene: CameraScene) -> Iterator[Finding]:
    """Report each camera of the detector without a publisher, then each topic of images."""
    wanted = scene.plans_with_known_topic
    if not scene.reports and not any(plan.enabled for plan in wanted):
        yield Finding(
            _AREA,
            'topics',
            'yellow',
            'no topic of images',
            f'start the camera; {_SHELL_FIX}',
        )
    yield from _missing_cameras(scene)
    plans = {topic: plan for plan in wanted for topic in _topics_of_both_transports(plan.topic)}
    order = {topic: wanted.index(plan) for topic, plan in plans.items()}
    # Report the topics of the detector's cameras first, in their order, then all other topics.
    for report in sorted(scene.reports, key=lambda r: (order.get(r.topic, len(wanted)), r.topic)):
        plan = plans.get(report.topic)
        if plan is None or report.is_published:  # _missing_cameras reports the others
            yield _topic_finding(_Topic(scene, report, plan))


def _missing_cameras(scene: CameraScene) -> Iterator[Finding]:
    """Report the cameras of the detector whose images have no publisher in either transport."""
    published, wanted = scene.published_topics, scene.plans_with_known_topic
    missing = [
        plan for plan in wanted if published.isdisjoint(_topics_of_both_transports(plan.topic))
    ]
    read = {topic for plan in wanted for topic in _topics_of_both_transports(plan.topic)}
    free = [
        report.topic
        for report in scene.reports
        if report.is_published and report.topic not in read and report.is_readable
    ]
    suggested = _suggest_topics([plan.name for plan in missing if plan.enabled], free)
    for plan in missing:
        name = _topic_label(plan.name, plan.topic)
        fix = _topic_fix(plan.name, suggested, free, len(wanted))
        if plan.topic in scene.other_types:
            found = f'{scene.other_types[plan.topic]}, expected {_RAW_TYPE}'
            fix = fix or _topic_type_fix(plan.name, plan.topic)
        else:
            found = 'no publisher'
            fix = fix or 'start the camera, or correct the remapping of its topic'
            fix += '' if scene.reports else f'; {_SHELL_FIX}'
        if not plan.enabled:
            yield Finding(_AREA, name, 'green', found + _DISABLED_NOTE)
        else:
            where = '' if scene.topics_given else _GUESSED_TOPIC_NOTE
            yield Finding(_AREA, name, scene.missing_level, found + where, fix)


@dataclass(frozen=True)
class _Topic:
    """A topic of images, and the camera of the detector that may read this topic.

    Attributes:
        plan: plan of the camera; None if the topic belongs to no camera of the detector.
    """

    scene: CameraScene
    camera_report: CameraReport
    plan: CameraPlan | None

    @property
    def name(self) -> str:
        """Name of the camera; empty if it has no name, or the topic belongs to no camera."""
        return self.plan.name if self.plan is not None else ''

    @property
    def transport(self) -> str:
        """The transport of the camera, or of the node if the topic belongs to no camera."""
        plans = (plan for plan in self.scene.plans if plan.name == self.name)
        plan = self.plan or next(plans, None)
        return plan.transport if plan is not None else 'raw'

    @property
    def is_sent_both_ways(self) -> bool:
        """Whether the same images are also published in the other transport."""
        return _other_transport_topic(self.camera_report.topic) in self.scene.published_topics

    @property
    def has_wrong_type(self) -> bool:
        """Whether the detector expects raw images on this topic, but the images are compressed."""
        is_raw_topic = any(
            plan.topic == self.camera_report.topic for plan in self.scene.plans_with_known_topic
        )
        is_spare = self.transport == 'compressed' and self.is_sent_both_ways
        return self.camera_report.compressed and is_raw_topic and not is_spare

    @property
    def is_read(self) -> bool:
        """Whether the detector reads this topic instead of the topic of the other transport."""
        is_taken = self.transport == 'auto' or self.camera_report.compressed == (
            self.transport == 'compressed'
        )
        return self.plan is not None and (
            self.has_wrong_type or is_taken or not self.is_sent_both_ways
        )


def _topic_finding(topic: _Topic) -> Finding:
    """Return the finding of a topic: its first problem, or its rate, size and QoS."""
    report = topic.camera_report
    unusable = _first_problem(_UNUSABLE_CHECKS, topic) if report.received else None
    problem = unusable or _first_problem(_OTHER_CHECKS, topic)
    name, found = _topic_label(topic.name, report.topic), _traffic_text(report)
    if problem is None:
        return Finding(_AREA, name, 'green', found)
    found += f': {problem[0]}'
    has_no_images = not report.received or bool(report.unreadable_reason) or unusable is not None
    is_missed = topic.is_read and has_no_images
    if is_missed and topic.plan is not None and not topic.plan.enabled:
        return Finding(_AREA, name, 'green', found + _DISABLED_NOTE)
    return Finding(_AREA, name, 'red' if is_missed else 'yellow', found, problem[1])


def _first_problem(
    checks: Sequence[Callable[[_Topic], _ProblemOrNone]], topic: _Topic
) -> _ProblemOrNone:
    return next((problem for check in checks if (problem := check(topic)) is not None), None)


def _topic_label(name: str, topic: str) -> str:
    """Return a topic, after the name of the detector's camera if the camera has a name."""
    return f'{name}: {topic}' if name else topic


def _traffic_text(report: CameraReport) -> str:
    rate = f'{report.received} images in {report.seconds:.0f} s'
    if report.rate_hz is not None:
        rate = f'{report.rate_hz:.1f} Hz'
    parts = [rate, report.description, f'{report.message_bytes / 1e6:.1f} MB']
    parts = parts if report.received else ['nothing arrived']
    return ', '.join(filter(None, [*parts, ' and '.join(sorted(set(report.reliability)))]))


# Topics for cameras without images, and the arguments that select them.


def _suggest_topics(names: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """Suggest a topic of raw images for each camera. Return the topics by camera name.

    Each topic is suggested once. Topics with the camera's name between slashes come first, then
    topics that contain the name, then any topic.

    Args:
        names: names of the cameras without images.
        free: published topics of images that no camera of the detector reads.
    """
    rest = list(dict.fromkeys(topic.removesuffix('/compressed') for topic in free))
    found: dict[str, str] = {}
    for fits in (
        lambda topic, name: name in topic.split('/'),
        str.__contains__,
        lambda *_: True,
    ):
        for name in names:
            topic = next((topic for topic in rest if fits(topic, name)), None)
            if name not in found and topic is not None:
                found[name] = topic
                rest.remove(topic)
    return found


def _topic_fix(
    name: str, suggested: Mapping[str, str], free: Sequence[str], camera_count: int
) -> str:
    """Return the fix for a camera whose topic has no publisher while other topics have images.

    Args:
        name: name of the camera; empty if the detector has only one camera.

    Returns:
        The fix; empty if there is no topic for the camera.
    """
    if name not in suggested:
        return ''
    raw = suggested[name]
    start = start_arguments(raw, '' if raw in free else 'compressed', name)
    patterns = {_topic_pattern(topic, camera) for camera, topic in suggested.items()}
    has_one_pattern = len(suggested) == camera_count and len(patterns) == 1
    if has_one_pattern and '{camera}' in (pattern := patterns.pop()):
        start += f", or for all cameras image_topic:='{pattern}' (detect.launch.py)"
    return f'images are on {", ".join(free)}: start with {start}'


def _topic_pattern(topic: str, name: str) -> str:
    """Return a topic with ``{camera}`` instead of each part that equals the camera's name."""
    return '/'.join('{camera}' if name and part == name else part for part in topic.split('/'))


def _topic_type_fix(name: str, topic: str) -> str:
    """Return the fix for a camera's topic whose type is not sensor_msgs/msg/Image."""
    if topic.endswith('/compressed'):
        raw = topic.removesuffix('/compressed')
        return f'start with {start_arguments(raw, "compressed", name)}'
    return f'repair its publisher, or start with {start_arguments(SOME_TOPIC, camera=name)}'


def _topics_of_both_transports(topic: str) -> tuple[str, str]:
    """Return the topics of a camera's raw and compressed images."""
    return topic, f'{topic}/compressed'


def _other_transport_topic(topic: str) -> str:
    """Return the topic of the same images in the other transport."""
    raw = topic.removesuffix('/compressed')
    return f'{raw}/compressed' if raw == topic else raw


def _transport_fix(name: str, raw: str, transport: str) -> str:
    """Return the setting that selects another transport.

    Args:
        name: name of the camera; empty if the detector has only one camera.
        transport: ``raw`` or ``compressed``.
    """
    return start_arguments('' if name else raw, transport, name)


# Doctor receives images on a topic with one of these problems, but a detector would not.


def _topic_type_problem(topic: _Topic) -> _ProblemOrNone:
    if not topic.has_wrong_type:
        return None
    found = f'sensor_msgs/msg/CompressedImage, expected {_RAW_TYPE}'
    return found, _topic_type_fix(topic.name, topic.camera_report.topic)


def _reliability_problem(topic: _Topic) -> _ProblemOrNone:
    plan = topic.plan
    if plan is None or not topic.is_read or plan.reliability != 'reliable':
        return None
    if 'reliable' in topic.camera_report.reliability:
        return None
    own = f'camera.{plan.name}.' if plan.name else ''
    parameter = f'{own}image_qos.reliability'
    found = f'{parameter} is reliable, so nothing arrives from a best effort publisher'
    return found, f'set {parameter} to auto or best_effort'


def _transport_problem(topic: _Topic) -> _ProblemOrNone:
    if not topic.is_read and topic.scene.plans_with_known_topic:
        return None
    report, published = topic.camera_report, topic.scene.published_topics
    raw = report.topic.removesuffix('/compressed')
    if report.compressed and raw not in published and topic.transport == 'raw':
        fix = f'start with {_transport_fix(topic.name, raw, "compressed")}'
        return 'only compressed images', fix
    is_untaken = topic.is_read and not report.compressed and topic.transport == 'compressed'
    if is_untaken and f'{raw}/compressed' not in published:
        fix = f'start with {_transport_fix(topic.name, raw, "raw")}'
        return 'only raw images, but the detector expects compressed images', fix
    return None


# Other problems, worst first.


def _publisher_problem(topic: _Topic) -> _ProblemOrNone:
    report = topic.camera_report
    if report.is_published:
        return None
    if topic.is_sent_both_ways:
        sent = _other_transport_topic(report.topic)
        raw = min(report.topic, sent)
        transport = 'compressed' if sent.endswith('/compressed') else 'raw'
        return 'no publisher', f'start with {start_arguments(raw, transport)}'
    if report.received:
        return 'the publisher has disappeared', 'start the camera again'
    return (
        'the topic has a subscriber but no publisher',
        'start the camera, or correct the remapping',
    )


def _topic_name_problem(topic: _Topic) -> _ProblemOrNone:
    report = topic.camera_report
    if report.is_readable:
        return None
    base = report.topic.removesuffix('/compressed')
    meant = f'{base}/compressed' if report.compressed else base
    found = 'no detector can read this type on a topic of this name'
    return found, f'remap the topic of its publisher to {meant}'


def _silence_problem(topic: _Topic) -> _ProblemOrNone:
    if topic.camera_report.received:
        return None
    fix = f'look at the camera’s own log; if its images are large: {topic.scene.profile_fix}'
    return f'no image for {topic.camera_report.seconds:.0f} s', fix


def _unreadable_image_problem(topic: _Topic) -> _ProblemOrNone:
    if not topic.camera_report.unreadable_reason:
        return None
    fix = 'repair the publisher of this topic; the detector drops such images and counts them'
    return f'the last image cannot be read: {topic.camera_report.unreadable_reason}', fix


def _image_loss_problem(topic: _Topic) -> _ProblemOrNone:
    lost, sent = (
        topic.camera_report.lost or 0,
        (topic.camera_report.lost or 0) + topic.camera_report.received,
    )
    if lost <= _MAX_LOSS_SHARE * sent:
        return None
    return f'{lost} of {sent} images were lost', topic.scene.profile_fix


def _several_publishers_problem(topic: _Topic) -> _ProblemOrNone:
    count = len(topic.camera_report.reliability)
    if count <= 1:
        return None
    fix = 'give each camera its own topic, by a namespace or remapping'
    return f'{count} publishers send images, so losses cannot be counted', fix


def _image_size_problem(topic: _Topic) -> _ProblemOrNone:
    segment_bytes = topic.scene.segment_bytes
    if topic.camera_report.message_bytes <= segment_bytes:
        return None
    found = f'images exceed the {segment_bytes / 2**20:.1f} MiB of shared memory'
    return found, topic.scene.profile_fix


def _best_effort_problem(topic: _Topic) -> _ProblemOrNone:
    has_profile = topic.scene.segment_bytes > _DEFAULT_SEGMENT_BYTES
    is_small = topic.camera_report.message_bytes <= LARGE_MESSAGE_BYTES
    if has_profile or is_small or 'best_effort' not in topic.camera_report.reliability:
        return None
    found = 'best effort on the default transport loses images under load'
    return found, topic.scene.profile_fix


def _cv_bridge_problem(topic: _Topic) -> _ProblemOrNone:
    encoding = topic.camera_report.cv_bridge_encoding
    if not encoding:
        return None
    fix = 'sudo apt install ros-$ROS_DISTRO-cv-bridge, or choose another encoding'
    return f'encoding {encoding!r} needs cv_bridge', fix


_UNUSABLE_CHECKS: Final = (_topic_type_problem, _reliability_problem, _transport_problem)
_OTHER_CHECKS: Final = (
    *(
        _publisher_problem,
        _topic_name_problem,
        _silence_problem,
        _unreadable_image_problem,
        _image_loss_problem,
        _several_publishers_problem,
    ),
    _image_size_problem,
    _best_effort_problem,
    _cv_bridge_problem,
)
