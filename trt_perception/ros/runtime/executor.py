# SPDX-License-Identifier: Apache-2.0
"""An executor that logs the exception of a callback and goes on.

With rclpy's executor, an exception leaves `spin` and ends the process, and the caller of a service
gets no answer. Catching exceptions around `spin` is not enough. If a request cannot be read, rclpy
raises before the callback and never releases the callback group, so that its callbacks never run
again.
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

# The same kind of error is logged again after this time.
_REPEAT_S: Final = 5.0
_MAX_KINDS: Final = 64
_MAX_TRACE_LENGTH: Final = 4000
# Pause after an error, so that a permanent error does not use a whole core.
_PAUSE_S: Final = 0.1


class GuardedExecutor(SingleThreadedExecutor):
    """An executor for one node. It logs exceptions of the node's callbacks and continues.

    Args:
        node: a node whose services all exist. From now on, each service answers every
            request, with a refusal if its handler raises.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(context=node.context)
        self.logger = node.get_logger()
        self._logged: dict[tuple[Any, ...], float] = {}
        answer_every_request(node, self._report)
        self.add_node(node)

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one callback and run it. Exceptions are logged, not raised."""
        try:
            super().spin_once(timeout_sec)
        except Exception as error:  # Only waiting raises. `_make_handler` guards callbacks.
            if self.context.ok():  # After a shutdown, the caller's loop ends.
                self._report(self, error)
                time.sleep(_PAUSE_S)

    def _make_handler(
        self, entity: Any, node: Node, take_from_wait_list: Callable[[Any], Any]
    ) -> Any:
        """Guard both steps of a callback: taking the message or request, and handling it."""

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
        """Log an error with its traceback, at most once in 5 s for each kind."""
        with contextlib.suppress(Exception):  # logging may fail, for example without free memory
            name = ''
            with contextlib.suppress(InvalidHandle):
                name = getattr(source, 'service_name', '') or getattr(source, 'topic_name', '')
            what = f'{type(source).__name__} {name}'.strip()
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
                said = f'{what} refused: {error}'  # Jazzy refuses a transition so
            self.logger.error(log_text(said))
