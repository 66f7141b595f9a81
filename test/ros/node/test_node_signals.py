# SPDX-License-Identifier: Apache-2.0
"""Tests of SIGINT and SIGTERM, which end the process cleanly in every state."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import pytest

from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, picture_of
from support.programs import DEADLINE_S, Program, script
from support.ties import tie

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.unmeasured


def assert_clean_end(detector, number):
    detector.program.send(number)
    assert detector.program.wait() == 0
    assert 'Traceback' not in detector.program.output
    assert 'rror' not in detector.program.output


@pytest.mark.parametrize(
    ('number', 'transitions'),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ('configure',)),
        (signal.SIGINT, ('configure', 'activate')),
        (signal.SIGTERM, ('configure', 'activate')),
        (signal.SIGHUP, ()),
        (signal.SIGHUP, ('configure', 'activate')),
        (signal.SIGINT, ('configure', 'shutdown from inactive')),
    ],
)
def test_signal_ends_the_node_cleanly_in_each_state(start_detector, model, number, transitions):
    detector = start_detector({'engine_path': str(model)})
    assert detector.state() == 'unconfigured'
    detector.transition(*transitions)
    assert_clean_end(detector, number)


#: Runs detector_node with a longer time limit after a signal, because the machine may be busy.
PATIENT_NODE = """
import sys

from trt_perception import commands
from trt_perception.ros.runtime import process

process.SIGNAL_LIMIT_S = 60.0
sys.exit(commands.detector_node())
"""


def test_closed_terminal_ends_the_node_cleanly(model):
    """The node gets SIGHUP, and can no longer write to its output."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, '-c', PATIENT_NODE, '--ros-args', '-p', f'engine_path:={model}'],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    tie(process.pid)
    os.close(its)
    output = b''
    while b'node up' not in output:
        output += os.read(ours, 4096)

    os.close(ours)

    assert process.wait(DEADLINE_S) == 0


def test_signal_after_a_failed_activate_ends_the_node_cleanly(start_detector, model, tmp_path):
    flag = tmp_path / 'flag'
    command = [*script('nodes/fault_node.py'), str(flag), 'stand-in']
    detector = start_detector({'engine_path': str(model)}, command=command)
    detector.transition('configure')
    flag.write_text('no thread left')
    assert not detector.change_state('activate')
    detector.program.wait_for_output("can't start new thread")
    detector.program.forget()
    assert_clean_end(detector, signal.SIGTERM)


def test_signal_under_load_ends_the_node_cleanly(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.transition('configure', 'activate')
    slow = picture_of((0, 0, scripted_node.SLOW))
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE))

    def is_image_replaced():
        for _ in range(10):
            detector.camera.publish(slow)
        return any(int(v.get('dropped: replaced', 0)) for v in detector.take_statuses())

    detector.client.spin_until(is_image_replaced, 'a replaced image')
    for _ in range(10):
        detector.camera.publish(slow)
    assert_clean_end(detector, signal.SIGINT)
    assert detector.program.count('pipeline closed') == 1


def test_signal_stops_configure_between_two_steps(start_detector):
    parameters = {'engine_path': 'wait for a signal in warm-up', 'autostart': True}
    detector = start_detector(parameters, command=script('nodes/scripted_node.py'))
    detector.program.wait_for_output('enqueue 114\n')
    assert detector.state() == 'unconfigured'  # the node answers while it loads the model
    assert_clean_end(detector, signal.SIGTERM)
    # Only one of three slots was warmed up: no step began after the signal.
    assert detector.program.count('enqueue 114\n') == 1
    assert detector.program.count('pipeline closed') == 1


def test_signal_while_the_first_image_opens_the_model_again_ends_the_node_cleanly(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.transition('configure', 'activate')
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE))
    detector.enqueue(scripted_node.UNTIL_SIGNAL)
    assert_clean_end(detector, signal.SIGINT)
    assert detector.program.count('pipeline closed') == 1


def test_signals_during_interpreter_shutdown_are_ignored(start_detector, model):
    command = [*script('nodes/late_signal_node.py'), 'detector_node']
    detector = start_detector({'engine_path': str(model)}, command=command)
    detector.transition('configure', 'activate')
    assert_clean_end(detector, signal.SIGINT)


def test_signals_during_shutdown_keep_the_exit_code_of_wrong_parameters():
    ros_arguments = ('--ros-args', '-p', 'nothing:=1')
    program = Program([*script('nodes/late_signal_node.py'), 'detector_node', *ros_arguments])
    assert program.wait() == 2
    assert 'Traceback' not in program.output


def test_second_signal_ends_a_node_that_hangs_in_its_start():
    program = Program(script('nodes/stuck_node.py'))
    program.wait_for_output('stuck')
    try:
        program.send(signal.SIGINT)
        end = time.monotonic() + DEADLINE_S
        while program.alive and time.monotonic() < end:
            time.sleep(0.1)
            program.send(signal.SIGTERM)
        assert not program.alive
        assert program.wait() == 128 + signal.SIGTERM
    finally:
        program.send(signal.SIGKILL)


FAILING_CLOSE = """
import sys

import rclpy

from trt_perception.ros.runtime.process import run_node

def close(node):
    raise RuntimeError('closing broke')

sys.exit(run_node(lambda: rclpy.create_node('ends_badly'), close, finished=lambda _: True))
"""


def test_exception_while_closing_is_logged():
    program = Program([sys.executable, '-c', FAILING_CLOSE])
    assert program.wait() == 1
    assert re.search(r'\[ends_badly\]: .*Traceback', program.output)
    assert 'closing broke' in program.output


def test_second_signal_ends_a_node_that_hangs(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.transition('configure', 'activate')
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE))
    detector.enqueue(scripted_node.NEVER)
    detector.program.send(signal.SIGINT)
    # A collect call shows that the node closes, because the worker now waits for the frame.
    detector.program.wait_for_output(f'collect {scripted_node.NEVER}\n')
    # A signal right after the first one is ignored, so send signals until the process ends.
    while detector.program.alive:
        detector.program.send(signal.SIGTERM)
        time.sleep(0.1)
    assert detector.program.wait() == 128 + signal.SIGTERM


def test_two_signals_at_once_count_as_one(start_detector):
    # After Ctrl-C, the terminal signals the process group, and launch signals the node again.
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.transition('configure', 'activate')
    detector.connect(picture_of((0, 0, 0), frame_id=HANDSHAKE))
    detector.enqueue(scripted_node.SLOW)
    detector.program.send(signal.SIGTERM)
    detector.program.send(signal.SIGINT)
    assert detector.program.wait() == 0
    assert detector.program.count('pipeline closed') == 1
