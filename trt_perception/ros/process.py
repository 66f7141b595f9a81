"""The process around a node: start, signals, end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from trt_perception.errors import ConfigError

__all__ = ['run_node']

NodeType = TypeVar('NodeType', bound=Node)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_node(
    make_node: Callable[[], NodeType],
    close_node: Callable[[NodeType], None],
    args: list[str] | None = None,
    *,
    finished: Callable[[NodeType], bool] = lambda _: False,
) -> int:
    """Run one node until a signal comes or it has finished, and close it in order.

    rclpy's own handlers tear the context down under a working node; here a signal only ends the
    loop, so that everything can still be published, counted and freed.

    Args:
        make_node: called after rclpy.init.
        close_node: frees what the node holds and destroys it.
        args: command line for rclpy, None for the process's own.
        finished: asked after each round of the executor.

    Returns:
        The exit code: 0 done or interrupted, 2 wrong parameters or arguments, each said in one
        sentence.
    """
    # Blocked in this thread and all that it starts, the middleware's too: one thread takes them
    # when they come.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
        return _wrong_usage(str(error))
    try:
        node = make_node()
    except ConfigError as error:
        rclpy.shutdown()
        return _wrong_usage(str(error))
    stop = threading.Event()
    wake = node.create_guard_condition(lambda: None)
    waiter = threading.Thread(
        target=_wait_for_signal, args=(stop, wake.trigger), name='signals', daemon=True
    )
    waiter.start()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    node.get_logger().info('node up')
    try:
        while not stop.is_set() and not finished(node):
            executor.spin_once()
    finally:
        executor.remove_node(node)
        stop.set()
        close_node(node)
        executor.shutdown()
        rclpy.shutdown()
    return 0


def _wait_for_signal(stop: threading.Event, wake: Callable[[], None]) -> None:
    signal.sigwait(_SIGNALS)
    stop.set()
    with contextlib.suppress(Exception):  # the node may be gone by now
        wake()
    # A second signal ends the process at once, as people expect who press Ctrl-C twice.
    os._exit(128 + signal.sigwait(_SIGNALS))


def _wrong_usage(message: str) -> int:
    for line in message.splitlines():
        print(f'error: {line}', file=sys.stderr)
    return 2
