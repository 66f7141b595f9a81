# SPDX-License-Identifier: Apache-2.0
"""Play Nav2's lifecycle manager for one node: make transitions, and form a bond.

usage: bond_manager.py NODE TRANSITION... --ros-args -r __ns:=NAMESPACE

Prints a line of JSON after each transition. With a bond at the end, the program then watches the
bond until it breaks or a signal arrives. The bond follows bondcpp: a heartbeat in each 0.1 s,
``active: false`` and its answer at the end, and a bond without heartbeats for 4 s is broken. Time
in which the manager itself does not run does not count, because the machine may be busy.
"""

import json
import signal
import sys
import time
import uuid
from pathlib import Path

import rclpy
from bond.msg import Status
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes.patient_publisher import PatientNode

#: Longer than tests wait for this program, so that a failed wait is a failed wait of the test.
DEADLINE_S = 300
PERIOD_S = 0.1
TIMEOUT_S = 4.0
TRANSITIONS = {
    'configure': Transition.TRANSITION_CONFIGURE,
    'activate': Transition.TRANSITION_ACTIVATE,
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'cleanup': Transition.TRANSITION_CLEANUP,
}


class ManagerBond:
    """The manager's side of a bond.

    Attributes:
        heartbeats: the received heartbeats.
        broken: why the bond is broken: ``ended by the node`` or ``silent``; empty if it is not.
    """

    def __init__(self, node, name):
        self._node = node
        self._name = name
        self._instance_id = str(uuid.uuid4())
        self._silent_s = 0.0
        self.heartbeats = []
        self.broken = ''
        self.is_ended = False
        self._publisher = node.create_publisher(Status, 'bond', QoSProfile(depth=5))
        self._subscription = node.create_subscription(
            Status, 'bond', self._on_status, QoSProfile(depth=100)
        )
        self._timer = node.create_timer(PERIOD_S, self._on_timer)

    def _on_status(self, message):
        if message.id != self._name or message.instance_id == self._instance_id or self.broken:
            return
        if message.active:
            self.heartbeats.append(message)
            self._silent_s = 0.0
        else:
            self.broken = 'ended by the node'
            self.say(active=False)

    def _on_timer(self):
        if not self.broken and not self.is_ended:
            self.say(active=True)
            self._silent_s += PERIOD_S
            if self.heartbeats and self._silent_s > TIMEOUT_S:
                self.broken = 'silent'

    def end(self):
        """Tell the node that the bond ends. The node's answer sets ``broken``."""
        self.is_ended = True
        self.say(active=False)

    def say(self, *, active):
        self._publisher.publish(
            Status(
                id=self._name,
                instance_id=self._instance_id,
                active=active,
                heartbeat_timeout=TIMEOUT_S,
                heartbeat_period=PERIOD_S,
            )
        )

    def close(self):
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._publisher)


class Manager:
    def __init__(self, name):
        self._name = name
        self._node = PatientNode('lifecycle_manager')
        self._change_state = self._node.create_client(ChangeState, f'{name}/change_state')
        self._bond = None
        self.is_interrupted = False

    def spin_until(self, condition, what):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                sys.exit(f'expected within {DEADLINE_S} s: {what}')
            rclpy.spin_once(self._node, timeout_sec=0.05)

    def make(self, transition):
        """Make a transition, and form the bond or wait until the node has ended the bond."""
        self.spin_until(self._change_state.service_is_ready, 'the service change_state')
        request = ChangeState.Request()
        request.transition.id = TRANSITIONS[transition]
        future = self._change_state.call_async(request)
        self.spin_until(future.done, f'an answer to {transition}')
        report = {'transition': transition, 'success': future.result().success}
        if transition == 'activate' and report['success']:
            self._bond = ManagerBond(self._node, self._name)
            self.spin_until(lambda: len(self._bond.heartbeats) >= 2, 'heartbeats')
            first = self._bond.heartbeats[0]
            report['instance_id'] = first.instance_id
            report['heartbeat_timeout'] = first.heartbeat_timeout
            report['heartbeat_period'] = round(first.heartbeat_period, 6)
        if transition == 'deactivate' and self._bond is not None:
            self.spin_until(lambda: self._bond.broken, 'the end of the bond')
            report['broken'] = self._bond.broken
            self._bond.close()
            self._bond = None
        print(json.dumps(report), flush=True)

    def watch(self):
        """Spin until the bond breaks, or a signal ends the bond."""
        if self._bond is None:
            return
        while not self._bond.broken and not self.is_interrupted:
            rclpy.spin_once(self._node, timeout_sec=0.05)
        if self.is_interrupted:
            self._bond.end()
            self.spin_until(lambda: self._bond.broken, 'an answer to the end of the bond')
        print(json.dumps({'broken': self._bond.broken}), flush=True)


def main():
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    name, *transitions = remove_ros_args(sys.argv)[1:]
    manager = Manager(name)

    def interrupt(*_):
        manager.is_interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    for transition in transitions:
        manager.make(transition)
    manager.watch()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
