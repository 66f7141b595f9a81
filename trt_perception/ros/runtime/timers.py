# SPDX-License-Identifier: Apache-2.0
"""Timers of the node, on a clock that never stops or jumps."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.timer import Timer


def steady_timer(node: Node, period_s: float, callback: Callable[[], None]) -> Timer:
    """Create a timer on the steady clock, so that diagnostics never stop.

    With use_sim_time, the node's clock stops without messages on /clock, and jumps when a bag
    starts again.
    """
    return node.create_timer(period_s, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))
