# SPDX-License-Identifier: Apache-2.0
"""The intakes that all cameras of a node share. rclpy replaces them if rcl does not fit."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from rclpy.node import Node

from trt_perception.errors import CudaError
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import EndedError, ImageReceiver, Intake
from trt_perception.ros.intake.subscriptions import (
    ImageSubscription,
    ImageTopicOptions,
    IntakeSubscription,
    TypedSubscription,
    make_source,
)
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.wire.rcl import RclError
from trt_perception.scheduling.worker_pool import FaultHandler

#: Taking a raw 1080p image takes 1.7 ms without the GIL. At 30 Hz, sixteen cameras would keep one
#: thread busy for 80 % of the time, and images would wait milliseconds for each other.
CAMERAS_PER_THREAD: Final = 4


class SharedIntake:
    """Subscribes for the cameras of a node. Each thread takes the images of some cameras.

    A thread starts with its first subscription and ends with its last. If an exception ends a
    thread, its subscriptions are lost, and their owners must subscribe again.

    Args:
        make_buffers: returns memory for the messages of a subscription.
        hidden_nodes: nodes that subscribe to large images instead of `node`, each by a DDS
            participant of its own.
        uses_rclpy: whether rclpy takes the images.
        fault_handler: notified if a thread ends because the GPU is lost.
        cameras_per_thread: largest number of cameras of a thread. All subscriptions of a
            thread belong to the same node.

    Attributes:
        uses_rclpy: whether rclpy takes the images of new subscriptions. Becomes True if rcl's
            interface differs from the expected one.
    """

    def __init__(
        self,
        node: Node,
        make_buffers: Callable[[], MessageBuffers],
        hidden_nodes: Sequence[Node] = (),
        *,
        uses_rclpy: bool,
        fault_handler: FaultHandler,
        cameras_per_thread: int = CAMERAS_PER_THREAD,
    ) -> None:
        self._node = node
        self._make_buffers = make_buffers
        self.uses_rclpy = uses_rclpy
        self._fault_handler = fault_handler
        self._hidden_nodes = hidden_nodes
        self._cameras_per_thread = cameras_per_thread
        self._intakes: list[tuple[Node, Intake]] = []

    @property
    def description(self) -> str:
        """A phrase for the log that says how images are taken."""
        if self.uses_rclpy:
            return 'through rclpy'
        count = len(self._hidden_nodes)
        if not count:
            return 'by a separate thread'
        return f'by {count} additional DDS participant{"s" * (count > 1)}'

    def subscribe(self, options: ImageTopicOptions, receiver: ImageReceiver) -> ImageSubscription:
        """Subscribe to a topic of images. The caller closes the subscription."""
        if self.uses_rclpy:
            return TypedSubscription(options, receiver)
        node = self._least_used_node() if options.may_be_large else self._node
        if node is self._node:
            own = options
        else:  # a hidden node has no remappings
            topic = self._node.resolve_topic_name(options.topic)
            own = replace(options, node=node, topic=topic)
        try:
            with ExitStack() as resources:
                # Create the source first. If this fails, no thread without a source is left.
                source = make_source(own, receiver, self._make_buffers(), resources)
                running_intake = functools.partial(self._running_intake, node)
                return IntakeSubscription(source, running_intake, resources)
        except EndedError:  # the intake ended, because its last source failed just now
            if not node.context.ok():
                raise
        except RclError as error:
            self._fall_back(error)
        return self.subscribe(options, receiver)  # with another intake, or with rclpy

    def _least_used_node(self) -> Node:
        """Return the hidden node with the fewest subscriptions; without one, the main node."""

        def camera_count(node: Node) -> int:
            return sum(len(intake) for each, intake in self._intakes if each is node)

        return min(self._hidden_nodes, key=camera_count, default=self._node)

    def _running_intake(self, node: Node) -> Intake:
        """Return the node's intake with the fewest cameras, or a new one if all are full."""
        self._intakes = [each for each in self._intakes if each[1].is_alive]
        own = [intake for each, intake in self._intakes if each is node]
        least = min(own, key=len, default=None)
        if least is None or len(least) >= self._cameras_per_thread:
            least = Intake(node.context, self)
            self._intakes.append((node, least))
        return least

    def on_intake_failed(self, error: BaseException) -> None:
        """Handle the exception that ended a thread. The health check subscribes again."""
        if isinstance(error, RclError):
            self._fall_back(error)
        elif isinstance(error, CudaError):
            self._fault_handler.on_fault(error)
        else:
            trace = ''.join(traceback.format_exception(error))
            self._node.get_logger().error(log_text(f'the intake of images ended\n{trace}'))

    def _fall_back(self, error: RclError) -> None:
        if self.uses_rclpy:
            return  # another thread has reported the error
        self.uses_rclpy = True
        self._node.get_logger().warning(
            log_text(f'images are taken through rclpy, which needs more CPU time: {error}')
        )
