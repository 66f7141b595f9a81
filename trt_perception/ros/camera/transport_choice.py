"""Which of each camera's topics is subscribed to: raw images or JPEGs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rclpy.node import Node

from trt_perception.parameters.camera import CameraPlan
from trt_perception.process.interruption import check_interruption
from trt_perception.ros.topics import compressed_topic, requested_image_topic

__all__ = ['COMPRESSED_TYPE', 'RAW', 'TransportChoice', 'choose_transports']

#: What is published on a compressed topic.
COMPRESSED_TYPE: Final = 'sensor_msgs/msg/CompressedImage'
# Those that publish already are heard of at once as a rule. *activate* takes no longer for it.
_DISCOVERY_LIMIT_S: Final = 1.0
_POLL_INTERVAL_S: Final = 0.05


class TransportChoice(NamedTuple):
    """What *activate* decided.

    Attributes:
        transport: ``raw`` or ``compressed``.
        reason: why, where it was ``auto``; else empty.
        may_change: another activation may decide otherwise.
    """

    transport: str
    reason: str = ''
    may_change: bool = False


#: Raw images, whatever is published.
RAW: Final = TransportChoice('raw')


def choose_transports(
    node: Node, plans: Sequence[CameraPlan], *, decodes_jpeg: bool
) -> list[TransportChoice]:
    """Choose between raw and compressed images for each camera.

    Waits for publishers for 1 s at most, for all cameras together.

    Args:
        node: asks the ROS graph.
        plans: of the cameras; the topics are not used.
        decodes_jpeg: whether the pipeline decodes JPEG on the GPU.

    Returns:
        The choice for each plan, in the same order.

    Raises:
        InterruptionError: the process was asked to end meanwhile.
    """
    choices = [TransportChoice(plan.transport) for plan in plans]
    undecided = [index for index, plan in enumerate(plans) if plan.transport == 'auto']
    if not decodes_jpeg:
        for index in undecided:
            choices[index] = TransportChoice('raw', 'JPEG is not decoded on a GPU here')
        return choices
    end_s = time.monotonic() + _DISCOVERY_LIMIT_S
    while undecided:
        is_last_look = time.monotonic() >= end_s
        for index in undecided:
            choices[index] = _choose_by_publishers(node, plans[index].name)
        undecided = [index for index in undecided if choices[index].transport == 'raw']
        if is_last_look:
            break
        if undecided:
            check_interruption()
            time.sleep(_POLL_INTERVAL_S)
    return choices


def _choose_by_publishers(node: Node, camera: str) -> TransportChoice:
    """Choose compressed images if they are published now."""
    infos = node.get_publishers_info_by_topic(requested_image_topic(node, camera, 'compressed'))
    topic = compressed_topic(node, camera)
    if any(info.topic_type == COMPRESSED_TYPE for info in infos):
        reason = f'{topic} is published and the GPU decodes JPEG'
        return TransportChoice('compressed', reason, may_change=True)
    return TransportChoice('raw', f'nobody publishes {topic}', may_change=True)
