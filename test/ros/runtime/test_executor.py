"""The executor: whatever a callback raises, it goes on, says so, and services answer."""

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
from support.programs import DEADLINE_S
from trt_perception.ros.runtime import executor
from trt_perception.ros.runtime.executor import GuardedExecutor

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

ASK_AGAIN_S = 1.0


class Recorder:
    """Stands for the node's logger."""

    def __init__(self):
        self.lines = []

    def error(self, text):
        self.lines.append(text)


class Guarded:
    """A node of this process with a guarded executor."""

    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = LifecycleNode('guarded', context=self.context)
        self.executor = None

    def guard(self):
        """Begin to spin; what was created before is guarded."""
        self.executor = GuardedExecutor(self.node)
        self.log = self.executor.logger = Recorder()

    def spin_until(self, condition, client=None):
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                pytest.fail('waited in vain')
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
    # However long a test takes, one kind of error is one line.
    monkeypatch.setattr(executor, '_REPEAT_S', 1000 * DEADLINE_S)
    guarded = Guarded()
    yield guarded
    guarded.close()


def failing(calls, error=None):
    """Return a callback that raises each time it is called."""

    def callback(*arguments):
        calls.append(arguments)
        raise error or RuntimeError('the callback broke')

    return callback


def test_timer(guarded):
    calls = []
    guarded.node.create_timer(0.001, failing(calls))
    guarded.guard()
    guarded.spin_until(lambda: len(calls) > 20)
    # A line with a traceback, not one for each call.
    assert len(guarded.log.lines) == 1
    assert 'RuntimeError' in guarded.log.lines[0].partition('\n    Traceback')[0]
    assert 'the callback broke' in guarded.log.lines[0]


def test_each_kind_is_told(guarded):
    calls = []
    for error in (RuntimeError('first'), ValueError('second'), MemoryError()):
        guarded.node.create_timer(0.001, failing(calls, error))
    guarded.guard()
    guarded.spin_until(lambda: len(calls) > 20)
    assert len(guarded.log.lines) == 3


def test_a_huge_error_does_not_fill_the_log(guarded):
    calls = []
    guarded.node.create_timer(0.001, failing(calls, ValueError('x' * 1_000_000)))
    guarded.guard()
    guarded.spin_until(lambda: calls)
    assert [len(line) < 10_000 for line in guarded.log.lines] == [True]


def test_guard_condition(guarded):
    calls = []
    condition = guarded.node.create_guard_condition(failing(calls))
    guarded.guard()
    for count in (1, 2, 3):
        condition.trigger()
        guarded.spin_until(lambda count=count: len(calls) == count)


def test_subscription_and_its_events(guarded):
    heard, matched, offered = [], [], []
    guarded.node.create_subscription(
        Header,
        'guarded',
        failing(heard),
        1,
        event_callbacks=SubscriptionEventCallbacks(matched=failing(matched)),
    )
    publisher = guarded.node.create_publisher(
        Header, 'guarded', 1, event_callbacks=PublisherEventCallbacks(matched=failing(offered))
    )
    guarded.guard()
    guarded.spin_until(lambda: matched and offered)
    for count in (1, 2, 3):
        publisher.publish(Header())
        guarded.spin_until(lambda count=count: len(heard) == count)
    assert sum(' /guarded ' in line for line in guarded.log.lines) == 1


@pytest.fixture(scope='module')
def asker():
    client = Client()
    yield client
    client.close()


def ask(guarded, asker, kind, name, request):
    """Call a service of the guarded node and return its answer."""
    clients = [asker.node.create_client(kind, name)]
    try:
        guarded.spin_until(clients[0].service_is_ready, asker)
        futures, asked_s = [], []

        def answered():
            # One that does not know its client answers nobody, and with Fast DDS it once never
            # got to know it: another client asks again.
            if not futures or time.monotonic() - asked_s[-1] > ASK_AGAIN_S:
                if futures:
                    clients.append(asker.node.create_client(kind, name))
                futures.append(clients[-1].call_async(request))
                asked_s.append(time.monotonic())
            return any(future.done() for future in futures)

        guarded.spin_until(answered, asker)
        return next(future.result() for future in futures if future.done())
    finally:
        for client in clients:
            asker.node.destroy_client(client)


def test_service(guarded, asker):
    calls = []
    guarded.node.create_service(Trigger, 'broken', failing(calls))
    guarded.guard()
    answer = ask(guarded, asker, Trigger, 'broken', Trigger.Request())
    assert answer == Trigger.Response(success=False)
    assert re.search('/broken .*RuntimeError', guarded.log.lines[0])


def test_a_request_that_cannot_be_taken(guarded, asker):
    """As rclpy raises where the middleware hands over a request with impossible lengths."""
    service = guarded.node.create_service(
        Trigger, 'untaken', lambda _, response: Trigger.Response(success=True)
    )

    class Broken:
        @property
        def Request(self):  # noqa: N802
            raise SystemError('service_take_request returned a result with an exception set')

    guarded.guard()
    assert ask(guarded, asker, Trigger, 'untaken', Trigger.Request()).success
    client = asker.node.create_client(Trigger, 'untaken')
    guarded.spin_until(client.service_is_ready, asker)
    service.srv_type = Broken()
    client.call_async(Trigger.Request())
    guarded.spin_until(lambda: guarded.log.lines, asker)
    assert re.search('/untaken .*SystemError', guarded.log.lines[0])
    # This service and all others of its callback group are still asked.
    service.srv_type = Trigger
    assert ask(guarded, asker, Trigger, 'untaken', Trigger.Request()).success
    asker.node.destroy_client(client)


def test_an_answer_that_cannot_be_sent(guarded, asker):
    answers = [Trigger.Response(success=True), 'no response at all']
    guarded.node.create_service(Trigger, 'unsent', lambda *_: answers[-1])
    guarded.guard()
    client = asker.node.create_client(Trigger, 'unsent')
    guarded.spin_until(client.service_is_ready, asker)
    client.call_async(Trigger.Request())
    guarded.spin_until(lambda: guarded.log.lines, asker)
    answers.pop()
    assert ask(guarded, asker, Trigger, 'unsent', Trigger.Request()).success
    asker.node.destroy_client(client)


def integer(name, value):
    kind = ParameterType.PARAMETER_INTEGER
    return Parameter(name=name, value=ParameterValue(type=kind, integer_value=value))


def test_one_parameter_that_raises_fails_for_itself(guarded, asker):
    def check(parameters):
        if any(parameter.name == 'bad' for parameter in parameters):
            raise RuntimeError('the check broke')
        return parameters

    for name in ('good', 'bad', 'last'):
        guarded.node.declare_parameter(name, 1)
    guarded.node.add_pre_set_parameters_callback(check)
    guarded.guard()
    parameters = [integer('good', 2), integer('bad', 2), integer('last', 2)]
    each = ask(
        guarded,
        asker,
        SetParameters,
        'guarded/set_parameters',
        SetParameters.Request(parameters=parameters),
    )
    assert [result.successful for result in each.results] == [True, False, True]
    assert 'the check broke' in each.results[1].reason
    assert guarded.node.get_parameter('last').value == 2
    together = ask(
        guarded,
        asker,
        SetParametersAtomically,
        'guarded/set_parameters_atomically',
        SetParametersAtomically.Request(parameters=[integer('good', 3), integer('bad', 3)]),
    )
    assert not together.result.successful
    assert 'the check broke' in together.result.reason
    assert guarded.node.get_parameter('good').value == 2


def test_waiting_itself(guarded):
    calls, broken = [], [OSError('the wait set broke')] * 3
    real = guarded.node.create_timer(0.001, lambda: calls.append(1))
    guarded.guard()
    nodes = guarded.executor.get_nodes

    def get_nodes():
        if broken:
            raise broken.pop()
        return nodes()

    guarded.executor.get_nodes = get_nodes
    guarded.spin_until(lambda: calls)
    assert not broken
    assert re.search('GuardedExecutor .*OSError', guarded.log.lines[0])
    guarded.node.destroy_timer(real)


def test_a_context_that_somebody_shut_down(guarded):
    guarded.guard()
    rclpy.shutdown(context=guarded.context)
    guarded.executor.spin_once(timeout_sec=0.01)
    assert guarded.log.lines == []
