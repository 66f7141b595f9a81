"""A program that is forked does what it does when it is started."""

import os
import signal
import subprocess

import pytest

from support import forked
from support.forked import ForkedProcess, can_fork
from support.programs import DEADLINE_S, executable

REPLAY = [executable('replay_images'), 'FOLDER', '--wait-for-subscribers', '1']


@pytest.fixture
def waiting(tmp_path):
    """Return a function that forks a program which waits for a subscriber."""
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
def test_fork_prints_and_returns_what_a_start_does(name, arguments):
    command = [executable(name), *arguments]
    assert can_fork(command, os.environ)

    fork = forked.run(command, timeout=DEADLINE_S)

    start = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (fork.returncode, fork.stdout, fork.stderr) == (
        start.returncode,
        start.stdout,
        start.stderr,
    )


def test_environment_that_changes_imports_is_started(monkeypatch):
    command = [executable('doctor')]
    assert can_fork(command, {**os.environ, 'ROS_DOMAIN_ID': '7'})
    assert not can_fork(command, {**os.environ, 'PYTHONPATH': '/elsewhere'})
    assert not can_fork(['/bin/doctor'], os.environ)


def test_signal_that_ended_a_fork_is_its_code(waiting):
    process = waiting()
    assert process.poll() is None

    process.kill()

    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    process.terminate()  # has no effect any more


def test_fork_ends_by_its_timer(waiting):
    assert waiting(longest_s=0.2).wait(DEADLINE_S) == -signal.SIGALRM


def test_fork_that_lives_too_long_is_killed(monkeypatch, tmp_path):
    command = [part.replace('FOLDER', str(tmp_path)) for part in REPLAY]
    (tmp_path / 'a.png').write_bytes(b'')

    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(command, timeout=0.1)
