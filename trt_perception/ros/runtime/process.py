"""Runs a node in its process: start, signals and end."""

from __future__ import annotations

import contextlib
import os
import resource
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

__all__ = ['raise_file_limit', 'run_node']

NodeType = TypeVar('NodeType', bound=Node)
_PIPE_BYTES = 65536
_OPEN_FILES = 65536
# A longer start or end hangs, mostly in the middleware. The start does not load the model. The end
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
    """Run a node until a signal arrives or the node has finished, then close the node.

    rclpy's signal handlers destroy the context while the node still works. Here a signal only ends
    the loop, so that the node can still publish, count and free everything.

    Args:
        make_node: creates the node; called after rclpy.init.
        close_node: frees the parts of the node, destroys the node and returns the exit code.
        args: command line for rclpy; None uses the command line of the process.
        finished: called after each callback; returns whether the loop must end.

    Returns:
        The exit code: 0 done or interrupted; 2 wrong parameters or arguments, each reported in
        one sentence. The process ends with 1 if the node is not made within START_LIMIT_S, or not
        closed within END_LIMIT_S.
    """
    with _Signals() as signals:
        _warn_of_unfinished_ports()
        try:
            rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        except Exception as error:
            # rclpy raises several exception types for unreadable arguments and YAML.
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


def raise_file_limit() -> None:
    """Allow this process as many open files as the system permits, at most 65536.

    The usual limit is 1024. A DDS participant opens 16 files, and a node may have 65 participants.
    """
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _OPEN_FILES if highest == unlimited else min(_OPEN_FILES, highest)
    if limit != unlimited and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))


def _close_node(
    executor: GuardedExecutor, node: NodeType, close_node: Callable[[NodeType], int]
) -> int:
    """Close the node, then the executor and ROS. Return the exit code."""
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
    """Warn about unfinished shared memory before the middleware may wait for it forever."""
    if ports := unfinished_ports():
        print(
            f'warning: a process was killed while creating {", ".join(map(str, ports))}, and '
            f'programs wait for this file forever, maybe also this program: '
            f'{repair_command(ports)}',
            file=sys.stderr,
            flush=True,
        )


class _Signals:
    """Handles the signals that end the process, and ignores them after the ``with`` block.

    The first signal requests the end. A signal within the next second is a duplicate. A later
    signal ends a hanging process at once, as users expect of a second Ctrl-C.

    Python runs signal handlers only in the main thread, which waits in the middleware. So the
    thread that receives the signal writes a byte to a pipe. `sigwait` would need all threads to
    block the signals, and NumPy starts threads at import.

    Attributes:
        end_requested: set by the first signal.
        wake: called after the first signal, from a thread.
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
        with contextlib.suppress(Exception):  # the node may already be destroyed
            self.wake()
        # Duplicates of the first second are in the pipe now, even if this thread runs late.
        time.sleep(REPEATED_SIGNAL_S)
        os.set_blocking(self._signal_pipe, False)
        with contextlib.suppress(BlockingIOError):
            os.read(self._signal_pipe, _PIPE_BYTES)
        os.set_blocking(self._signal_pipe, True)
        number = os.read(self._signal_pipe, 1)[0]
        if not self._has_ended:
            os._exit(128 + number)
