# SPDX-License-Identifier: Apache-2.0
"""Tests of hostile service requests: the node answers each request and continues."""

import contextlib
import itertools
import random

import pytest
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import GetAvailableStates, GetAvailableTransitions
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import GetParameterTypes, ListParameters
from rosgraph_msgs.msg import Clock
from type_description_interfaces.srv import GetTypeDescription

from support.nodes.graph import SERVICES, Detector, picture_of
from trt_perception.parameters.values import PARAMETERS

pytest_plugins = ['support.nodes.graph_fixtures']

ALL_SERVICES = {
    **SERVICES,
    'get_parameter_types': GetParameterTypes,
    'list_parameters': ListParameters,
    'get_available_states': GetAvailableStates,
    'get_available_transitions': GetAvailableTransitions,
    'get_transition_graph': GetAvailableTransitions,
    'get_type_description': GetTypeDescription,
}
UNKNOWN_TYPES = (10, 11, 127, 128, 255)
# All fields have values, although the type selects only one field.
VALUES = {
    'bool_value': True,
    'integer_value': -(2**63),
    'double_value': float('nan'),
    'string_value': '\0\x1b[31m\ud7ff',
    'byte_array_value': [b'\xff'],
    'bool_array_value': [True, False],
    'integer_array_value': [2**63 - 1],
    'double_array_value': [float('inf'), 5e-324],
    'string_array_value': ['', '\n', '\0'],
}
NAMES = (
    *('', '.', '\n', '\x1b[31m', 'a' * 10_000, 'nobody.has.this'),
    *('use_sim_time', 'start_type_description_service', 'qos_overrides./x.publisher.depth'),
    *(parameter.name for parameter in PARAMETERS),
)


@pytest.fixture(scope='module')
def get_detector(client, model):
    """Return a function that returns a running detector, and starts another if it has ended."""
    started = []

    def running_detector():
        if started and started[-1].program.alive:
            return started[-1]
        detector = Detector(client, {'engine_path': str(model), 'autostart': True})
        started.append(detector)
        detector._services.update(
            {
                name: client.node.create_client(kind, f'{detector.name}/{name}')
                for name, kind in ALL_SERVICES.items()
                if name not in SERVICES
            }
        )
        detector.connect()
        return detector

    yield running_detector
    for detector in started:
        detector.close()


@pytest.fixture
def detector(get_detector):
    return get_detector()


@pytest.fixture(autouse=True)
def _node_continues(detector):
    before = detector.program.count('Traceback')
    yield
    assert detector.program.alive
    assert detector.program.count('Traceback') == before
    assert detector.state() == 'active'
    assert detector.ask(picture_of((200, 0, 0))).detections


def ask(detector, service, **fields):
    """Call a service of ALL_SERVICES. Fail at once if the node has ended."""
    detector._get_ready()
    request = ALL_SERVICES[service].Request(**fields)
    future = detector._services[service].call_async(request)
    detector.client.spin_until(
        lambda: future.done() or not detector.program.alive, f'an answer of {service}'
    )
    assert detector.program.alive, request
    return future.result()


def parameter(name, type_number, **values):
    return Parameter(name=name, value=ParameterValue(type=type_number, **values))


@pytest.mark.parametrize('number', UNKNOWN_TYPES)
@pytest.mark.parametrize('name', ['confidence_threshold', 'class_filter', 'use_sim_time', 'x', ''])
def test_unknown_parameter_type_is_refused(detector, name, number, golden_messages):
    [result] = ask(detector, 'set_parameters', parameters=[parameter(name, number)]).results
    together = ask(detector, 'set_parameters_atomically', parameters=[parameter(name, number)])
    for refused in (result, together.result):
        assert not refused.successful
        golden_messages.add(refused.reason)
        assert str(number) in refused.reason


def test_unknown_parameter_type_does_not_affect_other_parameters(detector):
    def parameters(threshold):
        return [
            parameter('confidence_threshold', 3, double_value=threshold),
            parameter('class_filter', 255, double_value=0.5),
            parameter('max_detections', 2, integer_value=-1),
            parameter('iou_threshold', 3, double_value=threshold),
        ]

    answer = ask(detector, 'set_parameters', parameters=parameters(0.375))
    assert [result.successful for result in answer.results] == [True, False, False, True]
    assert detector.get('confidence_threshold') == detector.get('iou_threshold') == 0.375
    answer = ask(detector, 'set_parameters_atomically', parameters=parameters(0.5))
    assert not answer.result.successful
    assert detector.get('confidence_threshold') == detector.get('iou_threshold') == 0.375
    detector.set_or_fail(confidence_threshold=0.25, iou_threshold=0.45)


def test_parameter_that_a_request_mentions_twice_is_refused(detector, golden_messages):
    again = [parameter('iou_threshold', 3, double_value=value) for value in (0.5, 0.25)]
    answer = ask(detector, 'set_parameters', parameters=again)
    assert [result.successful for result in answer.results] == [False, False]
    golden_messages.add(answer.results[0].reason)
    answer = ask(detector, 'set_parameters_atomically', parameters=again)
    assert not answer.result.successful
    assert detector.get('iou_threshold') == 0.45
    # A request that names a long list 200 times would have a huge answer.
    assert ask(detector, 'get_parameters', names=['class_filter'] * 200).values == []


@pytest.mark.parametrize('service', ['set_parameters', 'set_parameters_atomically'])
def test_requests_with_random_parameters_are_answered(detector, service):
    rng = random.Random(service)
    live = ('confidence_threshold', 'iou_threshold', 'class_filter', 'use_sim_time')
    types = [*range(10), *UNKNOWN_TYPES]
    for _ in range(60):
        parameters = [
            # Live parameters get an unknown type, so that they do not change.
            parameter(name, 255 if name in live else rng.choice(types), **VALUES)
            for name in rng.choices(NAMES, k=rng.randrange(5))
        ]
        answer = ask(detector, service, parameters=parameters)
        if service == 'set_parameters':
            assert len(answer.results) == len(parameters)


STRANGE_NAMES = ([], [''], ['engine_path', 'x'], ['x' * 100_000], ['\0', '\n', '\x1b', '/', '.'])


@pytest.mark.parametrize(
    ('service', 'requests'),
    [
        ('get_parameters', [{'names': names} for names in STRANGE_NAMES]),
        ('get_parameter_types', [{'names': names} for names in STRANGE_NAMES]),
        ('describe_parameters', [{'names': names} for names in STRANGE_NAMES]),
        (
            'list_parameters',
            [
                {'prefixes': prefixes, 'depth': depth}
                for prefixes in (*STRANGE_NAMES, ['model'], ['model.', '.model'])
                for depth in (0, 1, 2**64 - 1)
            ],
        ),
        ('get_state', [{}]),
        ('get_available_states', [{}]),
        ('get_available_transitions', [{}]),
        ('get_transition_graph', [{}]),
        (
            'get_type_description',
            [
                {'type_name': name, 'type_hash': type_hash, 'include_type_sources': sources}
                for name in ('', '\n', 'x' * 10_000, 'sensor_msgs/msg/Image')
                for type_hash in ('', 'RIHS01_', 'RIHS01_' + '0' * 64, '\x1b')
                for sources in (False, True)
            ],
        ),
        (
            'change_state',
            [
                {'transition': Transition(id=number, label=label)}
                for number, label in itertools.chain(
                    ((number, '') for number in range(256)),
                    ((0, label) for label in ('', '\0', '\n', 'x' * 100_000, 'transition_error')),
                )
                # Other tests make the transitions that are possible in this state.
                if number
                not in (
                    Transition.TRANSITION_DEACTIVATE,
                    Transition.TRANSITION_ACTIVE_SHUTDOWN,
                )
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_every_service_answers_strange_requests(detector, service, requests):
    for fields in requests:
        answer = ask(detector, service, **fields)
        if service == 'change_state':
            assert not answer.success, fields
        if service == 'get_state':
            assert answer.current_state.id == State.PRIMARY_STATE_ACTIVE


def test_clock_before_1970_is_logged(detector):
    # rclpy raises ValueError for such a time in its own callback.
    clock = detector.client.node.create_publisher(Clock, '/clock', 10)
    detector.set_or_fail(use_sim_time=True)
    try:
        detector.client.spin_until(clock.get_subscription_count, 'a subscription to /clock')
        message = Clock()
        message.clock.sec = -1

        def noticed():
            clock.publish(message)
            return detector.program.count('ValueError') or not detector.program.alive

        detector.client.spin_until(noticed, 'a log line')
        assert detector.program.alive
        assert 'ValueError' in detector.wait_for_log('ERROR', '/clock')
    finally:
        with contextlib.suppress(AssertionError):
            detector.set_or_fail(use_sim_time=False)
        detector.client.node.destroy_publisher(clock)
        # This error is logged with a traceback.
        detector.program.forget()


@pytest.mark.parametrize('rate_hz', [1e-10, 5e-324, 0.00999])
def test_rate_below_the_limit_is_refused(detector, rate_hz, golden_messages):
    [(successful, reason)] = detector.set({'debug_image.max_rate_hz': rate_hz})
    assert not successful
    golden_messages.add(reason)
