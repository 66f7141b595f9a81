"""Suggests topics for cameras without images, and the arguments that select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trt_perception.transport.advice import start_arguments


def suggest_topics(names: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """Suggest a topic of raw images for each camera. Return the topics by camera name.

    Each topic is suggested once. Topics with the camera's name between slashes come first, then
    topics that contain the name, then any topic.

    Args:
        names: names of the cameras without images.
    """
    rest = list(dict.fromkeys(topic.removesuffix('/compressed') for topic in free))
    found: dict[str, str] = {}
    for fits in (_has_part, str.__contains__, lambda *_: True):
        for name in names:
            topic = next((topic for topic in rest if fits(topic, name)), None)
            if name not in found and topic is not None:
                found[name] = topic
                rest.remove(topic)
    return found


def _has_part(topic: str, name: str) -> bool:
    return name in topic.split('/')


def topic_fix(
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


def topic_type_fix(name: str, topic: str) -> str:
    """Return the fix for a camera's topic whose type is not sensor_msgs/msg/Image."""
    if topic.endswith('/compressed'):
        raw = topic.removesuffix('/compressed')
        return f'start with {start_arguments(raw, "compressed", name)}'
    return f'repair its publisher, or start with {start_arguments("/its/topic", camera=name)}'


def topics_of_both_transports(topic: str) -> tuple[str, str]:
    """Return the topics of a camera's raw and compressed images."""
    return topic, f'{topic}/compressed'


def other_transport_topic(topic: str) -> str:
    """Return the topic of the same images in the other transport."""
    raw = topic.removesuffix('/compressed')
    return f'{raw}/compressed' if raw == topic else raw


def transport_fix(name: str, raw: str, transport: str) -> str:
    """Return the setting that selects another transport.

    Args:
        name: name of the camera; empty if the detector has only one camera.
        transport: ``raw`` or ``compressed``.
    """
    return start_arguments('' if name else raw, transport, name)
