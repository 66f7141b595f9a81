"""The intakes that all cameras of a node share. rclpy replaces them if rcl does not fit."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
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
from trt_perception.scheduling.detector import FaultHandler

__all__ = ['CAMERAS_PER_THREAD', 'SharedIntake']

#: Taking a raw 1080p image takes 1.7 ms without the GIL. At 30 Hz, sixteen cameras would keep one
#: thread busy for 80 % of the time, and images would wait milliseconds for each other.
CAMERAS_PER_THREAD: Final = 4


class SharedIntake:
    """Subscribes for the cameras of a node. Each thread takes the images of several cameras.

    A thread starts with its first subscription and ends with its last. If an exception ends a
    thread, its subscriptions are lost, and their owners must subscribe again.

    Args:
        node: creates the subscriptions.
        make_buffers: returns memory for the messages of a subscription.
        uses_rclpy: whether rclpy takes the images.
        fault_handler: notified if a thread ends because the GPU is lost.
        cameras_per_thread: largest number of cameras of a thread.

    Attributes:
        uses_rclpy: whether rclpy takes the images of new subscriptions. Becomes True if rcl's
            interface differs from the expected one.
    """

    def __init__(
        self,
        node: Node,
        make_buffers: Callable[[], MessageBuffers],
        *,
        uses_rclpy: bool,
        fault_handler: FaultHandler,
        cameras_per_thread: int = CAMERAS_PER_THREAD,
    ) -> None:
        self._node = node
        self._make_buffers = make_buffers
        self.uses_rclpy = uses_rclpy
        self._fault_handler = fault_handler
        self._cameras_per_thread = cameras_per_thread
        self._intakes: list[Intake] = []

    @property
    def description(self) -> str:
        """A phrase for the log that says how images are taken."""
        return 'through rclpy' if self.uses_rclpy else 'by a separate thread'

    def subscribe(self, options: ImageTopicOptions, receiver: ImageReceiver) -> ImageSubscription:
        """Subscribe to a topic of images. The caller closes the subscription."""
        if self.uses_rclpy:
            return TypedSubscription(options, receiver)
        try:
            with ExitStack() as resources:
                # Create the source first. If this fails, no thread without a source is left.
                source = make_source(options, receiver, self._make_buffers(), resources)
                return IntakeSubscription(source, self._running_intake, resources)
        except EndedError:  # the intake's last source failed just now
            if not self._node.context.ok():
                raise
        except RclError as error:
            self._fall_back(error)
        return self.subscribe(options, receiver)  # by another intake, or by rclpy

    def _running_intake(self) -> Intake:
        """Return the intake with the fewest cameras, or a new one if all are full."""
        running = [intake for intake in self._intakes if intake.is_alive]
        least = min(running, key=len, default=None)
        if least is None or len(least) >= self._cameras_per_thread:
            least = Intake(self._node.context, self)
            running.append(least)
        self._intakes = running
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
            log_text(f'images are taken through rclpy, which costs twice the CPU: {error}')
        )
