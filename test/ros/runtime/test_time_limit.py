# SPDX-License-Identifier: Apache-2.0
"""Tests of time limits of start and end: a hanging process exits and logs its stack."""

import fcntl
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from rclpy.utilities import get_rmw_implementation_identifier

from support.programs import DEADLINE_S, Program, script
from trt_perception.ros.runtime.time_limit import time_limit
from trt_perception.transport.shared_memory import SHARED_MEMORY

pytestmark = [pytest.mark.each_distro, pytest.mark.unmeasured]

#: Only this test uses the domain. Its ports lie below Linux's ephemeral ports.
DOMAIN = 101
LOCK = Path(tempfile.gettempdir(), f'trt_perception-domain-{DOMAIN}.lock')
# The shared-memory ports of the domain's first participants.
PORTS = [
    SHARED_MEMORY / f'{name}_port{7400 + 250 * DOMAIN + 11 + 2 * participant}'
    for participant, name in itertools.product(range(4), ('fastrtps', 'fastdds'))
]
#: The ports' times lie this far in the future, so other processes do not remove the ports.
AHEAD_S = 3600


@pytest.mark.parametrize('lock', ['', 'lock'])
@pytest.mark.parametrize(
    ('where', 'function'), [('start', 'make_node'), ('end', '_close_node')], ids=['start', 'end']
)
def test_hanging_start_or_end_ends_the_process_and_is_logged(where, function, lock):
    program = Program([*script('nodes/stuck_node.py'), where, 0.5, lock])
    assert program.wait() == 1
    output = program.output
    assert 'in hang' in output
    assert f'in {function}' in output
    # If the process holds the lock, only faulthandler can print.
    assert bool(re.search(rf'error: .* {where}\w? .* 0\.5 s', output)) == (not lock), output


def test_part_within_its_time_limit_is_not_ended():
    """Both watching threads end with the part. A remaining thread would end the process later."""
    code = (
        'import os, time; from trt_perception.ros.runtime.time_limit import time_limit\n'
        'threads = lambda: set(os.listdir("/proc/self/task"))\n'
        'before = threads()\n'
        'with time_limit("a short part", 30.0): assert len(threads() - before) == 2\n'
        'while threads() - before: time.sleep(0.001)\n'
        'print("finished")\n'
    )
    ended = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'finished\n', '')


def test_exception_of_a_limited_part_is_raised():
    with pytest.raises(ZeroDivisionError), time_limit('a part', 60.0):
        1 / 0  # noqa: B018


def start_in_domain(seconds):
    """Start a node that ends at once. Return its exit code and its output."""
    code = (
        'import sys, rclpy\n'
        'from trt_perception.transport import shared_memory\n'
        'from trt_perception.ros.runtime import process\n'
        f'process.START_LIMIT_S, shared_memory._MAX_CREATION_S = {seconds}, -{2 * AHEAD_S}\n'
        'def close(node):\n'
        '    node.destroy_node()\n'
        '    return 0\n'
        'make = lambda: rclpy.create_node("alone")\n'
        'sys.exit(process.run_node(make, close, [], finished=lambda _: True))\n'
    )
    environment = {**os.environ, 'ROS_DOMAIN_ID': str(DOMAIN)}
    ended = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture
def domain():
    """Wait until no other run of this test uses the domain."""
    lock = os.open(LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
    os.close(lock)


@pytest.mark.usefixtures('domain')
@pytest.mark.skipif(
    'fastrtps' not in get_rmw_implementation_identifier() or not os.access(SHARED_MEMORY, os.W_OK),
    reason='needs Fast DDS and its shared memory',
)
def test_half_made_port_of_a_killed_process_is_reported_with_a_repair():
    """The middleware hangs at a half-made port. The suggested command must repair the port."""
    ahead = time.time() + AHEAD_S
    try:
        for port in PORTS:
            port.touch()
            os.utime(port, (ahead, ahead))
        code, output = start_in_domain(0.5)
        assert code == 1, output
        assert 'create_node' in output
        [repair_command] = re.findall('truncate .*?; rm [^;]+', output)
        assert all(str(port) in repair_command for port in PORTS), output
        subprocess.run(repair_command, shell=True, check=True)
        code, output = start_in_domain(30.0)
        assert (code, 'warning' in output) == (0, False), output
    finally:
        for port in PORTS:
            port.unlink(missing_ok=True)
