# SPDX-License-Identifier: Apache-2.0
"""Tests of signals to tools: while a Triton server does not answer, and under nohup."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from support.folders import open_paths
from support.models.digits import DIGITS
from support.optional_packages import needs
from support.programs import UNMEASURED, Program, executable
from support.waiting import wait_until

pytestmark = [needs('tritonclient'), pytest.mark.unmeasured]

SCENE = DIGITS.parents[1] / 'demo/scenes/scene_000.jpg'
OPTIONS = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': '0.1',
    'model.decoder': 'dense',
    'model.class_names': '["cat","dog"]',
}
#: Handles signals as build_engine does, and prints which signals it handles after the first one.
HANDLER = """
import signal, sys, time
from trt_perception.process.interruption import Interruption, ending_signals
stop = Interruption(130)
for number in ending_signals():
    signal.signal(number, stop)
print('ready', flush=True)
try:
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    print('stopping', flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.fixture(name='hanging_server')
def _hanging_server():
    """A server that never answers a request. `reached` is set when a request has arrived."""
    from support.fake_triton import fake_triton

    end = threading.Event()
    with fake_triton() as server:
        server.reached = threading.Event()

        def hang(request, context):
            server.reached.set()
            end.wait()
            return answer

        answer, server.infer = server.infer, hang
        yield server
        end.set()


@pytest.fixture(name='program')
def _program(hanging_server, tmp_path):
    """detect_images, which waits for the server."""
    address = f'triton://{hanging_server.address}/tiny'
    files = ['--source', SCENE, '--output', tmp_path / 'results']
    options = [word for name, value in OPTIONS.items() for word in ('-p', f'{name}={value}')]
    program = Program([executable('detect_images'), address, *files, *options], UNMEASURED)
    wait_until(hanging_server.reached.is_set, 'a request to the server')
    time.sleep(0.2)  # now the tool usually waits for the answer; it must end cleanly in any case
    yield program
    program.send(signal.SIGKILL)
    program.wait()


def regions_of(program):
    paths = map(Path, open_paths(program.pid))
    return [path for path in paths if 'trt_perception_triton_' in path.name]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_tool_that_waits_for_a_server(program, hanging_server, number):
    regions = regions_of(program)
    assert regions
    program.send(number)
    assert program.wait() == 130
    assert not [path for path in regions if path.exists()]
    assert 'Traceback' not in program.output
    # The server still writes to the region of the request that it has not answered.
    assert len(hanging_server.regions) == 1


def test_ignored_sighup_stays_ignored_after_another_signal():
    program = Program(['nohup', sys.executable, '-c', HANDLER])
    program.wait_for_output('ready')
    program.send(signal.SIGHUP)
    program.send(signal.SIGTERM)
    program.wait_for_output('stopping')
    status = Path(f'/proc/{program.pid}/status').read_text()
    ignored = int(status.split('SigIgn:')[1].split()[0], 16)
    assert ignored & 1 << signal.SIGHUP - 1
    program.send(signal.SIGKILL)
    program.wait()


def test_hard_exit_removes_regions_and_prints_one_line():
    code = (
        'from trt_perception.model.tensors import TensorSpec\n'
        'from trt_perception.process.hard_exit import before_hard_exit, hard_exit\n'
        'from trt_perception.stages.triton.memory import TritonRegion\n'
        'before_hard_exit(lambda: 1 / 0)\n'
        'for _ in range(3): print(TritonRegion([TensorSpec("x", (1, 3), "float32")]).name)\n'
        'before_hard_exit(lambda: print("removed", flush=True))\n'
        'hard_exit(77, "error: the reason")\n'
    )
    program = Program([sys.executable, '-c', code])
    assert program.wait() == 77
    *names, removed, reason = program.output.splitlines()
    assert (removed, reason, len(names)) == ('removed', 'error: the reason', 3)
    assert not [name for name in names if Path('/dev/shm', name).exists()]
