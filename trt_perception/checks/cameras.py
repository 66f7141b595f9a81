"""Camera topics as they were heard for a few seconds: who publishes, how, and what arrived."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trt_perception.checks.camera_topics import (
    another_topic,
    elsewhere,
    offers,
    twin,
    ways,
    with_transport,
)
from trt_perception.checks.finding import Finding, Level
from trt_perception.transport.advice import LARGE_BYTES, how_to_start

__all__ = ['CameraReport', 'check_cameras']

_AREA: Final = 'cameras'
_IMAGES: Final = 'sensor_msgs/msg/Image'
# The topic of a node without remappings.
_GUESSED: Final = ' on this topic, the default (say another with --image-topic)'
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
    if cameras or other_types or '' not in wanted:
        where = '' if topics_given else _GUESSED
        for name, topic, found, fix in _missing(cameras, wanted, other_types, off):
            if name in off:
                yield Finding(_AREA, _shown(name, topic), 'green', found + _OFF)
            else:
                yield Finding(_AREA, _shown(name, topic), bad, found + where, fix)
    published = [camera.topic for camera in cameras if camera.reliability]
    names = list(wanted)
    owners = {way: name for name, topic in wanted.items() for way in ways(topic)}
    # As the detector's cameras are named, then the others.
    order = {topic: names.index(name) for topic, name in owners.items()}
    for camera in sorted(cameras, key=lambda c: (order.get(c.topic, len(names)), c.topic)):
        if camera.topic in owners and not camera.reliability:
            continue  # said above, or of the other transport of the same images
        owner = owners.get(camera.topic, '')
        transport = transports.get(owner, 'raw')
        # The same images in the transport that the detector does not take are no matter to it.
        both = twin(camera.topic) in published
        wrong = camera.compressed and camera.topic in wanted.values()
        wrong = wrong and not (transport == 'compressed' and both)
        spare = not wrong and _untaken(camera, transport) and both
        read = camera.topic in owners and not spare
        useless = None
        if camera.received and wrong:
            found = f'sensor_msgs/msg/CompressedImage, expected {_IMAGES}'
            useless = found, another_topic(owner, camera.topic)
        elif camera.received and read and owner in reliable:
            useless = _less_reliable(camera, owner)
        if camera.received and useless is None and (read or not wanted):
            useless = _other_transport(camera, published, owner, transport, read=read)
        problem = (
            useless
            or _sent_as_its_twin(camera, published)
            or _problem(camera, segment_bytes, profile_fix, encodings)
        )
        missed = read and (camera.received == 0 or bool(camera.fault) or useless is not None)
        yield _judged(camera, owner, problem, missed=missed, off=missed and owner in off)


def _missing(
    cameras: Sequence[CameraReport],
    wanted: Mapping[str, str],
    other_types: Mapping[str, str],
    off: Collection[str],
) -> Iterator[tuple[str, str, str, str]]:
    """Find the detector's cameras of which nobody publishes images, in either transport.

    Yields:
        Name and topic of each, what was found there, and what to do.
    """
    published = {camera.topic for camera in cameras if camera.reliability}
    missing = {name: topic for name, topic in wanted.items() if published.isdisjoint(ways(topic))}
    read = {way for topic in wanted.values() for way in ways(topic)}
    free = [
        camera.topic
        for camera in cameras
        if camera.reliability and camera.topic not in read and _may_be_read(camera)
    ]
    offered = offers([name for name in missing if name not in off], free)
    for name, topic in missing.items():
        fix = elsewhere(name, offered, free, wanted)
        if topic in other_types:
            found = f'{other_types[topic]}, expected {_IMAGES}'
            yield name, topic, found, fix or another_topic(name, topic)
        else:
            fix = fix or 'start the camera, or mend the remapping of its topic'
            yield name, topic, 'nobody publishes', fix


def _may_be_read(camera: CameraReport) -> bool:
    """Tell whether a detector can take a topic's images: the name says which type it has."""
    return camera.compressed == camera.topic.endswith('/compressed')


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


def _sent_as_its_twin(camera: CameraReport, published: Sequence[str]) -> tuple[str, str] | None:
    """Return what is wrong where a topic's images are published in the other transport only."""
    sent = twin(camera.topic)
    if camera.reliability or sent not in published:
        return None
    raw = min(camera.topic, sent)
    other = 'raw' if sent == raw else 'compressed'
    return 'nobody publishes', f'start with {how_to_start(raw, other)}'


def _shown(name: str, topic: str) -> str:
    """Return a topic with the name of the detector's camera that reads it, if one has a name."""
    return f'{name}: {topic}' if name else topic


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
    if not camera.reliability and camera.received:
        return 'its publisher went meanwhile', 'start the camera again'
    if not camera.reliability:
        return 'somebody reads it, nobody publishes', 'start the camera, or mend the remapping'
    if not _may_be_read(camera):
        base = camera.topic.removesuffix('/compressed')
        meant = f'{base}/compressed' if camera.compressed else base
        found = 'no detector can read this type on a topic of this name'
        return found, f'remap what publishes it to {meant}'
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
    if 'reliable' in camera.reliability:
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
        fix = f'start with {with_transport(owner, raw, "compressed")}'
        return 'only compressed images', fix
    if read and not camera.compressed and transport == 'compressed':
        if f'{raw}/compressed' in published:
            return None
        fix = f'start with {with_transport(owner, raw, "raw")}'
        return 'only raw images, and the detector takes compressed ones', fix
    return None
