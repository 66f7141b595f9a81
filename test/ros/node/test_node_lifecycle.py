# SPDX-License-Identifier: Apache-2.0
"""Tests of the lifecycle over services: states, transitions and failures."""

import shutil

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from rclpy.parameter import Parameter

from support.models.tiny_model import expected_detections
from support.nodes import scripted_node
from support.nodes.graph import TRANSITIONS, TWO_LIFECYCLES, Detector, found_in, picture_of
from trt_perception.ros.detector_node import DetectorNode

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

RED = (200, 0, 0)


def test_two_lifecycles_reach_the_expected_states(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'onnx_provider': 'cpu'})
    graph = detector.client.node
    image, detections = detector.topic('image'), detector.topic('detections')
    assert detector.state() == 'unconfigured'
    for transition, state in TWO_LIFECYCLES:
        assert detector.change_state(transition)
        assert detector.state() == state
        _, values = detector.wait_for_status(
            lambda status, values, state=state: (
                values['state'] == state and status.level != DiagnosticStatus.ERROR
            ),
            f'diagnostics of state {state}',
        )
        assert values.get('provider') == (None if state == 'unconfigured' else 'cpu')
        # Only an active node subscribes to images.
        detector.client.spin_until(
            lambda state=state: graph.count_subscribers(image) == (state == 'active'),
            f'the subscribers in state {state}',
        )
        if state == 'active':
            detector.connect()
            answer = detector.ask(picture_of(RED))
            assert len(found_in(answer)) == len(expected_detections(RED, (128, 96)))
    detector.client.spin_until(lambda: not graph.count_publishers(detections), 'no publisher')


@pytest.mark.parametrize('state', ['unconfigured', 'inactive'])
def test_shutdown_ends_finalized(start_detector, model, state):
    detector = start_detector({'engine_path': str(model)})
    detector.bring_to(state)
    assert detector.change_state(f'shutdown from {state}')
    assert detector.state() == 'finalized'
    assert not detector.change_state('configure')


# The transitions that each state allows.
ALLOWED = {
    'unconfigured': {'configure', 'shutdown from unconfigured'},
    'inactive': {'activate', 'cleanup', 'shutdown from inactive'},
    'active': {'deactivate', 'shutdown from active'},
    'finalized': set(),
}


@pytest.fixture(scope='module')
def detector_for_refusals(client, model):
    detector = Detector(client, {'engine_path': str(model)})
    yield detector
    detector.close()


@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active', 'finalized'])
def test_impossible_transitions_are_refused(detector_for_refusals, state):
    detector = detector_for_refusals
    transition_to = {
        'inactive': 'configure',
        'active': 'activate',
        'finalized': 'shutdown from active',
    }
    if state in transition_to:
        detector.transition(transition_to[state])
    assert detector.state() == state
    for transition in sorted(TRANSITIONS.keys() - ALLOWED[state]):
        assert detector.change_state(transition) is False, transition
        assert detector.state() == state
    for number, label in ((99, ''), (0, 'no such transition')):
        request = Transition(id=number, label=label)
        answer = detector.call('change_state', transition=request)
        assert answer.success is False
    assert detector.state() == state
    assert 'Traceback' not in detector.program.output


def test_failed_configure_reports_its_cause_and_can_be_repeated(
    start_detector, model, tmp_path, golden_messages
):
    corrupt = tmp_path / 'corrupt.onnx'
    corrupt.write_bytes(b'this is not a protocol buffer')
    detector = start_detector()
    for path in ('', tmp_path, tmp_path / 'missing.onnx', tmp_path / 'model.engine', corrupt):
        detector.set_or_fail(engine_path=str(path))
        detector.program.forget()
        assert detector.change_state('configure') is False, path
        assert detector.state() == 'unconfigured', path
        status, values = detector.wait_for_status(lambda *_: True, 'a status')
        assert (status.level, values['state']) == (DiagnosticStatus.ERROR, 'unconfigured')
        golden_messages.add(status.message)
        detector.program.wait_for_output(status.message.replace('\n', '\n    '))
        # An expected error has a message without a traceback.
        assert 'Traceback' not in detector.program.output
    detector.set_or_fail(engine_path=str(model))
    detector.transition('configure', 'activate')
    detector.wait_for_status(
        lambda status, _: status.level != DiagnosticStatus.ERROR, 'a status without the old error'
    )
    detector.connect()
    assert detector.ask(picture_of(RED)).detections


def test_parameters_replace_a_missing_manifest(start_detector, model, tmp_path, golden_messages):
    bare = tmp_path / 'bare.onnx'
    shutil.copy(model, bare)
    detector = start_detector(
        {
            'engine_path': str(bare),
            'autostart': True,
            'model.resize': 'letterbox',
            'model.color_order': 'bgr',
            'model.scale': 1 / 255,
            'model.decoder': 'dense',
            'model.class_names': ['blau', 'grün', 'rot'],
        }
    )
    detector.connect()
    # With the reversed channel order, the first class detects blue.
    [first, _] = found_in(detector.ask(picture_of((0, 0, 200))))
    assert first[0] == 'blau'
    assert first[1] == pytest.approx(200 / 255, abs=1e-5)
    [configured_line] = [
        line for line in detector.program.output.splitlines() if 'configured: ' in line
    ]
    assert configured_line.startswith('[INFO]')
    golden_messages.add(configured_line.partition('detector]: ')[2])
    # Only the node's lines count: on some distributions the middleware logs warnings.
    lines = detector.program.output.splitlines()
    assert not [line for line in lines if '[WARN]' in line and 'detector]: ' in line]


@pytest.mark.parametrize(
    ('parameters', 'source'),
    [
        ({}, 'manifest says'),
        ({'confidence_threshold': 0.4}, 'manifest says'),  # no value of the model
        ({'model.scale': 0.5}, 'manifest and the parameters say'),
    ],
)
def test_log_says_whether_parameters_describe_the_model(client, capfd, parameters, source):
    node = DetectorNode(
        open_pipeline=scripted_node.ScriptedPipeline,
        context=client.context,
        namespace='described',
        parameter_overrides=[
            Parameter(name, value=value)
            for name, value in {'engine_path': 'none', **parameters}.items()
        ],
    )
    node.trigger_configure()
    node.close()
    [line] = [line for line in capfd.readouterr().err.splitlines() if 'configured: ' in line]
    assert line.endswith(f'(as the {source})')


def test_node_answers_after_a_failed_autostart(start_detector, model):
    detector = start_detector({'engine_path': '/missing.onnx', 'autostart': True})
    detector.wait_for_status(
        lambda status, _: status.level == DiagnosticStatus.ERROR, 'an ERROR status'
    )
    assert detector.state() == 'unconfigured'
    assert not detector.change_state('configure')  # this transition ends the attempts of autostart
    detector.set_or_fail(engine_path=str(model))
    detector.transition('configure', 'activate', 'deactivate', 'cleanup')
    # Autostart does not run again after cleanup.
    detector.transition('configure', 'activate')


def test_values_of_a_runtime_that_changed_after_configure_are_shown(client):
    """A model that is opened again for the first image may run with another provider."""

    class Pipeline(scripted_node.ScriptedPipeline):
        diagnostic_values = (('provider', 'tensorrt'),)

    node = DetectorNode(
        open_pipeline=Pipeline,
        context=client.context,
        namespace='runtime',
        parameter_overrides=[Parameter('engine_path', value='none')],
    )
    messages, subscription = client.subscribe(DiagnosticArray, '/diagnostics')
    node.trigger_configure()
    for provider in ('tensorrt', 'cpu'):
        Pipeline.diagnostic_values = (('provider', provider),)

        def is_shown(provider=provider):
            node._monitor.publish()
            statuses = [
                status
                for message in messages
                for status in message.status
                if status.name.startswith('/runtime/')
            ]
            return any(
                (pair.key, pair.value) == ('provider', provider)
                for status in statuses
                for pair in status.values
            )

        client.spin_until(is_shown, provider)
    client.node.destroy_subscription(subscription)
    node.close()
