# SPDX-License-Identifier: Apache-2.0
"""Names and QoS of the topics of each camera, and the check that no two names are equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSProfile

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, join_first_items
from trt_perception.model.tasks.table import OUTPUT_IMAGE_SUFFIXES, PUBLISHED_TOPICS
from trt_perception.model.tasks.task import LABEL_INFO, Topic
from trt_perception.ros.runtime.command_line import mark_ros_arguments

_CAMERA_TOPICS: Final = ('image', 'camera_info', *(topic.name for topic in PUBLISHED_TOPICS))


def topic_name(camera: str, name: str) -> str:
    """Return the name of a camera's topic before remapping, such as ``front/image``.

    Args:
        camera: name of the camera; empty if the node has only one camera.
        name: name of the topic for a single camera, such as ``image``.
    """
    return f'{camera}/{name}' if camera else name


def topic_qos(topic: Topic) -> QoSProfile:
    """Return the QoS of the publisher of a topic."""
    durability = (
        QoSDurabilityPolicy.TRANSIENT_LOCAL if topic.is_latched else QoSDurabilityPolicy.VOLATILE
    )
    return QoSProfile(depth=topic.depth, durability=durability)


def detector_image_topics(node: Node, topics: Iterable[str]) -> set[str]:
    """Return the topics on which a detector publishes images, such as ``/front/depth``.

    A camera's topic may end in the same way, but no class names are published next to it.
    """
    return {
        topic
        for topic in topics
        for name in OUTPUT_IMAGE_SUFFIXES
        if topic.endswith(name)
        and node.count_publishers(f'{topic.removesuffix(name)}/{LABEL_INFO.name}')
    }


def requested_image_topic(node: Node, camera: str, transport: str) -> str:
    """Return the topic name to give to ROS for the images of a camera.

    A raw topic is returned without remapping, because ROS remaps it later, and a second remapping
    would undo a swap of two topics. A compressed topic follows the remapping of ``image``.

    Args:
        camera: name of the camera; empty if the node has only one camera.
        transport: ``raw`` or ``compressed``.
    """
    if transport == 'compressed':
        return image_topic(node, camera) + '/compressed'
    return topic_name(camera, 'image')


def image_topic(node: Node, camera: str = '') -> str:
    """Return the full name of a camera's topic of raw images."""
    return node.resolve_topic_name(topic_name(camera, 'image'))


def compressed_topic(node: Node, camera: str = '') -> str:
    """Return the full name of a camera's topic of compressed images."""
    return node.resolve_topic_name(requested_image_topic(node, camera, 'compressed'))


def camera_info_topic(node: Node, camera: str = '') -> str:
    """Return the topic of a camera's calibration, which is next to the images unless remapped."""
    name = topic_name(camera, 'camera_info')
    resolved = node.resolve_topic_name(name)
    if resolved != node.resolve_topic_name(name, only_expand=True):
        return name  # ROS remaps it
    return f'{image_topic(node, camera).rpartition("/")[0]}/camera_info'


def check_topics(node: Node, cameras: Sequence[str] = ('',)) -> None:
    """Check that no two topics resolve to the same name. The middleware's own error is unclear.

    Raises:
        ConfigError: two topics resolve to the same name, or a name is too long.
    """
    own = [topic_name(camera, name) for camera in cameras for name in _CAMERA_TOPICS]
    try:
        resolved = [(name, node.resolve_topic_name(name)) for name in (*own, '/diagnostics')]
        # Check compressed topics even for raw transport: activate may choose them later.
        resolved += [
            (f'{topic_name(camera, "image")}/compressed', compressed_topic(node, camera))
            for camera in cameras
        ]
    except rclpy_implementation.RCLError as error:
        raise ConfigError('topics', str(error), fix='use shorter names (-r, --remap)') from error
    of_ros = '/parameter_events', '/rosout', '~/transition_event'
    named = {node.resolve_topic_name(name): name for name in of_ros}
    for name, full in resolved:
        if full in named:
            raise ConfigError(
                f'topic {full}',
                f'stands for both {named[full]} and {name}',
                fix='give each a separate name (-r, --remap)',
            )
        named[full] = name


def unused_remappings(
    arguments: Sequence[str], node: Node, cameras: Sequence[str] = ('',)
) -> list[str]:
    """Return a sentence for each remapping that resembles a camera topic but changes none.

    Absolute names, with a leading slash, are ignored: they may be for another node that was
    started together with this one.

    Args:
        arguments: ROS arguments as rcl received them.
        node: resolves names.
        cameras: names of the cameras.
    """
    own = {topic_name(camera, name) for camera in cameras for name in _CAMERA_TOPICS}
    full = {node.resolve_topic_name(name, only_expand=True) for name in own}
    # Camera drivers usually publish on image_raw.
    meant = {name: name for name in _CAMERA_TOPICS} | {'image_raw': 'image'}
    sentences = []
    for typed, rule in _typed_remap_rules(arguments):
        name, colon, topic = rule.partition(':=')[0].rpartition(':')
        base = topic.removesuffix('/compressed')
        last = base.rpartition('/')[2]
        swapped = [name for name in _CAMERA_TOPICS if sorted(name) == sorted(last)]
        close = swapped or closest_words(last, _CAMERA_TOPICS, cutoff=0.85)
        what = meant.get(last) or next(iter(close), '')
        if not what and base.partition('/')[0] in cameras:
            what = 'image'
        if not what or base.startswith('/') or (colon and name != node.get_name()):
            continue
        there = join_first_items([topic_name(camera, what) for camera in cameras])
        if node.resolve_topic_name(base, only_expand=True) not in full or (
            base != topic and what != 'image'
        ):
            sentences.append(f'{typed} matches no topic of this node; the node has {there}')
        elif base != topic and node.resolve_topic_name(base) != node.resolve_topic_name(
            base, only_expand=True
        ):
            compressed = f'{node.resolve_topic_name(base)}/compressed'
            sentences.append(
                f'{typed} matches no topic: {base} is remapped, and with it {compressed}'
            )
    return sentences


def _typed_remap_rules(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield two texts for each remapping of a command line: as typed, and the rule alone.

    ROS 1 style rules have no ``-r`` in front.
    """
    before = ''
    for word, inside in mark_ros_arguments(arguments):
        if inside and before in ('-r', '--remap'):
            yield f'{before} {word}', word
        elif not inside and ':=' in word:
            yield word, word
        before = word
