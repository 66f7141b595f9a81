"""The executor: what a callback raises is logged, and ends nothing but that callback.

rclpy lets it out of spin, where it ends the process, and leaves the caller of a service without
an answer. To catch it around spin is not enough: where a request cannot even be read, rclpy raises
before the callback and never clears the callback group, so that nothing in it is called again.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.service import Service

from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.services import answer_every_request

__all__ = ['GuardedExecutor']

# One kind of error is logged this often.
_REPEAT_S: Final = 5.0
_MAX_KINDS: Final = 64
_MAX_TRACE_LENGTH: Final = 4000
# What fails each time must not take a core.
_PAUSE_S: Final = 0.1


class GuardedExecutor(SingleThreadedExecutor):
    """Spins one node, whatever its callbacks raise.

    Args:
        node: has all its services; each answers from now on, also where its handler raises.

    Attributes:
        logger: the node's.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(context=node.context)
        self.logger = node.get_logger()
        self._logged: dict[tuple[Any, ...], float] = {}
        answer_every_request(node, self._report)
        self.add_node(node)

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one callback and run it; raises nothing of what happens in that."""
        try:
            super().spin_once(timeout_sec)
        except Exception as error:  # while waiting: callbacks are guarded below
            if self.context.ok():  # else somebody shut it down, and whoever calls sees that
                self._report(self, error)
                time.sleep(_PAUSE_S)

    def _make_handler(
        self, entity: Any, node: Node, take_from_wait_list: Callable[[Any], Any]
    ) -> Any:
        """Guard both halves of a callback: taking what has come, and handling it."""

        def take(entity: Any) -> Any:
            try:
                call = take_from_wait_list(entity)
            except Exception as error:
                self._report(entity, error)
                return None
            if call is None:
                return None

            async def handle() -> None:
                try:
                    await call()
                except Exception as error:
                    self._report(entity, error)

            return handle

        return super()._make_handler(entity, node, take)

    def _report(self, source: Any, error: Exception) -> None:
        """Log an error with its traceback, one of a kind once in a while."""
        with contextlib.suppress(Exception):  # no memory is left, perhaps
            what = _name(source)
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            kind = what, type(error), frame.f_code.co_filename, line
            now = time.monotonic()
            if now - self._logged.get(kind, -_REPEAT_S) < _REPEAT_S:
                return
            if len(self._logged) >= _MAX_KINDS:
                self._logged.clear()
            self._logged[kind] = now
            trace = ''.join(traceback.format_exception(error))[-_MAX_TRACE_LENGTH:]
            said = f'{what} raised {type(error).__name__}; the node goes on\n{trace}'
            if isinstance(source, Service) and isinstance(error, rclpy_implementation.RCLError):
                said = f'{what} refused: {error}'  # so Jazzy answers a transition at a wrong time
            self.logger.error(log_text(said))


def _name(entity: Any) -> str:
    name = ''
    with contextlib.suppress(InvalidHandle):
        name = getattr(entity, 'service_name', '') or getattr(entity, 'topic_name', '')
    return f'{type(entity).__name__} {name}'.strip()
