# SPDX-License-Identifier: Apache-2.0
"""Test that a forked program behaves like a started program."""

import os
import signal
import subprocess

import pytest

from support import forked
from support.forked import ForkedProcess, can_fork
from support.programs import DEADLINE_S, executable

REPLAY = [executable('replay_images'), 'FOLDER', '--wait-for-subscribers', '1']


@pytest.fixture
def fork_waiting_program(tmp_path):
    """Return a function that forks replay_images, which waits for a subscriber."""
    (tmp_path / 'a.png').write_bytes(b'')
    command = [part.replace('FOLDER', str(tmp_path)) for part in REPLAY]
    return lambda **options: ForkedProcess(command, dict(os.environ), **options)


@pytest.mark.parametrize(
    ('name', 'arguments'),
    [
        ('detector_node', ['--ros-args', '-p', 'confidence_threshold:=2.5']),
        ('detector_node', ['--help']),
        ('replay_images', ['missing', '--rate', '0']),
        ('doctor', ['--image-topic']),
    ],
)
def test_fork_has_the_output_and_exit_code_of_a_start(name, arguments):
    command = [executable(name), *arguments]
    assert can_fork(command, os.environ)

    fork = forked.run(command, timeout=DEADLINE_S)

    start = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (fork.returncode, fork.stdout, fork.stderr) == (
        start.returncode,
        start.stdout,
        start.stderr,
    )


def test_program_is_not_forked_if_the_environment_changes_imports(monkeypatch):
    command = [executable('doctor')]
    assert can_fork(command, {**os.environ, 'ROS_DOMAIN_ID': '7'})
    assert not can_fork(command, {**os.environ, 'PYTHONPATH': '/elsewhere'})
    assert not can_fork(['/bin/doctor'], os.environ)


def test_exit_code_of_a_killed_fork_is_the_signal(fork_waiting_program):
    process = fork_waiting_program()
    assert process.poll() is None

    process.kill()

    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    process.terminate()  # has no effect, because the process has ended


def test_timer_ends_a_fork(fork_waiting_program):
    assert fork_waiting_program(longest_s=0.2).wait(DEADLINE_S) == -signal.SIGALRM


def test_fork_that_lives_too_long_is_killed(monkeypatch, tmp_path):
    command = [part.replace('FOLDER', str(tmp_path)) for part in REPLAY]
    (tmp_path / 'a.png').write_bytes(b'')

    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(command, timeout=0.1)
