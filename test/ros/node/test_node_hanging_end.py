# SPDX-License-Identifier: Apache-2.0
"""Tests of signals to a node in which native code does not return.

The documented limit is 5 s. The tests wait longer, because the machine may be busy.
"""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from support.nodes.graph import HANDSHAKE, command_image
from support.nodes.scripted_node import RAISE_IN_ENQUEUE
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.unmeasured

STEPS = ('load', 'reload', 'frame', 'close', 'shutdown')
#: The documented exit code if the guard process must kill the node.
KILLED = -signal.SIGKILL


def start_hanging(start_detector, step, lock, **parameters):
    command = [*script('nodes/hanging_node.py'), step, lock]
    return start_detector({'engine_path': 'any', **parameters}, command=command)


def remaining_regions(program):
    names = re.findall(r'^region (\S+)', program.output, re.MULTILINE)
    assert names
    return [name for name in names if Path('/dev/shm', name).exists()]


def assert_ended(program, code):
    assert program.wait() == code, program.output
    assert not remaining_regions(program)
    assert 'File "' not in program.output
    assert 'Traceback' not in program.output
    assert 'Thread 0x' not in program.output
    if code:
        assert len(re.findall('^error: ', program.output, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ('step', 'number'),
    [
        *((step, signal.SIGTERM) for step in STEPS),
        ('load', signal.SIGINT),
        ('load', signal.SIGHUP),
    ],
)
def test_signal_ends_a_node_in_which_native_code_hangs(start_detector, step, number):
    detector = start_hanging(start_detector, step, 'free', autostart=True)
    bring_to_step(detector, step)
    detector.program.send(number)
    # The node has closed when the interpreter shuts down, so that only the guard is left.
    assert_ended(detector.program, KILLED if step == 'shutdown' else 128 + number)


@pytest.mark.parametrize('step', ['load', 'close', 'shutdown'])
def test_signal_ends_a_node_in_which_native_code_keeps_the_interpreter_lock(start_detector, step):
    detector = start_hanging(start_detector, step, 'locked', autostart=True)
    bring_to_step(detector, step)
    detector.program.send(signal.SIGTERM)
    # Without the lock, the thread `signals` may still end a node that hangs after the signal.
    assert_ended(detector.program, KILLED)


@pytest.mark.parametrize(('lock', 'code'), [('free', 128 + signal.SIGTERM), ('locked', KILLED)])
def test_signal_ends_a_node_whose_transition_hangs(start_detector, lock, code):
    detector = start_hanging(start_detector, 'load', lock)
    detector.request_transition('configure')
    detector.program.wait_for_output('hanging in load')
    detector.program.send(signal.SIGTERM)
    assert_ended(detector.program, code)


def test_signal_ends_a_node_whose_cleanup_hangs(start_detector):
    detector = start_hanging(start_detector, 'close', 'free')
    detector.transition('configure')
    detector.request_transition('cleanup')
    detector.program.wait_for_output('hanging in close')
    detector.program.send(signal.SIGTERM)
    assert_ended(detector.program, 128 + signal.SIGTERM)


def test_signal_ends_a_node_that_hangs_while_it_handles_a_fault(start_detector):
    detector = start_hanging(start_detector, 'close', 'free', autostart=True)
    detector.program.wait_for_output('detector]: active')
    detector.client.spin_until(
        lambda: send(detector, RAISE_IN_ENQUEUE) and detector.program.count('hanging in close'),
        'a fault',
    )
    detector.program.send(signal.SIGTERM)
    assert detector.program.wait() == 128 + signal.SIGTERM
    assert not remaining_regions(detector.program)
    assert 'Thread 0x' not in detector.program.output


def bring_to_step(detector, step):
    """Let the node hang in a step, or prepare it to hang after a signal."""
    if step == 'load':
        detector.program.wait_for_output('hanging in load')
        return
    detector.program.wait_for_output('detector]: active')
    if step in ('reload', 'frame'):
        detector.client.spin_until(
            lambda: send(detector) and detector.program.count(f'hanging in {step}'), 'an image'
        )


def send(detector, order=0):
    detector.camera.publish(command_image(order, frame_id=HANDSHAKE))
    return True


def test_two_hanging_gpus_end_within_one_limit(start_detector):
    parameters = {'autostart': True, 'cameras': ['a', 'b'], 'device_ids': [0, 1]}
    detector = start_hanging(start_detector, 'close', 'free', **parameters)
    detector.program.wait_for_output('detector]: active')
    detector.program.send(signal.SIGTERM)
    assert_ended(detector.program, 128 + signal.SIGTERM)


def test_ignored_sighup_stays_ignored(start_detector, model):
    command = ['nohup', *script('nodes/scripted_node.py')]
    detector = start_detector(command=command)
    detector.transition('configure', 'activate')
    detector.program.send(signal.SIGHUP)
    detector.transition('deactivate', 'cleanup')
    detector.program.send(signal.SIGTERM)
    assert detector.program.wait() == 0


def test_guard_ends_with_its_node(start_detector, model):
    detector = start_detector({'engine_path': str(model)})
    detector.state()
    guards = guards_of(detector.program.pid)
    assert len(guards) == 1
    detector.program.send(signal.SIGKILL)
    detector.program.wait()
    detector.client.spin_until(lambda: not alive(guards[0]), 'the end of the guard')


def guards_of(pid):
    listed = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True)
    return [int(word) for word in listed.stdout.split()]


def alive(pid):
    state = Path(f'/proc/{pid}/stat')
    try:
        return state.read_text().rpartition(') ')[2][0] != 'Z'
    except OSError:
        return False
