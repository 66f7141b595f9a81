"""Topics of cameras: which one may be meant, and what to type to have its images."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trt_perception.transport.advice import how_to_start

__all__ = ['another_topic', 'elsewhere', 'offers', 'twin', 'ways', 'with_transport']


def offers(names: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """Return which topic of raw images each camera may mean, no topic for two of them.

    First those in which its name stands between slashes, then those that contain it, then any.
    """
    rest = list(dict.fromkeys(topic.removesuffix('/compressed') for topic in free))
    found: dict[str, str] = {}
    for near in (_is_part, str.__contains__, lambda *_: True):
        for name in names:
            topic = next((topic for topic in rest if near(topic, name)), None)
            if name not in found and topic is not None:
                found[name] = topic
                rest.remove(topic)
    return found


def _is_part(topic: str, name: str) -> bool:
    return name in topic.split('/')


def elsewhere(
    name: str, offered: Mapping[str, str], free: Sequence[str], names: Collection[str]
) -> str:
    """Return how to take images that are there, where nobody publishes what a camera is to read.

    Empty where there are none.

    Args:
        name: of the camera, '' where there is one without a name.
        offered: the topic of raw images that each camera may mean, by its name.
        free: topics of images that are published, and that no camera of the detector reads.
        names: of all cameras of the detector.
    """
    if name not in offered:
        return ''
    raw = offered[name]
    start = how_to_start(raw, '' if raw in free else 'compressed', name)
    patterns = {_pattern(topic, of) for of, topic in offered.items()}
    if len(offered) == len(names) and len(patterns) == 1 and '{camera}' in (one := patterns.pop()):
        start += f", or for all cameras image_topic:='{one}' (detect.launch.py)"
    return f'images are on {", ".join(free)}: start with {start}'


def _pattern(topic: str, name: str) -> str:
    """Return a topic with ``{camera}`` where a camera's name stands between slashes."""
    return '/'.join('{camera}' if name and part == name else part for part in topic.split('/'))


def another_topic(name: str, topic: str) -> str:
    """Return what to do where the topic of a camera has no images."""
    if topic.endswith('/compressed'):
        raw = topic.removesuffix('/compressed')
        return f'start with {how_to_start(raw, "compressed", name)}'
    return f'mend what publishes it, or start with {how_to_start("/its/topic", camera=name)}'


def ways(topic: str) -> tuple[str, str]:
    """Return where a topic's images may be, raw and compressed."""
    return topic, f'{topic}/compressed'


def twin(topic: str) -> str:
    """Return where the same images are in the other transport."""
    raw = topic.removesuffix('/compressed')
    return f'{raw}/compressed' if raw == topic else raw


def with_transport(owner: str, raw: str, transport: str) -> str:
    """Return what to set for another transport.

    Args:
        owner: name of the camera, '' where there is one without a name.
        raw: its topic of raw images.
        transport: ``raw`` or ``compressed``.
    """
    if owner:
        return f'camera.{owner}.image_transport: {transport} (parameter file)'
    return how_to_start(raw, transport)
