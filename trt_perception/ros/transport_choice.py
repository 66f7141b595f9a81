"""Which of a camera's topics is subscribed to: raw images or JPEGs."""

from __future__ import annotations

import time
from typing import Final
from typing import NamedTuple

from rclpy.node import Node

from trt_perception.interruption import check_interruption

__all__ = ['COMPRESSED_TYPE', 'RAW', 'TransportChoice', 'choose_transport', 'compressed_topic']

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


def compressed_topic(node: Node) -> str:
    """Return the full name of the compressed images' topic.

    The remapping of ``image`` holds for its compressed sibling, too.
    """
    return node.resolve_topic_name('image') + '/compressed'


def choose_transport(node: Node, asked: str, *, decodes_jpeg: bool) -> TransportChoice:
    """Decide between raw and compressed images; waits a second at most for a camera.

    Args:
        node: asks the graph.
        asked: the parameter ``image_transport``.
        decodes_jpeg: the pipeline does so on the GPU.

    Raises:
        InterruptionError: the process was asked to end meanwhile.
    """
    if asked != 'auto':
        return TransportChoice(asked)
    if not decodes_jpeg:
        return TransportChoice('raw', 'JPEG is not decoded on a GPU here')
    topic = compressed_topic(node)
    end_s = time.monotonic() + _DISCOVERY_S
    while True:
        infos = node.get_publishers_info_by_topic(topic)
        if any(info.topic_type == COMPRESSED_TYPE for info in infos):
            reason = f'{topic} is published and the GPU decodes JPEG'
            return TransportChoice('compressed', reason, retry=True)
        if time.monotonic() >= end_s:
            return TransportChoice('raw', f'nobody publishes {topic}', retry=True)
        check_interruption()
        time.sleep(_LOOK_S)
