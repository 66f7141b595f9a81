# SPDX-License-Identifier: Apache-2.0
"""Chooses the topic of each camera: raw images or compressed images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rclpy.node import Node

from trt_perception.images.decompress import INSTALL_SIMPLEJPEG, load_simplejpeg
from trt_perception.parameters.camera import CameraPlan
from trt_perception.parameters.values import ParameterValues
from trt_perception.process.interruption import check_interruption
from trt_perception.ros.topics import compressed_topic, requested_image_topic

#: Type of the messages on a compressed topic.
COMPRESSED_TYPE: Final = 'sensor_msgs/msg/CompressedImage'
# The node usually discovers existing publishers at once. *activate* waits at most this time.
_DISCOVERY_LIMIT_S: Final = 1.0
_POLL_INTERVAL_S: Final = 0.05


class TransportChoice(NamedTuple):
    """The transport that *activate* chose for a camera.

    Attributes:
        transport: `raw` or `compressed`.
        reason: the reason of the choice if the parameter is `auto`; otherwise empty.
        may_change: whether another activation may choose the other transport.
    """

    transport: str
    reason: str = ''
    may_change: bool = False


#: The choice of raw images without looking at publishers.
RAW: Final = TransportChoice('raw')


def simplejpeg_advice(cameras: Sequence[ParameterValues]) -> str:
    """Return a warning if a camera may send JPEGs and simplejpeg is missing; otherwise empty."""
    may_send_jpegs = any(camera.image_transport != 'raw' for camera in cameras)
    _, problem = load_simplejpeg() if may_send_jpegs else (None, '')
    if not problem:
        return ''
    return (
        f'simplejpeg is missing ({problem}), so OpenCV decodes JPEGs on the CPU, prints a line '
        f'for each damaged file, and may return a half grey image: {INSTALL_SIMPLEJPEG}'
    )


def choose_transports(
    node: Node, plans: Sequence[CameraPlan], *, decodes_jpeg: bool
) -> list[TransportChoice]:
    """Choose between raw and compressed images for each camera.

    Waits at most 1 s for publishers, for all cameras together.

    Args:
        plans: plans of the cameras. Their topics are not used.
        decodes_jpeg: whether the pipeline decodes JPEG on the GPU.

    Returns:
        The choice for each plan, in the same order.

    Raises:
        InterruptionError: the process was asked to end during the wait.
    """
    choices = [TransportChoice(plan.transport) for plan in plans]
    undecided = [index for index, plan in enumerate(plans) if plan.transport == 'auto']
    if not decodes_jpeg:
        for index in undecided:
            choices[index] = TransportChoice('raw', 'no GPU decodes JPEG')
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
    """Choose compressed images if they have a publisher, otherwise raw images."""
    infos = node.get_publishers_info_by_topic(requested_image_topic(node, camera, 'compressed'))
    topic = compressed_topic(node, camera)
    if any(info.topic_type == COMPRESSED_TYPE for info in infos):
        reason = f'{topic} is published and the GPU decodes JPEG'
        return TransportChoice('compressed', reason, may_change=True)
    return TransportChoice('raw', f'{topic} has no publisher', may_change=True)
