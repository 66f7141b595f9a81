# SPDX-License-Identifier: Apache-2.0
"""Test the bond with Nav2's lifecycle manager, over DDS between processes."""

import itertools
import json
import os
import signal
import threading
import time

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from test_sros2_policy import allowed_names

from support.nodes import scripted_node
from support.nodes.graph import picture_of
from support.optional_packages import needs
from support.programs import DEADLINE_S, Program, script
from trt_perception.errors import ConfigError
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.boxes_3d.node import Boxes3DNode
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime import bond

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.each_distro, needs('bond')]

CYCLES = 20
NAMES = ('detector', 'detections_3d')
_numbers = itertools.count()


@pytest.fixture
def start_manager():
    """Return a function that starts a manager in a namespace. The manager ends with the test."""
    programs = []

    def start(name, namespace, *transitions):
        command = [*script('nodes/bond_manager.py'), name, *transitions]
        programs.append(Program([*command, '--ros-args', '-r', f'__ns:={namespace}']))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def start_node(start_detector, model):
    """Return a function that starts a node with a bond; it returns a Detector."""

    node = script('nodes/bond_node.py')

    def start(name='detector'):
        if name == 'detector':
            parameters = {'engine_path': str(model), 'bond.enabled': True}
            return start_detector(parameters, command=[*node, 'detector_node'])

        def run(namespace):
            command = [*node, name, '--ros-args', '-r', f'__ns:={namespace}']
            return Program([*command, '-p', 'bond.enabled:=true'])

        return start_detector(start=run)

    return start


@pytest.fixture
def make_node(client, monkeypatch):
    """Return a function that makes an active node with a bond. Nobody spins the node.

    The bond does not notice a busy machine, unless the test sets shorter time limits.
    """
    for limit in ('_CONNECT_TIMEOUT_S', '_HEARTBEAT_TIMEOUT_S'):
        monkeypatch.setattr(bond, limit, 10.0 * DEADLINE_S)
    nodes = []

    def make(**settings):
        values = {'engine_path': 'none', 'bond.enabled': True, **settings}
        node = DetectorNode(
            open_pipeline=scripted_node.ScriptedPipeline,
            context=client.context,
            namespace=f'bond_{os.getpid()}_{next(_numbers)}',
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()],
        )
        nodes.append(node)
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS
        return node

    yield make
    for node in nodes:
        node.close()


class Sister:
    """The manager's side of a bond, in this process. Sends only what the test sends."""

    def __init__(self, client, node, instance_id='manager'):
        self._client = client
        self._name, self._instance_id = node.get_name(), instance_id
        self._id_of_node = node._bond._instance_id
        topic = node.resolve_topic_name('bond')
        self.messages, self._subscription = client.subscribe(bond.Status, topic)
        self.publisher = client.node.create_publisher(bond.Status, topic, 10)
        client.spin_until(lambda: len(self.heartbeats()) >= 2, 'heartbeats')

    def heartbeats(self):
        return [m for m in self.messages if m.active and m.instance_id == self._id_of_node]

    def ends(self):
        return [m for m in self.messages if not m.active and m.instance_id == self._id_of_node]

    def say(self, *, active, name=None):
        message = bond.Status(id=name or self._name, instance_id=self._instance_id, active=active)
        self.publisher.publish(message)

    def wait_for_heartbeats(self, count=3):
        """Wait for heartbeats that the node sends from now on."""
        seen = len(self.heartbeats()) + count
        self._client.spin_until(lambda: len(self.heartbeats()) >= seen, 'further heartbeats')

    def say_until(self, condition, what, *, active):
        # Without a pause, own messages would displace the node's answer from the queue.
        due = time.monotonic()

        def is_met():
            nonlocal due
            if time.monotonic() >= due:
                self.say(active=active)
                due = time.monotonic() + 0.05
            return condition()

        self._client.spin_until(is_met, what)

    def close(self):
        self._client.node.destroy_subscription(self._subscription)
        self._client.node.destroy_publisher(self.publisher)


@pytest.fixture
def make_sister(client):
    sisters = []

    def make(node, **settings):
        sisters.append(Sister(client, node, **settings))
        return sisters[-1]

    yield make
    for sister in sisters:
        sister.close()


def reports(program):
    """Return what a manager printed."""
    return [json.loads(line) for line in program.output.splitlines() if line.startswith('{')]


def wait_for_reports(program, count):
    program.wait_for_output('{"', count)
    return reports(program)


def threads(program):
    return len(os.listdir(f'/proc/{program.pid}/task'))


@pytest.mark.parametrize('name', NAMES)
def test_each_activation_has_a_bond_and_cycles_leave_nothing(
    client, start_node, start_manager, name
):
    detector = start_node(name)
    cycle = ('activate', 'deactivate')
    first = start_manager(name, detector.namespace, 'configure', *cycle, *cycle)
    assert first.wait() == 0
    before = threads(detector.program)

    second = start_manager(name, detector.namespace, *(CYCLES * cycle))
    assert second.wait() == 0

    found = reports(second)
    assert all(report['success'] for report in found)
    started, ended = found[::2], found[1::2]
    assert len({report['instance_id'] for report in started}) == CYCLES
    values = {(report['heartbeat_timeout'], report['heartbeat_period']) for report in started}
    assert values == {(4.0, 0.1)}  # as Nav2's own nodes
    assert [report['broken'] for report in ended] == ['ended by the node'] * CYCLES
    # A thread of the operating system ends a little later than the thread of Python.
    client.spin_until(lambda: threads(detector.program) == before, f'{before} threads')
    topic = detector.topic('bond')
    client.spin_until(
        lambda: not (client.node.count_publishers(topic) or client.node.count_subscribers(topic)),
        'no bond',
    )
    assert 'Traceback' not in detector.program.output


@pytest.mark.parametrize('name', NAMES)
def test_node_whose_manager_was_killed_stays_active_and_logs_once(
    client, start_node, start_manager, name
):
    detector = start_node(name)
    topic = detector.topic('bond')
    messages, subscription = client.subscribe(bond.Status, topic)
    manager = start_manager(name, detector.namespace, 'configure', 'activate')
    manager.wait_for_output('"activate"')

    manager.send(signal.SIGKILL)
    detector.program.wait_for_line(r'\[WARN\] .*lifecycle manager')

    # Nav2's own nodes send heartbeats without end, too.
    seen = len(messages) + 10
    client.spin_until(lambda: len(messages) >= seen, 'further heartbeats')
    assert all(message.active for message in messages)
    warnings = [line for line in detector.program.output.splitlines() if '[WARN]' in line]
    assert len([line for line in warnings if 'lifecycle manager' in line]) == 1
    used = {name for name, _ in client.node.get_topic_names_and_types()}
    assert topic in used & allowed_names(name, detector.namespace)['publish']
    assert topic in allowed_names(name, detector.namespace)['subscribe']
    client.node.destroy_subscription(subscription)


def test_node_stays_active_after_the_manager_ended(start_node, start_manager, model):
    detector = start_node()
    manager = start_manager('detector', detector.namespace, 'configure', 'activate')
    manager.wait_for_output('"activate"')

    manager.send(signal.SIGINT)

    assert manager.wait() == 0
    assert reports(manager)[-1] == {'broken': 'ended by the node'}  # its answer
    assert detector.state() == 'active'
    detector.connect()
    assert detector.ask(picture_of((200, 0, 0))).detections
    # The next activation has a bond again.
    again = start_manager('detector', detector.namespace, *('deactivate', 'activate'))
    again.wait_for_output('"activate"')


def test_manager_notices_a_killed_node(start_node, start_manager):
    detector = start_node()
    manager = start_manager('detector', detector.namespace, 'configure', 'activate')
    manager.wait_for_output('"activate"')

    detector.program.send(signal.SIGKILL)

    assert manager.wait() == 0
    assert reports(manager)[-1] == {'broken': 'silent'}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_node_that_ends_tells_its_manager(start_node, start_manager, number):
    detector = start_node()
    manager = start_manager('detector', detector.namespace, 'configure', 'activate')
    manager.wait_for_output('"activate"')

    detector.program.send(number)

    assert detector.program.wait() == 0
    assert manager.wait() == 0
    assert reports(manager)[-1] == {'broken': 'ended by the node'}


def test_fault_ends_the_bond_so_that_the_manager_can_start_the_node_again(
    client, start_detector, start_manager
):
    detector = start_detector(
        {'engine_path': 'none', 'bond.enabled': True}, command=script('nodes/scripted_node.py')
    )
    manager = start_manager('detector', detector.namespace, 'configure', 'activate')
    manager.wait_for_output('"activate"')
    detector.client.spin_until(detector.camera.get_subscription_count, 'a subscription')

    detector.camera.publish(
        picture_of((0, 0, scripted_node.RAISE_IN_COLLECT))  # ends the worker
    )

    assert manager.wait() == 0
    assert reports(manager)[-1] == {'broken': 'ended by the node'}
    detector.wait_for_status(
        lambda _, values: values['state'] == 'unconfigured', 'the state after the fault'
    )
    again = start_manager('detector', detector.namespace, 'configure', 'activate', 'deactivate')
    assert again.wait() == 0


def test_heartbeat_continues_while_the_executor_is_busy(make_node, make_sister):
    node = make_node()  # without an executor
    sister = make_sister(node)
    for _ in range(10):
        sister.say(active=True)
        sister.wait_for_heartbeats()
    assert node._bond._state is bond._State.FORMED
    assert node.state_label == 'active'


def test_bond_ends_without_a_manager(make_node, monkeypatch, client):
    monkeypatch.setattr(bond, '_CONNECT_TIMEOUT_S', 0.3)
    node = make_node()
    client.spin_until(lambda: not node._bond._thread.is_alive(), 'the end of the thread')
    assert node._bond._state is bond._State.ENDED
    assert node.state_label == 'active'


def test_lost_manager_may_come_back(make_node, make_sister, monkeypatch, client):
    monkeypatch.setattr(bond, '_HEARTBEAT_TIMEOUT_S', 0.3)
    node = make_node()
    sister = make_sister(node)

    def is_in(state):
        return lambda: node._bond._state is state

    sister.say_until(is_in(bond._State.FORMED), 'a bond', active=True)
    client.spin_until(is_in(bond._State.LOST), 'a lost bond')
    sister.say_until(is_in(bond._State.FORMED), 'a bond again', active=True)


def test_only_the_manager_that_was_heard_last_can_end_the_bond(make_node, make_sister):
    node = make_node()
    stranger, sister = make_sister(node, instance_id='stranger'), make_sister(node)
    sister.say(active=True, name='another_node')
    stranger.say(active=False)
    sister.wait_for_heartbeats()
    assert node._bond._state is bond._State.WAITING
    sister.say_until(lambda: node._bond._state is bond._State.FORMED, 'a bond', active=True)
    stranger.say(active=False)
    sister.say(active=False, name='another_node')
    sister.wait_for_heartbeats()
    assert node._bond._state is bond._State.FORMED

    sister.say_until(sister.ends, 'an answer', active=False)
    assert node._bond._state is bond._State.ENDED


# Each function damages a serialised Status whose id is `detector`.
DAMAGES = {
    'empty': lambda _: b'',
    'only the encapsulation': lambda data: data[:4],
    'cut': lambda data: data[:-6],
    'text that is not UTF-8': lambda data: data.replace(b'detector', b'\xff' * 8),
    'a string of 4 GB': lambda data: data.replace(b'\x09\0\0\0', b'\xff' * 4),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_damaged_message_does_not_stop_the_heartbeat(make_node, make_sister, damage):
    node = make_node()
    sister = make_sister(node)
    whole = serialize_message(bond.Status(id='detector', instance_id='manager', active=True))
    for _ in range(3):
        sister.publisher.publish(DAMAGES[damage](whole))
        sister.wait_for_heartbeats()
    sister.say_until(lambda: node._bond._state is bond._State.FORMED, 'a bond', active=True)


def test_deactivate_frees_every_part_of_the_bond(make_node, make_sister):
    node = make_node()
    make_sister(node)

    def parts():
        names = ('publishers', 'subscriptions', 'timers', 'guards', 'clients')
        return {name: len(list(getattr(node, name))) for name in names}

    assert 'bond' in {thread.name for thread in threading.enumerate()}
    node.trigger_deactivate()
    inactive = parts()
    for _ in range(3):
        node.trigger_activate()
        node.trigger_deactivate()
        assert parts() == inactive
    assert 'bond' not in {thread.name for thread in threading.enumerate()}


def test_node_without_the_parameter_has_no_bond(make_node, client):
    node = make_node(**{'bond.enabled': False})
    assert node._bond is None
    assert not client.node.count_publishers(node.resolve_topic_name('bond'))


def test_failed_activation_leaves_no_bond(client, make_node, monkeypatch):
    node = make_node()
    node.trigger_deactivate()

    start = threading.Thread.start

    def fail(thread):
        if thread.name == 'bond':
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', fail)
    count = len(list(node.publishers))
    assert node.trigger_activate() != TransitionCallbackReturn.SUCCESS
    monkeypatch.undo()
    assert node.state_label == 'inactive'
    assert len(list(node.publishers)) == count
    assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS


# Errors.


@pytest.mark.parametrize('values', [ParameterValues, BoxParameters])
def test_missing_package_is_an_error_only_with_a_bond(monkeypatch, golden_messages, values):
    enabled = values(bond_enabled=True)
    bond.check_bond(enabled, autostart=False)
    with pytest.raises(ConfigError) as twofold:
        bond.check_bond(enabled, autostart=True)
    monkeypatch.setattr(bond, 'Status', None)
    bond.check_bond(values(), autostart=True)
    with pytest.raises(ConfigError) as missing:
        bond.check_bond(enabled, autostart=False)
    golden_messages.add(str(twofold.value))
    golden_messages.add(str(missing.value))


def test_configure_fails_without_the_package(client, monkeypatch):
    monkeypatch.setattr(bond, 'Status', None)
    overrides = [Parameter('bond.enabled', value=True)]
    detector = DetectorNode(
        open_pipeline=scripted_node.ScriptedPipeline,
        context=client.context,
        namespace='no_bond',
        parameter_overrides=[*overrides, Parameter('engine_path', value='none')],
    )
    boxes = Boxes3DNode(context=client.context, namespace='no_bond', parameter_overrides=overrides)
    for node in (detector, boxes):
        assert node.trigger_configure() != TransitionCallbackReturn.SUCCESS
        assert node._state_machine.current_state[1] == 'unconfigured'
        assert node._monitor.error
        node.close()


def test_autostart_with_a_bond_is_refused(start_detector, model):
    values = {'engine_path': str(model), 'autostart': True, 'bond.enabled': True}
    detector = start_detector(values)
    detector.wait_for_report(DiagnosticStatus.ERROR, 'autostart')
    assert detector.state() == 'unconfigured'
