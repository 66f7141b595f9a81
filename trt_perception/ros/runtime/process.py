# SPDX-License-Identifier: Apache-2.0
"""Runs a node in its process: start, signals and end."""

from __future__ import annotations

import contextlib
import os
import select
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
from trt_perception.process.hard_exit import hard_exit
from trt_perception.process.interruption import (
    REPEATED_SIGNAL_S,
    ending_signals,
    ignore_signals,
    interrupt,
    running_step,
    step,
)
from trt_perception.ros.runtime.command_line import report_wrong_usage
from trt_perception.ros.runtime.end_guard import start_end_guard
from trt_perception.ros.runtime.executor import GuardedExecutor
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.time_limit import time_limit
from trt_perception.stages.triton.memory import REGION_PATHS
from trt_perception.transport.shared_memory import repair_command, unfinished_ports

NodeType = TypeVar('NodeType', bound=Node)
_PIPE_BYTES = 65536
# A longer start or end hangs, mostly in the middleware. The start does not load the model. The end
# waits for the frame or native call in progress.
START_LIMIT_S = 60.0
END_LIMIT_S = 30.0
# After a signal, the process is gone within 5 s, when ros2 launch sends the next signal. A node of
# 64 cameras ends in 0.5 s, on a very busy machine in several times as long.
SIGNAL_LIMIT_S = 4.2
# The guard, which needs no interpreter lock, kills the process this much later.
_GUARD_DELAY_S = 0.3


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
        closed within END_LIMIT_S. It ends with 128 + the signal's number if it has not ended
        SIGNAL_LIMIT_S after the signal, or at a second signal.
    """
    with _Signals() as signals:
        _warn_of_unfinished_ports()
        try:
            rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        except Exception as error:
            # rclpy raises several exception types for unreadable arguments and YAML.
            return report_wrong_usage(error)
        try:
            what = 'the start of the node'
            with step(what), time_limit(what, START_LIMIT_S):
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
        what = 'the end of the node'
        with step(what), time_limit(what, END_LIMIT_S):
            return _close_node(executor, node, close_node)


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

    The thread ends with the block: a thread that wakes in the interpreter's shutdown may crash.

    The first signal requests the end. A signal within the next second is a duplicate. A later
    signal ends a hanging process at once, as users expect of a second Ctrl-C. So does the time
    limit, which begins at the first signal, because the executor may be busy.

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
        self._end_pipe, self._end_sender = os.pipe()
        self._signal_pipe, sender = os.pipe()
        os.set_blocking(sender, False)
        # First, because a signal between these calls must write its byte.
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in ending_signals():
            signal.signal(number, lambda *_: None)
        start_end_guard(self._signal_pipe, SIGNAL_LIMIT_S + _GUARD_DELAY_S, REGION_PATHS)
        self._thread = threading.Thread(target=self._wait, name='signals', daemon=True)
        self._thread.start()

    def __enter__(self) -> _Signals:
        return self

    def __exit__(self, *_: object) -> None:
        ignore_signals()
        os.write(self._end_sender, b'.')
        self._thread.join()

    def _wait(self) -> None:
        if not self._has_signal():
            return
        limit_s = time.monotonic() + SIGNAL_LIMIT_S
        interrupt()
        self.end_requested.set()
        with contextlib.suppress(Exception):  # the node may already be destroyed
            self.wake()
        if select.select([self._end_pipe], [], [], REPEATED_SIGNAL_S)[0]:
            return
        # Duplicates of the first second are in the pipe now, even if this thread runs late.
        number = os.read(self._signal_pipe, _PIPE_BYTES)[0]
        text = ''
        if self._has_signal(max(0.0, limit_s - time.monotonic())):
            number = os.read(self._signal_pipe, 1)[0]
        elif select.select([self._end_pipe], [], [], 0)[0]:
            return
        else:
            what, name = running_step() or 'a callback', _signal_name(number)
            text = f'error: {what} has not returned {SIGNAL_LIMIT_S:g} s after {name}; exiting'
        hard_exit(128 + number, text)

    def _has_signal(self, limit_s: float | None = None) -> bool:
        """Wait for a signal, at most until the end of the block or the limit in seconds."""
        pipes = [self._signal_pipe, self._end_pipe]
        ready = select.select(pipes, [], [], limit_s)[0]
        return self._signal_pipe in ready and self._end_pipe not in ready


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f'signal {number}'
