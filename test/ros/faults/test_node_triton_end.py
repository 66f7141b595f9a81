# SPDX-License-Identifier: Apache-2.0
"""Tests of signals to a node whose Triton server stops at some phase.

Each end is the clean one: exit code 0, nothing in /dev/shm, and no region at a server that
answers. The documented limit is 5 s. The tests wait longer, because the machine may be busy.
"""

import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from support.folders import open_paths
from support.nodes.graph import picture_of
from support.optional_packages import needs
from support.programs import DEADLINE_S
from support.waiting import WaitTimeoutError

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [needs('onnx', 'tritonclient'), pytest.mark.unmeasured]

MODEL = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Hang:
    """Answers calls of the server, until `begin` is set. Later calls wait for the test's end."""

    def __init__(self, answer):
        self.answer = answer
        self.begin, self.reached, self.end = (threading.Event() for _ in range(3))

    def __call__(self, request, context):
        if self.begin.is_set():
            self.reached.set()
            self.end.wait()
        return self.answer

    def wait_until_reached(self):
        if not self.reached.wait(DEADLINE_S):
            raise WaitTimeoutError('a call that hangs')


@pytest.fixture(name='server')
def _server():
    from support.fake_triton import fake_triton

    with fake_triton() as server:
        server.hangs = []
        yield server
        for hang in server.hangs:
            hang.end.set()


def let_hang(server, attribute, *, from_start=True):
    hang = Hang(getattr(server, attribute))
    server.hangs.append(hang)
    if from_start:
        hang.begin.set()
    setattr(server, attribute, hang)
    return hang


def start(start_detector, address, **settings):
    known = {'engine_path': f'triton://{address}/tiny', 'triton.timeout_ms': 60_000.0}
    return start_detector({**known, 'autostart': True, **MODEL, **settings})


def regions_of(program):
    """Return the paths of all regions that a process has open."""
    return [
        Path(path)
        for path in open_paths(program.pid)
        if path.startswith('/dev/shm/') and 'trt_perception_triton_' in path
    ]


def assert_clean_end(detector, number, *, has_regions):
    program = detector.program
    regions = regions_of(program)
    assert bool(regions) == has_regions
    program.send(number)
    assert program.wait() == 0, program.output
    assert not [path for path in regions if path.exists()]
    assert not re.search('Traceback|Error|File "|^error', program.output, re.MULTILINE)


@pytest.mark.parametrize('number', SIGNALS)
def test_signal_during_the_first_request_ends_the_node_cleanly(start_detector, server, number):
    hang = let_hang(server, 'infer')
    detector = start(start_detector, server.address)
    hang.wait_until_reached()
    assert detector.state() == 'unconfigured'
    assert_clean_end(detector, number, has_regions=True)
    # Nobody may remove a region that the server still writes to.
    assert len(server.regions) == 1


def test_signal_during_the_run_that_finds_the_output_shapes_ends_the_node(start_detector, server):
    from support.fake_triton import OUTPUT, config, tensor

    server.config = config(outputs=[tensor(OUTPUT[0], [1, 6, -1])])
    hang = let_hang(server, 'infer')
    detector = start(start_detector, server.address)
    hang.wait_until_reached()
    assert_clean_end(detector, signal.SIGTERM, has_regions=False)


@pytest.mark.parametrize(
    ('attribute', 'has_regions'),
    [('ready', False), ('config', False), ('registers', True)],
)
def test_signal_during_a_control_call_ends_the_node(
    start_detector, server, attribute, has_regions
):
    hang = let_hang(server, attribute)
    detector = start(start_detector, server.address)
    hang.wait_until_reached()
    assert_clean_end(detector, signal.SIGTERM, has_regions=has_regions)


@pytest.mark.parametrize('number', SIGNALS)
def test_signal_unregisters_all_regions_of_an_active_node(start_detector, server, number):
    detector = start(start_detector, server.address)
    detector.program.wait_for_output('detector]: active')
    assert server.regions
    assert_clean_end(detector, number, has_regions=True)
    assert not server.regions


@pytest.mark.parametrize('timeout_ms', [1000.0, 60000.0])
def test_signal_during_a_later_request_ends_the_node(start_detector, server, timeout_ms):
    settings = {'triton.timeout_ms': timeout_ms, 'pipeline_depth': 4}
    hang = let_hang(server, 'infer', from_start=False)
    detector = start(start_detector, server.address, **settings)
    detector.program.wait_for_output('detector]: active')
    hang.begin.set()

    def is_reached():
        detector.camera.publish(picture_of((0, 0, 0)))
        return hang.reached.is_set()

    detector.client.spin_until(is_reached, 'a request that hangs')
    assert_clean_end(detector, signal.SIGTERM, has_regions=True)


def test_signal_ends_a_node_whose_server_stops_to_answer(start_detector, server):
    hangs = [let_hang(server, name, from_start=False) for name in ('infer', 'ready')]
    hangs.append(let_hang(server, 'unregisters', from_start=False))
    detector = start(start_detector, server.address)
    detector.program.wait_for_output('detector]: active')
    for hang in hangs:
        hang.begin.set()
    hangs[1].wait_until_reached()
    assert_clean_end(detector, signal.SIGTERM, has_regions=True)


@pytest.mark.parametrize('autostart', [True, False])
def test_signal_during_the_connection_ends_the_node(start_detector, autostart):
    """The server accepts connections, but never answers."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        address = f'127.0.0.1:{listener.getsockname()[1]}'
        detector = start(start_detector, address, autostart=autostart)
        if not autostart:
            detector.request_transition('configure')
        connection, _ = listener.accept()
        with connection:
            assert_clean_end_of_start(detector)


def assert_clean_end_of_start(detector):
    detector.program.send(signal.SIGTERM)
    assert detector.program.wait() == 0, detector.program.output
    assert 'Traceback' not in detector.program.output
