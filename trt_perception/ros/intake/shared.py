"""The intake that all cameras of a node share, and rclpy where there can be none."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from rclpy.node import Node

from trt_perception.errors import CudaError
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import Intake
from trt_perception.ros.intake.rcl import RclError
from trt_perception.ros.intake.subscriptions import Images
from trt_perception.ros.intake.subscriptions import ImageSubscription
from trt_perception.ros.intake.subscriptions import IntakeSubscription
from trt_perception.ros.intake.subscriptions import TypedSubscription
from trt_perception.ros.log import log_text

__all__ = ['SharedIntake']


class SharedIntake:
    """Subscribes for the cameras of a node: one thread takes the images of all of them.

    The thread begins with the first subscription and ends with the last. Where it ends by itself
    all subscriptions are lost, and whoever has one subscribes again.

    Args:
        node: subscribes.
        buffers: memory for the messages; not closed here.
        typed: rclpy is to take the images.
        faulted: called where the GPU was lost while memory was asked for, by the thread.

    Attributes:
        typed: rclpy takes the images of new subscriptions, as asked or because rcl's interface is
            not the one expected.
    """

    def __init__(
        self,
        node: Node,
        buffers: MessageBuffers,
        *,
        typed: bool,
        faulted: Callable[[BaseException], None],
    ) -> None:
        self._node = node
        self._buffers = buffers
        self.typed = typed
        self._faulted = faulted
        self._intake: Intake | None = None

    @property
    def way(self) -> str:
        """Who takes the images, in words."""
        return 'through rclpy' if self.typed else 'by a thread of its own'

    def subscribe(self, images: Images) -> ImageSubscription:
        """Subscribe; the subscription must be closed."""
        if not self.typed:
            try:
                return IntakeSubscription(images, self._running)
            except RclError as error:
                self._fall_back(error)
        return TypedSubscription(images)

    def _running(self) -> Intake:
        if self._intake is None or not self._intake.alive:
            self._intake = Intake(self._node.context, self._buffers, self._on_fault)
        return self._intake

    def _on_fault(self, error: BaseException) -> None:
        """Take what ended the thread, from it; the watch subscribes again."""
        if isinstance(error, RclError):
            self._fall_back(error)
        elif isinstance(error, CudaError):
            self._faulted(error)
        else:
            trace = ''.join(traceback.format_exception(error))
            self._node.get_logger().error(log_text(f'the intake of images ended\n{trace}'))

    def _fall_back(self, error: RclError) -> None:
        self.typed = True
        self._node.get_logger().warning(
            log_text(f'images are taken through rclpy, which costs twice the CPU: {error}')
        )
