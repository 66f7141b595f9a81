"""Timers of the node: they follow no clock that can stop or jump."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.timer import Timer

__all__ = ['steady_timer']


def steady_timer(node: Node, period_s: float, callback: Callable[[], None]) -> Timer:
    """Create a timer of the steady clock.

    The node's own clock stands still where use_sim_time is set and nobody publishes /clock, and
    jumps where a bag starts again: diagnostics must come all the same.
    """
    return node.create_timer(period_s, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))
