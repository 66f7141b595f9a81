# SPDX-License-Identifier: Apache-2.0
"""The node's side of a bond with Nav2's lifecycle manager.

Both sides publish ``bond/msg/Status`` on the topic ``bond``: a heartbeat in each period, and
``active: false`` when they end the bond. The manager ends a bond without heartbeats after its
``bond_timeout`` (4 s), and then resets all of its nodes.

Sources of the protocol: bondcpp 4.0 (states, timeouts, QoS), and ``LifecycleNode`` of nav2_util in
Jazzy and Kilted (period, start and end). As there, a lost manager does not change the node.

A thread of the bond publishes and takes the messages. In the executor, a callback that takes long
would stop the heartbeat, and the manager would reset a node that works. So the heartbeat shows
that the process runs and Python gets the interpreter's lock. Threads that process images have
their own watchdog.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any, Final

from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile

from trt_perception.errors import ConfigError
from trt_perception.parameters.bond import BondParameters, bond_with_autostart
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.optional_messages import is_usable

try:
    from bond.msg import Status
except Exception:  # an optional package: doctor says why it cannot be imported
    Status = None

#: Name of the topic, before remapping.
TOPIC: Final = 'bond'
_PUBLISHER_QOS: Final = QoSProfile(depth=5)
# All nodes of a manager share the topic.
_QUEUE_DEPTH: Final = 100
_CONNECT_TIMEOUT_S: Final = 10.0
_HEARTBEAT_TIMEOUT_S: Final = 4.0
# The end is repeated once, after this time without the manager's answer.
_END_REPEAT_S: Final = 0.05
_END_POLL_S: Final = 0.005
_ERROR_REPEAT_S: Final = 5.0


def check_bond(parameters: BondParameters, *, autostart: bool) -> None:
    """Check that a bond can be formed, if the parameters ask for a bond.

    Raises:
        ConfigError: the messages of the package bond are not installed or do not work, or the node
            starts by itself, so that a manager cannot make the transitions.
    """
    if not parameters.bond_enabled:
        return
    if autostart:
        raise bond_with_autostart()
    if not is_usable(Status):
        raise ConfigError(
            "parameter 'bond.enabled'",
            'true, but the package bond is not installed, or does not work with this ROS 2',
            fix='sudo apt install --reinstall ros-$ROS_DISTRO-bond, or set bond.enabled to false',
        )


class _State(Enum):
    WAITING = auto()  # no manager has sent a heartbeat yet
    FORMED = auto()
    LOST = auto()  # the heartbeats of the manager have stopped
    ENDED = auto()  # the manager ended the bond, or did not form one in time


class Bond:
    """A bond that begins with this object, and ends with `close`.

    Args:
        node: publishes in its namespace. The node's name identifies the bond.
        period_s: seconds between two heartbeats.

    Raises:
        RuntimeError: the system cannot start a thread.
    """

    def __init__(self, node: Node, period_s: float) -> None:
        self._node = node
        self._period_s = period_s
        self._id = node.get_name()
        self._instance_id = str(uuid.uuid4())
        # The instance of the manager whose heartbeat came last.
        self._manager_id = ''
        self._state = _State.WAITING
        self._heard_s = time.monotonic()
        self._error_due_s = self._heard_s
        self._end_requested = threading.Event()
        with contextlib.ExitStack() as resources:
            self._publisher = node.create_publisher(Status, TOPIC, _PUBLISHER_QOS)
            resources.callback(node.destroy_publisher, self._publisher)
            # Not a subscription of rclpy, which only the executor serves.
            handle: Any = node.handle
            with handle:
                self._subscription = _rclpy.Subscription(
                    handle, Status, TOPIC, QoSProfile(depth=_QUEUE_DEPTH).get_c_qos_profile()
                )
            resources.callback(self._subscription.destroy_when_not_in_use)
            self._thread = threading.Thread(target=self._run, name='bond', daemon=True)
            self._thread.start()
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Tell the manager that the bond ends, and free everything. May be called again.

        Waits at most 0.1 s for the manager's answer, as bondcpp does.
        """
        self._end_requested.set()
        self._thread.join()
        with self._resources:
            if self._state is not _State.ENDED:
                self._say_end()

    def _say_end(self) -> None:
        was_formed, self._state = self._state is _State.FORMED, _State.ENDED
        for _ in range(2):
            self._publish(active=False)
            if not was_formed or self._is_end_answered():
                return

    def _is_end_answered(self) -> bool:
        """Wait until the manager has ended its side, too. Return whether it has."""
        limit_s = time.monotonic() + _END_REPEAT_S
        while time.monotonic() < limit_s:
            if any(not message.active for message in self._taken_messages()):
                return True
            time.sleep(_END_POLL_S)
        return False

    def _run(self) -> None:
        while self._state is not _State.ENDED and not self._end_requested.is_set():
            try:
                self._publish(active=True)
                self._read_messages()
            except Exception:
                self._report_error()
            self._end_requested.wait(self._period_s)

    def _report_error(self) -> None:
        """Log the current exception, at most once in 5 s. The next heartbeat follows anyway."""
        now_s = time.monotonic()
        if now_s >= self._error_due_s and self._node.context.ok():
            self._error_due_s = now_s + _ERROR_REPEAT_S
            self._node.get_logger().error(log_text(f'bond: {traceback.format_exc()}'))

    def _read_messages(self) -> None:
        """Take all messages that have arrived, and update the state."""
        log = self._node.get_logger()
        for message in self._taken_messages():
            if message.active:
                self._on_heartbeat(message.instance_id)
            elif message.instance_id == self._manager_id:
                self._state = _State.ENDED
                self._publish(active=False)  # the manager waits for this answer
                log.info('the lifecycle manager ended the bond; the node stays active')
                return
        silent_s = time.monotonic() - self._heard_s
        if self._state is _State.FORMED and silent_s >= _HEARTBEAT_TIMEOUT_S:
            self._state = _State.LOST
            log.warning(
                f'no heartbeat from the lifecycle manager for {_HEARTBEAT_TIMEOUT_S:g} s; '
                'the node stays active'
            )
        elif self._state is _State.WAITING and silent_s >= _CONNECT_TIMEOUT_S:
            self._state = _State.ENDED
            log.warning(
                f'no lifecycle manager has formed a bond within {_CONNECT_TIMEOUT_S:g} s; '
                'the node stays active without a bond until its next activation'
            )

    def _on_heartbeat(self, instance_id: str) -> None:
        self._manager_id = instance_id
        self._heard_s = time.monotonic()
        if self._state is not _State.FORMED:
            again = ' again' if self._state is _State.LOST else ''
            self._state = _State.FORMED
            self._node.get_logger().info(f'bond with the lifecycle manager formed{again}')

    def _taken_messages(self) -> Iterator[Any]:
        """Yield the messages of the other side that have arrived, at most a full queue."""
        for _ in range(_QUEUE_DEPTH):
            taken = self._subscription.take_message(Status, False)
            if taken is None:  # none is left, or the message is damaged
                return
            message = taken[0]
            if message.id == self._id and message.instance_id != self._instance_id:
                yield message

    def _publish(self, *, active: bool) -> None:
        message = Status(
            id=self._id,
            instance_id=self._instance_id,
            active=active,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT_S,
            heartbeat_period=self._period_s,
        )
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)
