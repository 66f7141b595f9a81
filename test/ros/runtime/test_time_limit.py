"""A process whose start or end hangs leaves, and says where; a slow one is left alone."""

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

#: Only this test uses it, and its ports lie below those that Linux gives away.
DOMAIN = 101
LOCK = Path(tempfile.gettempdir(), f'trt_perception-domain-{DOMAIN}.lock')
# Those of its first processes.
PORTS = [
    SHARED_MEMORY / f'{name}_port{7400 + 250 * DOMAIN + 11 + 2 * participant}'
    for participant, name in itertools.product(range(4), ('fastrtps', 'fastdds'))
]
#: From where their times are, so that nobody else on this machine takes them for left ones.
AHEAD_S = 3600


@pytest.mark.parametrize('lock', ['', 'lock'])
@pytest.mark.parametrize(
    ('where', 'function'), [('start', 'make_node'), ('end', '_close_node')], ids=['start', 'end']
)
def test_a_start_or_end_that_hangs_ends_the_process_and_is_told(where, function, lock):
    program = Program([*script('nodes/stuck_node.py'), where, 0.5, lock])
    assert program.wait() == 1
    said = program.output
    assert 'in hang' in said
    assert f'in {function}' in said
    # With the lock held nobody is there to say more than faulthandler does.
    assert bool(re.search(rf'error: .* {where}\w? .* 0\.5 s', said)) == (not lock), said


def test_what_is_done_in_time_is_not_ended():
    """Both threads that would end it are gone after it; one that stayed would end it later."""
    code = (
        'import os, time; from trt_perception.ros.runtime.time_limit import time_limit\n'
        'threads = lambda: set(os.listdir("/proc/self/task"))\n'
        'before = threads()\n'
        'with time_limit("a short part", 30.0): assert len(threads() - before) == 2\n'
        'while threads() - before: time.sleep(0.001)\n'
        'print("there")\n'
    )
    ended = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'there\n', '')


def test_what_a_bounded_part_raises_comes_out():
    with pytest.raises(ZeroDivisionError), time_limit('a part', 60.0):
        1 / 0  # noqa: B018


def start_in_domain(seconds):
    """Start a node that ends at once; return its exit code and what it printed."""
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
def test_a_port_that_a_killed_process_left_half_made():
    """The middleware itself hangs there, and what the package says about it is the cure."""
    ahead = time.time() + AHEAD_S
    try:
        for port in PORTS:
            port.touch()
            os.utime(port, (ahead, ahead))
        code, said = start_in_domain(0.5)
        assert code == 1, said
        assert 'create_node' in said
        [mend] = re.findall('truncate .*?; rm [^;]+', said)
        assert all(str(port) in mend for port in PORTS), said
        subprocess.run(mend, shell=True, check=True)
        code, said = start_in_domain(30.0)
        assert (code, 'warning' in said) == (0, False), said
    finally:
        for port in PORTS:
            port.unlink(missing_ok=True)
