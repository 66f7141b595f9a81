"""The process around a node: start, signals, end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

import rclpy
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from trt_perception.errors import ConfigError
from trt_perception.process.interruption import (
    ENDING_SIGNALS,
    REPEATED_SIGNAL_S,
    ignore_signals,
    interrupt,
)
from trt_perception.ros.runtime.command_line import report_wrong_usage
from trt_perception.ros.runtime.executor import GuardedExecutor
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.time_limit import time_limit
from trt_perception.transport.shared_memory import repair_command, unfinished_ports

__all__ = ['run_node']

NodeType = TypeVar('NodeType', bound=Node)
_PIPE_BYTES = 65536
# What takes longer hangs, mostly in the middleware: a node is made without its model, and its end
# waits for the frame or native call in progress.
START_LIMIT_S = 60.0
END_LIMIT_S = 30.0


def run_node(
    make_node: Callable[[], NodeType],
    close_node: Callable[[NodeType], int],
    args: list[str] | None = None,
    *,
    finished: Callable[[NodeType], bool] = lambda _: False,
) -> int:
    """Run one node until a signal comes or it has finished, and close it in order.

    rclpy's own handlers tear the context down under a working node; here a signal only ends the
    loop, so that everything can still be published, counted and freed.

    Args:
        make_node: called after rclpy.init.
        close_node: frees what the node holds, destroys it and returns the exit code.
        args: command line for rclpy, None for the process's own.
        finished: asked after each round of the executor.

    Returns:
        The exit code: 0 done or interrupted, 2 wrong parameters or arguments, each said in one
        sentence. The process ends with 1 if the node is not made within START_LIMIT_S, or not
        closed within END_LIMIT_S.
    """
    with _Signals() as signals:
        _warn_of_unfinished_ports()
        try:
            rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
            return report_wrong_usage(error)
        try:
            with time_limit('the start of the node', START_LIMIT_S):
                node = make_node()
        except (ConfigError, NameValidationException, ParameterException) as error:
            rclpy.shutdown()
            return report_wrong_usage(error)
        executor = GuardedExecutor(node)
        signals.wake = node.create_guard_condition(lambda: None).trigger
        executor.logger.info('node up')
        while not signals.end_requested.is_set() and not finished(node) and node.context.ok():
            executor.spin_once()
        executor.logger.info('ending')
        with time_limit('the end of the node', END_LIMIT_S):
            return _close_node(executor, node, close_node)


def _close_node(
    executor: GuardedExecutor, node: NodeType, close_node: Callable[[NodeType], int]
) -> int:
    """Close a node in order; return the exit code."""
    executor.remove_node(node)
    try:
        exit_code = close_node(node)
    except Exception:
        executor.logger.error(log_text(f'while closing: {traceback.format_exc()}'))
        exit_code = 1
    executor.shutdown()
    rclpy.try_shutdown()
    return exit_code


def _warn_of_unfinished_ports() -> None:
    """Warn of what the middleware may wait for without end, before it can."""
    if ports := unfinished_ports():
        print(
            f'warning: a process was killed while it made {", ".join(map(str, ports))}, and '
            f'programs wait for that without end, maybe this one: {repair_command(ports)}',
            file=sys.stderr,
            flush=True,
        )


class _Signals:
    """The signals that end the process; after ``with`` they do nothing any more.

    The first asks for the end. One that follows within a second is the same once more; a later one
    ends a process that hangs at once, as people expect who press Ctrl-C again.

    Python runs handlers in the main thread only, which sits in the middleware's wait. So a byte is
    written to a pipe by whichever thread the signal hits; blocking signals and sigwait would miss
    threads that NumPy started at import.

    Attributes:
        end_requested: set by the first.
        wake: called by the first, from a thread.
    """

    def __init__(self) -> None:
        self.end_requested = threading.Event()
        self.wake: Callable[[], None] = lambda: None
        self._has_ended = False
        self._signal_pipe, sender = os.pipe()
        os.set_blocking(sender, False)
        for number in ENDING_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name='signals', daemon=True).start()

    def __enter__(self) -> _Signals:
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        ignore_signals()

    def _wait(self) -> None:
        os.read(self._signal_pipe, 1)
        interrupt()
        self.end_requested.set()
        with contextlib.suppress(Exception):  # the node may be gone by now
            self.wake()
        # What came within a second waits here, however late this thread gets its turn.
        time.sleep(REPEATED_SIGNAL_S)
        os.set_blocking(self._signal_pipe, False)
        with contextlib.suppress(BlockingIOError):
            os.read(self._signal_pipe, _PIPE_BYTES)
        os.set_blocking(self._signal_pipe, True)
        number = os.read(self._signal_pipe, 1)[0]
        if not self._has_ended:
            os._exit(128 + number)
