# SPDX-License-Identifier: Apache-2.0
"""With Ray, detect_bag writes the same bytes as one process, also after kills and Ctrl-C.

Each test starts a real Ray on this machine.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.detect_bags import (
    camera_rows,
    files_of,
    held_detect_bag,
    run_detect_bag,
    write_bag,
)
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from support.programs import executable
from support.waiting import DEADLINE_S, wait_until

pytestmark = [needs(name) for name in ('onnx', 'rosbags', 'mcap')]
OPTIONS = '--part-s', '2'
RUN_PARTS = 'run_parts_with_ray'
#: Ray gives up its start after 60 s, which a busy machine may need.
PATIENT_START = {'RAY_raylet_start_wait_time_s': '240'}


@pytest.fixture
def model(tmp_path):
    return write_picture_model(tmp_path / 'picture.onnx')


def bag_of(path, count):
    pictures = [picture_with([(20 + number % 20, 20, 10, 12, 0.8)]) for number in range(count)]
    return write_bag(path, camera_rows('/image_raw', pictures, hz=100))


class Command:
    """Runs a command in a session of its own, so that its processes can be found."""

    def __init__(self, *words, environment=None):
        self._process = subprocess.Popen(
            list(map(str, words)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **PATIENT_START, **(environment or {})},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [self._process.pid, *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def wait_for(self, found, what):
        """Wait until a function returns a true value, and return it."""

        def found_or_ended():
            if value := found():
                return value
            if self._process.poll() is not None:
                raise AssertionError(self._process.communicate()[0])
            return None

        return wait_until(found_or_ended, what)

    def processes(self, name=''):
        """Return processes of this session except the command itself, by a part of their name."""
        return [
            pid
            for pid, session, line in processes()
            if session == self._process.pid and pid != session and name in line
        ]

    def workers(self):
        """Return workers of Ray, also those that left the session."""
        family = {self._process.pid}
        rows = [(pid, parent_of(pid), line) for pid, _, line in processes()]
        for _ in range(4):
            family |= {pid for pid, parent, _ in rows if parent in family}
        return [pid for pid, _, line in rows if pid in family and 'ray::_Actor' in line]

    def interrupt(self):
        """Send Ctrl-C as a terminal does: to all processes of the group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self):
        """Wait for the end. Return the exit code and the output."""
        output, _ = self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode, output


def processes():
    """Yield (pid, session, command line) of all processes that are not zombies."""
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            words = (folder / 'stat').read_text().rpartition(') ')[2].split()
            if words[0] != 'Z':
                line = (folder / 'cmdline').read_text(errors='replace')
                yield int(folder.name), int(words[3]), line


def parent_of(pid):
    with contextlib.suppress(OSError):
        return int(Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2].split()[1])


def results_of(folder, bags):
    return {bag.name: files_of(folder / bag.name) for bag in bags}


def ten_bags(folder):
    """Return ten bags; the fifth is truncated."""
    bags = [bag_of(folder / f'drive_{number}', 400) for number in range(10)]
    file = next(bags[4].glob('*.mcap'))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return bags


@needs('ray')
@pytest.mark.unmeasured
def test_killed_worker_and_damaged_bag_change_nothing(model, tmp_path):
    bags = ten_bags(tmp_path)
    one, two = tmp_path / 'one', tmp_path / 'two'
    assert run_detect_bag(model, *bags, '--output', one, *OPTIONS) == 1
    arguments = model, *bags, '--output', two, *OPTIONS, '--workers', 2, '--ray'
    gate = tmp_path / 'gate'
    # The command waits after 10 of its 20 parts, so that a worker is killed before the last part.
    with Command(*held_detect_bag(gate, 10, *arguments, function=RUN_PARTS)) as command:
        command.wait_for(lambda: list(two.glob('drive_1/drive_1_*.mcap')), 'files of a bag')
        for pid in command.wait_for(command.workers, 'a worker')[:1]:
            os.kill(pid, signal.SIGKILL)
        gate.touch()
        code, output = command.end()
    assert code == 1, output
    assert results_of(two, bags) == results_of(one, bags)
    assert not list(two.glob('*/.parts'))
    times = {path: path.stat().st_mtime_ns for path in two.rglob('*') if path.is_file()}
    assert run_detect_bag(*arguments) == 1
    assert {path: path.stat().st_mtime_ns for path in times} == times


@needs('ray')
@pytest.mark.unmeasured
def test_ctrl_c_ends_all_processes_and_the_command_goes_on(model, tmp_path):
    bags = [bag_of(tmp_path / 'long', 6000)]
    arguments = model, *bags, *OPTIONS
    out = tmp_path / 'two/long'
    options = '--output', out, '--workers', 2, '--ray'
    # The command waits after 20 of its 30 parts, so that it does not end before Ctrl-C.
    held = held_detect_bag(tmp_path / 'gate', 20, *arguments, *options, function=RUN_PARTS)
    with Command(*held) as command:
        command.wait_for((out / 'long_1.mcap').exists, 'the second file')
        workers = command.wait_for(command.workers, 'a worker')
        command.interrupt()
        code, output = command.end()

        def is_left():
            left = [pid for pid, _, line in processes() if pid in workers and 'ray' in line]
            return left or command.processes()

        wait_until(lambda: not is_left(), 'the end of all processes')
    assert code == 130, output
    assert 'Traceback' not in output
    assert not (out / 'long_29.mcap').exists()
    assert run_detect_bag(*arguments, '--output', out) == 0
    assert run_detect_bag(*arguments, '--output', tmp_path / 'one/long') == 0
    assert files_of(out) == files_of(tmp_path / 'one/long')


@contextlib.contextmanager
def cluster(token):
    """Start a cluster of one machine with two workers. Yield its address."""
    script = Path(sys.executable).parent / 'ray'
    command = [str(script), 'start', '--head', '--block', '--port=0', '--num-cpus=2']
    command += ['--node-ip-address=127.0.0.1', '--include-dashboard=false']
    environment = {**os.environ, **PATIENT_START, **token, 'RAY_USAGE_STATS_ENABLED': '0'}
    with subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        try:
            port, text = None, ''
            while port is None and (line := process.stdout.readline()):
                text += line
                # Ray prints the command that adds a machine, with the port that Ray has chosen.
                port = re.search(r"--address='.*:(\d+)'", line)
            assert port is not None, text
            yield f'127.0.0.1:{port[1]}'
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@needs('ray')
@pytest.mark.unmeasured
def test_cluster_runs_parts_for_those_who_have_its_token(model, tmp_path):
    source = bag_of(tmp_path / 'drive', 400)
    token = {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': secrets.token_hex(32)}
    other = {**token, 'RAY_AUTH_TOKEN': secrets.token_hex(32)}
    out = tmp_path / 'two/drive'
    with cluster(token) as address:
        arguments = model, source, '--output', out, *OPTIONS, '--ray-address', address
        for workers, environment, expected in ((3, token, 1), (2, other, 1), (2, token, 0)):
            words = executable('detect_bag'), *arguments, '--workers', workers
            with Command(*words, environment=environment) as command:
                code, output = command.end()
            assert code == expected, output
            assert 'Traceback' not in output
            assert out.exists() is (expected == 0) or not list(out.glob('*.mcap'))
    assert run_detect_bag(model, source, '--output', tmp_path / 'one/drive', *OPTIONS) == 0
    assert files_of(out) == files_of(tmp_path / 'one/drive')


def test_missing_ray_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    source = bag_of(tmp_path / 'drive', 3)
    assert run_detect_bag(model, source, '--output', tmp_path / 'out', '--ray') == 2
    assert not (tmp_path / 'out').exists()


def test_devices_are_refused(model, tmp_path):
    source = bag_of(tmp_path / 'drive', 3)
    options = '--output', tmp_path / 'out', '--ray', '--device', 0
    assert run_detect_bag(model, source, *options) == 2
