"""The process around a node: start, signals, end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from trt_perception.errors import ConfigError
from trt_perception.interruption import interrupt
from trt_perception.plain_text import plain
from trt_perception.ros.executor import GuardedExecutor

__all__ = ['run_node', 'wrong_usage']

NodeType = TypeVar('NodeType', bound=Node)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_SIGNAL_S = 1.0


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
        sentence.
    """
    caught = _caught_signals()
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
        return wrong_usage(str(error))
    try:
        node = make_node()
    except ConfigError as error:
        rclpy.shutdown()
        return wrong_usage(str(error))
    stop = threading.Event()
    wake = node.create_guard_condition(lambda: None)
    waiter = threading.Thread(
        target=_wait_for_signal, args=(caught, stop, wake.trigger), name='signals', daemon=True
    )
    waiter.start()
    executor = GuardedExecutor(node)
    node.get_logger().info('node up')
    try:
        while not stop.is_set() and not finished(node) and node.context.ok():
            executor.spin_once()
        node.get_logger().info('ending')
    finally:
        executor.remove_node(node)
        stop.set()
        exit_code = close_node(node)
        executor.shutdown()
        rclpy.shutdown()
    return exit_code


def _caught_signals() -> int:
    """Catch the signals that end the process; return a file descriptor that gets a byte for each.

    Python runs handlers in the main thread only, which sits in the middleware's wait. The byte is
    written by whichever thread the signal hits; blocking signals and sigwait would miss threads
    that NumPy started at import.
    """
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    return receiver


def _wait_for_signal(caught: int, stop: threading.Event, wake: Callable[[], None]) -> None:
    os.read(caught, 1)
    interrupt()
    stop.set()
    with contextlib.suppress(Exception):  # the node may be gone by now
        wake()
    # A second signal ends the process at once, as people expect who press Ctrl-C twice. One that
    # follows at once is the same once more: launch passes on what the whole process group was
    # sent, where no terminal is there (systemd, timeout).
    first = time.monotonic()
    while True:
        number = os.read(caught, 1)[0]
        if time.monotonic() - first > _SAME_SIGNAL_S:
            os._exit(128 + number)


def wrong_usage(message: str) -> int:
    """Say what is wrong with the command line, a sentence a line; return the exit code."""
    for line in plain(message).splitlines():
        print(f'error: {line}', file=sys.stderr)
    return 2
