"""Where ROS 2 distributions differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode

from trt_perception.plain_text import shown
from trt_perception.ros.log import log_text

__all__ = ['answer_invalid_transitions', 'with_info']


def answer_invalid_transitions(node: LifecycleNode) -> None:
    """Answer an impossible transition request with success=False.

    Jazzy's rclpy lets the RCLError out of spin, which ends the process, and never answers; Kilted
    answers by itself.
    """
    service = getattr(node, '_service_change_state', None)
    if service is None:
        return
    handle = service.callback

    def answer(request: Any, response: Any) -> Any:
        try:
            return handle(request, response)
        except Exception as error:  # RCLError has no public import path on every distribution
            node.get_logger().error(
                f'transition {shown(request.transition.label or request.transition.id)} refused: '
                f'{log_text(error)}'
            )
            response.success = False
            return response

    service.callback = answer


def with_info(callback: Callable[[Any, dict[str, int]], None]) -> Callable[..., None]:
    """Return a subscription's callback that takes the message and its info.

    Both distributions call it so; only Kilted's types say that they do.
    """
    return callback
