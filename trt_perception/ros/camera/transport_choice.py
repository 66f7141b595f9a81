"""Which of each camera's topics is subscribed to: raw images or JPEGs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from rclpy.node import Node

from trt_perception.process.interruption import check_interruption
from trt_perception.ros.topics import compressed_topic, source_name

__all__ = ['COMPRESSED_TYPE', 'RAW', 'TransportChoice', 'choose_transports']

#: What is published on a compressed topic.
COMPRESSED_TYPE: Final = 'sensor_msgs/msg/CompressedImage'
# Those that publish already are heard of at once as a rule. *activate* takes no longer for it.
_DISCOVERY_S: Final = 1.0
_LOOK_S: Final = 0.05


class TransportChoice(NamedTuple):
    """What *activate* decided.

    Attributes:
        transport: ``raw`` or ``compressed``.
        reason: why, where it was ``auto``; else empty.
        retry: another activation may decide otherwise.
    """

    transport: str
    reason: str = ''
    retry: bool = False


#: Raw images, whatever is published.
RAW: Final = TransportChoice('raw')


def choose_transports(
    node: Node, asked: Mapping[str, str], *, decodes_jpeg: bool
) -> dict[str, TransportChoice]:
    """Decide between raw and compressed images; waits a second at most for all cameras together.

    Args:
        node: asks the graph.
        asked: the parameter ``image_transport`` of each camera, by its name.
        decodes_jpeg: the pipeline does so on the GPU.

    Returns:
        What was decided for each camera, by its name.

    Raises:
        InterruptionError: the process was asked to end meanwhile.
    """
    chosen = {camera: TransportChoice(transport) for camera, transport in asked.items()}
    undecided = [camera for camera, transport in asked.items() if transport == 'auto']
    if not decodes_jpeg:
        other = TransportChoice('raw', 'JPEG is not decoded on a GPU here')
        return {**chosen, **dict.fromkeys(undecided, other)}
    end_s = time.monotonic() + _DISCOVERY_S
    while undecided:
        over = time.monotonic() >= end_s
        for camera in undecided:
            chosen[camera] = _choice(node, camera)
        undecided = [camera for camera in undecided if chosen[camera].transport == 'raw']
        if over:
            break
        if undecided:
            check_interruption()
            time.sleep(_LOOK_S)
    return chosen


def _choice(node: Node, camera: str) -> TransportChoice:
    """Decide by who publishes now."""
    infos = node.get_publishers_info_by_topic(source_name(node, camera, 'compressed'))
    topic = compressed_topic(node, camera)
    if any(info.topic_type == COMPRESSED_TYPE for info in infos):
        reason = f'{topic} is published and the GPU decodes JPEG'
        return TransportChoice('compressed', reason, retry=True)
    return TransportChoice('raw', f'nobody publishes {topic}', retry=True)
