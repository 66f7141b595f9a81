# SPDX-License-Identifier: Apache-2.0
"""Tests of the executor, which logs exceptions of callbacks and continues."""

import re
import time

import pytest
import rclpy
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Header
from std_srvs.srv import Trigger

from support.nodes.graph import Client
from support.nodes.patient_publisher import until_accepted
from support.programs import DEADLINE_S
from support.waiting import WaitTimeoutError
from trt_perception.ros.runtime import executor
from trt_perception.ros.runtime.executor import GuardedExecutor

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

CALL_AGAIN_S = 1.0


class RecordingLogger:
    """A stand-in for the node's logger that keeps errors."""

    def __init__(self):
        self.lines = []

    def error(self, text):
        self.lines.append(text)


class GuardedNode:
    """A node of this process with a GuardedExecutor."""

    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = LifecycleNode('guarded', context=self.context)
        self.executor = None

    def create_executor(self):
        """Create the executor. Services that the node has by now answer every request."""
        self.executor = GuardedExecutor(self.node)
        self.log = self.executor.logger = RecordingLogger()

    def spin_until(self, condition, client=None):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                raise WaitTimeoutError('a condition of GuardedNode')
            self.executor.spin_once(timeout_sec=0.01)
            if client is not None:
                client.spin_for(0.001)

    def close(self):
        if self.executor is not None:
            self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def guarded(monkeypatch):
    # The interval is longer than any test, so each kind of error is logged once.
    monkeypatch.setattr(executor, '_REPEAT_S', 1000 * DEADLINE_S)
    guarded = GuardedNode()
    yield guarded
    guarded.close()


def failing_callback(calls, error=None):
    """Return a callback that records its arguments and raises an error."""

    def callback(*arguments):
        calls.append(arguments)
        raise error or RuntimeError('the callback broke')

    return callback


def test_exception_of_a_timer_is_logged_once(guarded):
    calls = []
    guarded.node.create_timer(0.001, failing_callback(calls))
    guarded.create_executor()
    guarded.spin_until(lambda: len(calls) > 20)
    # The log has one line with a traceback, instead of one line per call.
    assert len(guarded.log.lines) == 1
    assert 'RuntimeError' in guarded.log.lines[0].partition('\n    Traceback')[0]
    assert 'the callback broke' in guarded.log.lines[0]


def test_each_kind_of_exception_is_logged(guarded):
    calls = []
    for error in (RuntimeError('first'), ValueError('second'), MemoryError()):
        guarded.node.create_timer(0.001, failing_callback(calls, error))
    guarded.create_executor()
    guarded.spin_until(lambda: len(calls) > 20)
    assert len(guarded.log.lines) == 3


def test_huge_error_message_is_shortened_in_the_log(guarded):
    calls = []
    guarded.node.create_timer(0.001, failing_callback(calls, ValueError('x' * 1_000_000)))
    guarded.create_executor()
    guarded.spin_until(lambda: calls)
    assert [len(line) < 10_000 for line in guarded.log.lines] == [True]


def test_guard_condition_works_after_exceptions(guarded):
    calls = []
    condition = guarded.node.create_guard_condition(failing_callback(calls))
    guarded.create_executor()
    for count in (1, 2, 3):
        condition.trigger()
        guarded.spin_until(lambda count=count: len(calls) == count)


def test_subscription_works_after_exceptions_in_its_events(guarded):
    heard, matched, offered = [], [], []
    guarded.node.create_subscription(
        Header,
        'guarded',
        failing_callback(heard),
        1,
        event_callbacks=SubscriptionEventCallbacks(matched=failing_callback(matched)),
    )
    publisher = guarded.node.create_publisher(
        Header,
        'guarded',
        1,
        event_callbacks=PublisherEventCallbacks(matched=failing_callback(offered)),
    )
    guarded.create_executor()
    guarded.spin_until(lambda: matched and offered)
    for count in (1, 2, 3):
        until_accepted(lambda: publisher.publish(Header()))
        guarded.spin_until(lambda count=count: len(heard) == count)
    assert sum(' /guarded ' in line for line in guarded.log.lines) == 1


@pytest.fixture(scope='module')
def service_client():
    client = Client()
    yield client
    client.close()


def call_service(guarded, service_client, kind, name, request):
    """Call a service of the guarded node and return its answer."""
    clients = [service_client.node.create_client(kind, name)]
    try:
        guarded.spin_until(clients[0].service_is_ready, service_client)
        futures, called_s = [], []

        def answered():
            # A service that has not discovered its client does not answer. With Fast DDS, a
            # service once never discovered the client, so another client calls again.
            if not futures or time.monotonic() - called_s[-1] > CALL_AGAIN_S:
                if futures:
                    clients.append(service_client.node.create_client(kind, name))
                futures.append(clients[-1].call_async(request))
                called_s.append(time.monotonic())
            return any(future.done() for future in futures)

        guarded.spin_until(answered, service_client)
        return next(future.result() for future in futures if future.done())
    finally:
        for client in clients:
            service_client.node.destroy_client(client)


def test_exception_of_a_service_is_answered_and_logged(guarded, service_client):
    calls = []
    guarded.node.create_service(Trigger, 'broken', failing_callback(calls))
    guarded.create_executor()
    answer = call_service(guarded, service_client, Trigger, 'broken', Trigger.Request())
    assert answer == Trigger.Response(success=False)
    assert re.search('/broken .*RuntimeError', guarded.log.lines[0])


def test_invalid_request_is_logged_and_the_service_continues(guarded, service_client):
    """rclpy raises this error for a request with invalid lengths."""
    service = guarded.node.create_service(
        Trigger, 'untaken', lambda _, response: Trigger.Response(success=True)
    )

    class BrokenType:
        @property
        def Request(self):  # noqa: N802
            raise SystemError('service_take_request returned a result with an exception set')

    guarded.create_executor()
    assert call_service(guarded, service_client, Trigger, 'untaken', Trigger.Request()).success
    client = service_client.node.create_client(Trigger, 'untaken')
    guarded.spin_until(client.service_is_ready, service_client)
    service.srv_type = BrokenType()
    client.call_async(Trigger.Request())
    guarded.spin_until(lambda: guarded.log.lines, service_client)
    assert re.search('/untaken .*SystemError', guarded.log.lines[0])
    # This service, and others of its callback group, must still be called.
    service.srv_type = Trigger
    assert call_service(guarded, service_client, Trigger, 'untaken', Trigger.Request()).success
    service_client.node.destroy_client(client)


def test_invalid_response_is_logged_and_the_service_continues(guarded, service_client):
    answers = [Trigger.Response(success=True), 'not a response']
    guarded.node.create_service(Trigger, 'unsent', lambda *_: answers[-1])
    guarded.create_executor()
    client = service_client.node.create_client(Trigger, 'unsent')
    guarded.spin_until(client.service_is_ready, service_client)
    client.call_async(Trigger.Request())
    guarded.spin_until(lambda: guarded.log.lines, service_client)
    answers.pop()
    assert call_service(guarded, service_client, Trigger, 'unsent', Trigger.Request()).success
    service_client.node.destroy_client(client)


def integer_parameter(name, value):
    kind = ParameterType.PARAMETER_INTEGER
    return Parameter(name=name, value=ParameterValue(type=kind, integer_value=value))


def test_exception_of_a_parameter_check_refuses_only_this_parameter(guarded, service_client):
    def check(parameters):
        if any(parameter.name == 'bad' for parameter in parameters):
            raise RuntimeError('the check broke')
        return parameters

    for name in ('good', 'bad', 'last'):
        guarded.node.declare_parameter(name, 1)
    guarded.node.add_pre_set_parameters_callback(check)
    guarded.create_executor()
    parameters = [
        integer_parameter('good', 2),
        integer_parameter('bad', 2),
        integer_parameter('last', 2),
    ]
    each = call_service(
        guarded,
        service_client,
        SetParameters,
        'guarded/set_parameters',
        SetParameters.Request(parameters=parameters),
    )
    assert [result.successful for result in each.results] == [True, False, True]
    assert 'the check broke' in each.results[1].reason
    assert guarded.node.get_parameter('last').value == 2
    together = call_service(
        guarded,
        service_client,
        SetParametersAtomically,
        'guarded/set_parameters_atomically',
        SetParametersAtomically.Request(
            parameters=[integer_parameter('good', 3), integer_parameter('bad', 3)]
        ),
    )
    assert not together.result.successful
    assert 'the check broke' in together.result.reason
    assert guarded.node.get_parameter('good').value == 2


def test_exception_while_waiting_is_logged(guarded):
    calls, broken = [], [OSError('the wait set broke')] * 3
    timer = guarded.node.create_timer(0.001, lambda: calls.append(1))
    guarded.create_executor()
    real_get_nodes = guarded.executor.get_nodes

    def get_nodes():
        if broken:
            raise broken.pop()
        return real_get_nodes()

    guarded.executor.get_nodes = get_nodes
    guarded.spin_until(lambda: calls)
    assert not broken
    assert re.search('GuardedExecutor .*OSError', guarded.log.lines[0])
    guarded.node.destroy_timer(timer)


def test_context_shut_down_elsewhere_is_not_logged(guarded):
    guarded.create_executor()
    rclpy.shutdown(context=guarded.context)
    guarded.executor.spin_once(timeout_sec=0.01)
    assert guarded.log.lines == []
