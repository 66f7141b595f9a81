# SPDX-License-Identifier: Apache-2.0
"""Tests of autostart over DDS: the node configures itself at its start and after faults."""

import threading

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.parameter import Parameter

from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, command_image
from support.programs import script
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime.executor import GuardedExecutor

pytest_plugins = ['support.nodes.graph_fixtures']

ERROR = DiagnosticStatus.ERROR


def wait_for_state(detector, state):
    detector.client.spin_until(lambda: detector.state() == state, f'state {state}')


@pytest.mark.parametrize(
    'number', [scripted_node.RAISE_IN_COLLECT, scripted_node.RAISE_IN_PUBLISH]
)
def test_node_works_again_after_a_fault(start_detector, number):
    detector = start_detector({'autostart': True}, command=script('nodes/scripted_node.py'))
    detector.connect(command_image(0, frame_id=HANDSHAKE))

    detector.camera.publish(command_image(number))
    detector.wait_for_status(
        lambda status, values: (
            status.level == ERROR
            and values['state'] == 'unconfigured'
            and '1 attempt' in status.message
        ),
        'an ERROR status that announces an attempt',
    )

    detector.wait_for_log('WARN', 'the next attempt follows')
    wait_for_state(detector, 'active')
    detector.connect(command_image(0, frame_id=HANDSHAKE))
    assert len(detector.ask(command_image(0)).detections) == 1
    detector.wait_for_status(
        lambda status, values: status.level != ERROR and values['state'] == 'active',
        'a status without the old error',
    )


def test_node_starts_when_its_model_appears(start_detector, model, tmp_path):
    path = tmp_path / 'late.onnx'
    detector = start_detector({'engine_path': str(path), 'autostart': True})
    detector.wait_for_status(
        lambda status, _: status.level == ERROR and 'attempt' in status.message, 'an attempt'
    )

    manifest = model.with_name(model.name + '.json')
    path.with_name(path.name + '.json').write_bytes(manifest.read_bytes())
    path.write_bytes(model.read_bytes())

    detector.connect()
    # A transition from outside ends the attempts.
    detector.transition('deactivate', 'cleanup', 'configure')
    assert detector.state() == 'inactive'


def test_node_waits_for_a_parameter_after_a_config_error(start_detector, model):
    settings = {'engine_path': str(model), 'class_filter': ['dog'], 'autostart': True}
    detector = start_detector(settings)
    detector.wait_for_status(
        lambda status, _: status.level == ERROR and 'ros2 param set' in status.message,
        'an ERROR status that asks for a parameter',
    )

    detector.set_or_fail(class_filter=['red'])

    detector.connect()


def test_model_that_cannot_be_closed_does_not_end_the_attempts(client):
    may_open, opened, closed = threading.Event(), [], []

    class Pipeline(scripted_node.ScriptedPipeline):
        def __init__(self, path, options):
            assert may_open.wait(20)
            super().__init__(path, options)
            opened.append(path)

        def close(self):
            closed.append(self)
            if len(closed) == 1:
                raise RuntimeError('close broke')

    node = DetectorNode(
        open_pipeline=Pipeline,
        context=client.context,
        namespace='cannot_be_closed',
        parameter_overrides=[
            Parameter('autostart', value=True),
            Parameter('engine_path', value='first'),
            Parameter('cameras', value=['front', 'rear']),
            Parameter('device_ids', value=[0, 1]),
        ],
    )
    executor = GuardedExecutor(node)

    def spin_until(condition, what):
        client.spin_until(lambda: executor.spin_once(0.1) or condition(), what)

    try:
        spin_until(
            lambda: any(thread.name == 'open_model' for thread in threading.enumerate()),
            'a thread that loads the model',
        )
        node.set_parameters([Parameter('engine_path', value='second')])
        may_open.set()
        spin_until(lambda: node.state_label == 'active', 'an active node')

        assert opened == ['first', 'first', 'second', 'second']
        assert len(closed) == 2
    finally:
        node.close()
        executor.shutdown()
