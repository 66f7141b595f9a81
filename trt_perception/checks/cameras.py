"""Camera topics as they were heard for a few seconds: who publishes, how, and what arrived."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trt_perception.checks.finding import Finding
from trt_perception.checks.finding import Level
from trt_perception.monitoring.transport_advice import LARGE_BYTES
from trt_perception.monitoring.transport_advice import how_to_start

__all__ = ['CameraReport', 'check_cameras']

_AREA: Final = 'cameras'
_IMAGES: Final = 'sensor_msgs/msg/Image'
_OFF: Final = ' (it is switched off: enabled is false)'
# As many images lost in a hundred are a transport's fault, not a start's.
_LOSS: Final = 0.01


@dataclass(frozen=True)
class CameraReport:
    """One topic of images.

    Attributes:
        topic: its full name.
        compressed: sensor_msgs/CompressedImage.
        reliability: of each publisher, ``reliable`` or ``best_effort``.
        received: messages that arrived.
        lost: messages that were sent meanwhile and did not arrive; None where that is not known.
        seconds: how long it was listened to.
        rate_hz: at which they arrived, None where too few came, or not evenly.
        message_bytes: size of the last message.
        description: size and encoding of an image, as ``640x480 bgr8``.
        encoding: of an image.
        fault: why a detector drops the last image, empty where it does not.
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
    encoding: str = ''
    fault: str = ''


def check_cameras(
    cameras: Sequence[CameraReport],
    *,
    wanted: Mapping[str, str],
    topics_given: bool = True,
    transports: Mapping[str, str] = MappingProxyType({}),
    reliable: Collection[str] = (),
    off: Collection[str] = (),
    other_types: Mapping[str, str] = MappingProxyType({}),
    segment_bytes: int,
    profile_fix: str,
    encodings: Sequence[str],
) -> Iterator[Finding]:
    """Judge every camera topic.

    Args:
        cameras: what was heard.
        wanted: the topics that the detector is to read, by the names of its cameras, '' where it
            has one; empty where any topic will do.
        topics_given: they were given; else they are those of a node without remappings.
        transports: the parameter ``image_transport`` of each camera, by its name; ``raw`` where
            it is not there.
        reliable: the cameras whose ``image_qos.reliability`` is ``reliable``, which takes no less.
        off: the cameras whose parameter ``enabled`` is false: nobody misses their images.
        other_types: of wanted topics, which other type is published there, and by which node.
        segment_bytes: of shared memory; a larger image does not fit.
        profile_fix: the command that makes it larger.
        encodings: that are read without cv_bridge.
    """
    bad: Level = 'red' if topics_given else 'yellow'
    if not cameras:
        fix = (
            'start the camera; compare ROS_DOMAIN_ID and RMW_IMPLEMENTATION of its shell with '
            'this one'
        )
        level: Level = bad if set(wanted) - set(off) else 'yellow'
        yield Finding(_AREA, 'topics', level, 'no topic of images', fix)
    published = [camera.topic for camera in cameras if camera.reliability]
    owners = {
        way: name for name, topic in wanted.items() for way in (topic, f'{topic}/compressed')
    }
    heard = {camera.topic for camera in cameras}
    missing = {
        name: topic
        for name, topic in wanted.items()
        if not {topic, f'{topic}/compressed'} & heard
        and (cameras or other_types or '' not in wanted)
    }
    free = [topic for topic in published if topic not in owners]
    offers = _offers([name for name in missing if name not in off], free)
    for name, topic in missing.items():
        found = 'nobody publishes or reads this topic'
        fix = _elsewhere(name, offers, free, wanted)
        if topic in other_types:
            found = f'{other_types[topic]}, expected {_IMAGES}'
            fix = fix or _another_topic(name)
        elif not topics_given:
            found += ' (its name without remappings; say another with --image-topic)'
        if name in off:
            yield Finding(_AREA, _shown(name, topic), 'green', found + _OFF)
        else:
            fix = fix or 'start the camera, or mend the remapping of its topic'
            yield Finding(_AREA, _shown(name, topic), bad, found, fix)
    for camera in cameras:
        owner = owners.get(camera.topic, '')
        transport = transports.get(owner, 'raw')
        # The same images in the transport that the detector does not take are no matter to it.
        twin_too = _twin(camera.topic) in published
        wrong = camera.compressed and camera.topic in wanted.values()
        wrong = wrong and not (transport == 'compressed' and twin_too)
        spare = not wrong and _untaken(camera, transport) and twin_too
        read = camera.topic in owners and not spare
        useless = None
        if camera.received and wrong:
            found = f'sensor_msgs/msg/CompressedImage, expected {_IMAGES}'
            useless = found, _another_topic(owner)
        elif camera.received and read and owner in reliable:
            useless = _less_reliable(camera, owner)
        if camera.received and useless is None and (read or not wanted):
            useless = _other_transport(camera, published, owner, transport, read=read)
        problem = (
            useless
            or _sent_as_its_twin(camera, published, owner)
            or _problem(camera, segment_bytes, profile_fix, encodings)
        )
        missed = read and (camera.received == 0 or bool(camera.fault) or useless is not None)
        yield _judged(camera, owner, problem, missed=missed, off=missed and owner in off)


def _judged(
    camera: CameraReport, owner: str, problem: tuple[str, str] | None, *, missed: bool, off: bool
) -> Finding:
    """Return the finding of a topic.

    Args:
        camera: what was heard.
        owner: name of the detector's camera that reads it, if one does and has a name.
        problem: and its cure.
        missed: for that problem the detector has no images.
        off: nobody misses them.
    """
    found, name = _facts(camera), _shown(owner, camera.topic)
    if problem is None:
        return Finding(_AREA, name, 'green', found)
    found += f': {problem[0]}'
    if off:
        return Finding(_AREA, name, 'green', found + _OFF)
    return Finding(_AREA, name, 'red' if missed else 'yellow', found, problem[1])


def _sent_as_its_twin(
    camera: CameraReport, published: Sequence[str], owner: str
) -> tuple[str, str] | None:
    """Return what is wrong where a topic's images are published in the other transport only."""
    twin = _twin(camera.topic)
    if camera.reliability or twin not in published:
        return None
    raw = min(camera.topic, twin)
    other = 'raw' if twin == raw else 'compressed'
    return 'nobody publishes', f'start with {_with_transport(owner, raw, other)}'


def _shown(name: str, topic: str) -> str:
    """Return a topic with the name of the detector's camera that reads it, if one has a name."""
    return f'{name}: {topic}' if name else topic


def _offers(names: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """Return which topic of raw images each camera may mean, no topic for two of them."""
    rest = list(dict.fromkeys(topic.removesuffix('/compressed') for topic in free))
    near = {
        name: topic
        for name in names
        if (topic := next((topic for topic in rest if name in topic), None))
    }
    rest = [topic for topic in rest if topic not in near.values()]
    return dict(zip((name for name in names if name not in near), rest, strict=False)) | near


def _elsewhere(
    name: str, offers: Mapping[str, str], free: Sequence[str], names: Collection[str]
) -> str:
    """Return how to take images that are there, where nobody publishes what a camera is to read.

    Empty where there are none.

    Args:
        name: of the camera, '' where there is one without a name.
        offers: the topic of raw images that each camera may mean, by its name.
        free: topics of images that are published, and that no camera of the detector reads.
        names: of all cameras of the detector.
    """
    if name not in offers:
        return ''
    raw = offers[name]
    start = how_to_start(raw, '' if raw in free else 'compressed', name)
    patterns = {topic.replace(of, '{camera}') for of, topic in offers.items() if of}
    if len(offers) == len(names) and len(patterns) == 1 and '{camera}' in (one := patterns.pop()):
        start += f", or for all cameras image_topic:='{one}' (detect.launch.py)"
    return f'images are on {", ".join(free)}: start with {start}'


def _another_topic(name: str) -> str:
    """Return what to do where the topic of a camera has no images."""
    return f'mend what publishes it, or start with {how_to_start("/its/topic", camera=name)}'


def _facts(camera: CameraReport) -> str:
    rate = f'{camera.received} images in {camera.seconds:.0f} s'
    if camera.rate_hz is not None:
        rate = f'{camera.rate_hz:.1f} Hz'
    parts = [rate, camera.description, f'{camera.message_bytes / 1e6:.1f} MB']
    parts = parts if camera.received else ['nothing arrived']
    return ', '.join(filter(None, [*parts, ' and '.join(sorted(set(camera.reliability)))]))


def _problem(
    camera: CameraReport,
    segment_bytes: int,
    profile_fix: str,
    encodings: Sequence[str],
) -> tuple[str, str] | None:
    """Return the worst problem and its cure."""
    if not camera.reliability:
        return 'somebody reads it, nobody publishes', 'start the camera, or mend the remapping'
    if not camera.received:
        fix = f'look at the camera’s own log; if its images are large: {profile_fix}'
        return f'silent for {camera.seconds:.0f} s', fix
    if camera.fault:
        fix = 'mend what publishes this topic; the detector drops such images and counts them'
        return f'its last image cannot be read: {camera.fault}', fix
    if camera.lost and camera.lost > _LOSS * (camera.lost + camera.received):
        return f'{camera.lost} of {camera.lost + camera.received} lost on the way', profile_fix
    if len(camera.reliability) > 1:
        fix = 'let one camera publish each topic, by a namespace or remapping'
        return f'{len(camera.reliability)} publishers mix, losses cannot be counted', fix
    if camera.message_bytes > segment_bytes:
        found = f'larger than the {segment_bytes / 2**20:.1f} MiB of shared memory'
        return found, profile_fix
    default = segment_bytes <= 1024 * 1024
    if 'best_effort' in camera.reliability and default and camera.message_bytes > LARGE_BYTES:
        return 'best effort on the default transport loses images under load', profile_fix
    if not camera.compressed and camera.encoding not in encodings:
        fix = 'sudo apt install ros-$ROS_DISTRO-cv-bridge, or choose another encoding'
        return f'encoding {camera.encoding!r} needs cv_bridge', fix
    return None


def _untaken(camera: CameraReport, transport: str) -> bool:
    return transport != 'auto' and camera.compressed != (transport == 'compressed')


def _less_reliable(camera: CameraReport, owner: str) -> tuple[str, str] | None:
    """Return what is wrong where the detector asks for more than a publisher offers."""
    if 'best_effort' not in camera.reliability:
        return None
    parameter = f'camera.{owner}.image_qos.reliability' if owner else 'image_qos.reliability'
    found = f'{parameter} is reliable: of a best effort publisher nothing reaches the detector'
    return found, f'set {parameter} to auto or best_effort'


def _other_transport(
    camera: CameraReport, published: Sequence[str], owner: str, transport: str, *, read: bool
) -> tuple[str, str] | None:
    """Return what is wrong where images come in another transport than the detector takes.

    Args:
        camera: what was heard.
        published: all topics with images.
        owner: name of the detector's camera, '' where it has none or reads something else.
        transport: that this camera takes.
        read: it is this topic that it reads.
    """
    raw = camera.topic.removesuffix('/compressed')
    if camera.compressed and raw not in published and transport == 'raw':
        fix = f'start with {_with_transport(owner, raw, "compressed")}'
        return 'only compressed images', fix
    if read and not camera.compressed and transport == 'compressed':
        if f'{raw}/compressed' in published:
            return None
        fix = f'start with {_with_transport(owner, raw, "raw")}'
        return 'only raw images, and the detector takes compressed ones', fix
    return None


def _twin(topic: str) -> str:
    """Return where the same images are in the other transport."""
    raw = topic.removesuffix('/compressed')
    return f'{raw}/compressed' if raw == topic else raw


def _with_transport(owner: str, raw: str, transport: str) -> str:
    if owner:
        return f'camera.{owner}.image_transport: {transport} (parameter file)'
    return how_to_start(raw, transport)
