# SPDX-License-Identifier: Apache-2.0
"""With Ray, detect_bag writes the same bytes as one process, also after kills and Ctrl-C.

Each test starts a real Ray on this machine.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.detect_bags import camera_rows, files_of, run_detect_bag, write_bag
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from support.programs import DEADLINE_S, executable

pytestmark = [needs(name) for name in ('onnx', 'rosbags', 'mcap')]
OPTIONS = '--part-s', '2'


@pytest.fixture
def model(tmp_path):
    return write_picture_model(tmp_path / 'picture.onnx')


def bag_of(path, count):
    pictures = [picture_with([(20 + number % 20, 20, 10, 12, 0.8)]) for number in range(count)]
    return write_bag(path, camera_rows('/image_raw', pictures, hz=100))


class Command:
    """Runs detect_bag in a session of its own, so that its processes can be found."""

    def __init__(self, *arguments, environment=None):
        self._process = subprocess.Popen(
            [executable('detect_bag'), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [self._process.pid, *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def wait_for(self, found):
        """Wait until a function returns a true value, and return it."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self._process.poll() is None:
            if value := found():
                return value
            time.sleep(0.01)
        raise AssertionError(self._process.communicate()[0])

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
    with Command(*arguments) as command:
        command.wait_for(lambda: list(two.glob('drive_1/drive_1_*.mcap')))
        for pid in command.wait_for(command.workers)[:1]:
            os.kill(pid, signal.SIGKILL)
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
    with Command(*arguments, '--output', out, '--workers', 2, '--ray') as command:
        command.wait_for(lambda: list(out.glob('long_1.mcap')))
        workers = command.wait_for(command.workers)
        command.interrupt()
        code, output = command.end()
        left = [pid for pid, _, line in processes() if pid in workers and 'ray' in line]
        end = time.monotonic() + DEADLINE_S
        while (left or command.processes()) and time.monotonic() < end:
            time.sleep(0.1)
            left = [pid for pid, _, line in processes() if pid in workers and 'ray' in line]
        assert not left
        assert not command.processes()
    assert code == 130, output
    assert 'Traceback' not in output
    assert not (out / 'long_29.mcap').exists()
    assert run_detect_bag(*arguments, '--output', out) == 0
    assert run_detect_bag(*arguments, '--output', tmp_path / 'one/long') == 0
    assert files_of(out) == files_of(tmp_path / 'one/long')


@contextlib.contextmanager
def cluster(token):
    """Start a cluster of one machine with two workers. Yield its address."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    script = Path(sys.executable).parent / 'ray'
    command = [str(script), 'start', '--head', '--block', f'--port={port}', '--num-cpus=2']
    command += ['--node-ip-address=127.0.0.1', '--include-dashboard=false']
    environment = {**os.environ, **token, 'RAY_USAGE_STATS_ENABLED': '0'}
    with subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        try:
            for line in process.stdout:
                if 'Ray runtime started' in line:
                    break
            yield f'127.0.0.1:{port}'
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
            with Command(*arguments, '--workers', workers, environment=environment) as command:
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
