# SPDX-License-Identifier: Apache-2.0
"""Tests that inject every fault of docs/errors.md, and check the node's state and diagnostic.

The page promises a diagnostic within 1 s. The tests print the measured time, and scripts/soak
faults compares the time with the promise.
"""

import os
import re
import shutil
import time

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile

from support.docs_pages import ROOT, codes, rows, section
from support.gpu.gpu_support import build_plan, why_no_tensorrt
from support.nodes.faults import FAULTS, GPU_PARAMETERS, engine, tiny
from support.nodes.graph import HANDSHAKE, Detector, picture_of, without_numbers
from support.programs import Program, executable, script

pytest_plugins = ['support.nodes.graph_fixtures']

LEVELS = {'WARN': DiagnosticStatus.WARN, 'ERROR': DiagnosticStatus.ERROR}
REAL = not why_no_tensorrt()
PICTURE = picture_of((0, 0, 0), frame_id=HANDSHAKE)


def test_docs_and_tests_list_the_same_faults():
    page = (ROOT / 'docs' / 'errors.md').read_text(encoding='utf-8')
    titles = {
        'start': 'At the start',
        'configure': 'In configure',
        'activate': 'In activate',
        'active': 'While active',
    }
    for phase, title in titles.items():
        text = section(page, title)
        usual_state = codes(text)[0]
        documented = [
            (name, (re.findall(r'(?:state|ends:) `(.+?)`', seen) or [usual_state])[0])
            for name, seen, _ in rows(text)
        ]
        injected = [(fault.name, fault.state) for fault in FAULTS if fault.phase == phase]
        assert documented == injected


class FaultNode:
    """A fault_node and the file that switches its faults."""

    def __init__(self, client, folder, kind):
        self.flag = folder / 'fault'
        self.cache = folder / 'cache'
        self.detector = Detector(
            client,
            {'diagnostics_period_s': 1.0, **(GPU_PARAMETERS if kind == 'gpu' else {})},
            command=[
                *script('nodes/fault_node.py'),
                str(self.flag),
                'real' if REAL else 'stand-in',
            ],
        )

    def switch(self, name=''):
        self.flag.write_text(name)


@pytest.fixture(scope='module')
def get_node(client, tmp_path_factory):
    """Return a function that returns a running fault_node, for the host or for the GPU."""
    started = {}

    def node(kind):
        if kind not in started or not started[kind].detector.program.alive:
            if kind in started:
                started.pop(kind).detector.close()
            started[kind] = FaultNode(client, tmp_path_factory.mktemp(kind), kind)
        return started[kind]

    yield node
    for entry in started.values():
        entry.detector.close()


def good_model(fault, folder):
    folder.mkdir()
    if not fault.on_gpu:
        return tiny(folder)
    path = engine(folder)
    if REAL:
        path.write_bytes(build_plan(tiny(folder).read_bytes()))
    return path


def prepare_models(fault, tmp_path):
    """Write models. Return the path of the fault's model, and of a model without a fault."""
    good = good_model(fault, tmp_path / 'good')
    if fault.model in (tiny, engine):
        return good, good
    (tmp_path / 'bad').mkdir()
    return fault.model(tmp_path / 'bad'), good


@pytest.fixture
def check_report(request):
    """Return a function that waits for a fault's diagnostic and compares its message."""

    def check(fault, detector, begun):
        message = wait_for_report(fault, detector, begun)
        # The messages of real libraries vary.
        if not (fault.varies or (fault.on_gpu and REAL)):
            golden_messages = request.getfixturevalue('golden_messages')
            golden_messages.add(message)
            golden_messages.check()

    return check


def wait_for_report(fault, detector, begun):
    """Wait for the diagnostic, print the seconds since ``begun``, and return its message."""

    def accepts(status, values):
        if fault.state == 'active':
            detector.camera.publish(PICTURE)
        return (
            status.level == LEVELS[fault.level]
            and fault.says in status.message
            and values['state'] in (fault.state, 'active')
        )

    status, _ = detector.wait_for_status(accepts, f'a {fault.level}', from_now=False)
    print(f'\nFIGURE {fault.name}: {time.monotonic() - begun:.3f} s')
    return without_numbers(status.message)


@pytest.mark.parametrize(
    'fault', [f for f in FAULTS if f.phase == 'configure'], ids=lambda fault: fault.name
)
def test_fault_in_configure_is_reported_and_can_be_repaired(
    get_node, fault, tmp_path, check_report
):
    if fault.name == 'file unreadable' and os.geteuid() == 0:
        pytest.skip('root can read every file')
    if fault.on_gpu and REAL and not fault.real:
        pytest.skip('needs the stand-in, because real TensorRT has only one flavour and version')
    node = get_node('gpu' if fault.on_gpu else 'host')
    detector = node.detector
    detector.bring_to('unconfigured')
    bad, good = prepare_models(fault, tmp_path)
    shutil.rmtree(node.cache, ignore_errors=True)
    detector.set_or_fail(engine_path=str(bad), **fault.parameters)
    node.switch(fault.name)
    fails = fault.state == 'unconfigured'
    detector.take_statuses()
    begun = time.monotonic()
    assert detector.change_state('configure') is not fails
    assert detector.state() == fault.state
    if not fails:
        detector.transition('activate')
        detector.connect(PICTURE)
    check_report(fault, detector, begun)
    # After the repair, the node works.
    node.switch()
    shutil.rmtree(node.cache, ignore_errors=True)
    detector.bring_to('unconfigured')
    detector.set_or_fail(engine_path=str(good), **fault.mended_by)
    detector.transition('configure', 'activate')
    detector.connect(PICTURE)


@pytest.mark.parametrize(
    'fault', [f for f in FAULTS if f.phase == 'activate'], ids=lambda fault: fault.name
)
def test_fault_in_activate_is_reported_and_can_be_repaired(
    get_node, fault, tmp_path, check_report
):
    node = get_node('host')
    detector = node.detector
    node.switch()
    detector.bring_to('unconfigured')
    path, _ = prepare_models(fault, tmp_path)
    detector.set_or_fail(engine_path=str(path))
    for transitions in ((), ('cleanup', 'configure')):
        detector.bring_to('inactive')
        node.switch(fault.name)
        detector.take_statuses()
        begun = time.monotonic()
        assert detector.change_state('activate') is False
        assert detector.state() == fault.state
        check_report(fault, detector, begun)
        node.switch()
        detector.transition(*transitions, 'activate')
        detector.connect(PICTURE)
        # The node no longer reports the error, and the watchdog observes the camera again.
        detector.wait_for_status(
            lambda status, values: (
                detector.camera.publish(PICTURE)
                or (status.level == DiagnosticStatus.OK and values['state'] == 'active')
            ),
            'a status without the error',
        )
        detector.destroy_camera()
        detector.wait_for_status(
            lambda status, _: status.level == DiagnosticStatus.ERROR,
            'the error about the missing camera',
        )
        detector.camera = detector.create_camera(QoSProfile(depth=10))


@pytest.mark.parametrize(
    'fault', [f for f in FAULTS if f.phase == 'active'], ids=lambda fault: fault.name
)
def test_fault_while_active_leads_to_the_documented_state(get_node, fault, tmp_path, check_report):
    node = get_node('gpu' if fault.on_gpu else 'host')
    detector = node.detector
    node.switch()
    detector.bring_to('unconfigured')
    path, _ = prepare_models(fault, tmp_path)
    detector.set_or_fail(engine_path=str(path), **fault.parameters)
    detector.transition('configure', 'activate')
    detector.connect(PICTURE)
    detector.take_statuses()
    begun = time.monotonic()
    if fault.strike is not None:
        fault.strike(path)
    node.switch(fault.name)
    detector.camera.publish(PICTURE)
    check_report(fault, detector, begun)
    if fault.state.startswith('exit'):
        assert detector.program.wait() == int(fault.state.split()[1])
        return
    detector.client.spin_until(lambda: detector.state() == fault.state, f'state {fault.state}')
    node.switch()
    detector.bring_to('unconfigured')
    detector.set_or_fail(**fault.mended_by)
    detector.transition('configure', 'activate')
    detector.connect(PICTURE)


@pytest.mark.parametrize(
    'fault', [f for f in FAULTS if f.phase == 'start'], ids=lambda fault: fault.name
)
def test_fault_at_the_start_ends_the_process_with_an_error(fault, tmp_path, golden_messages):
    (tmp_path / 'broken.yaml').write_text('/**:\n  ros__parameters:\n    class_filter: [red\n')
    arguments = [
        str(tmp_path / argument) if argument.endswith('.yaml') else argument
        for argument in fault.parameters
    ]
    program = Program([executable('detector_node'), '--ros-args', *arguments])
    assert program.wait() == int(fault.state.split()[1])
    [error] = [line for line in program.output.splitlines() if line.startswith('error: ')]
    assert fault.says in error
    golden_messages.add(fault.says if fault.varies else error)
    assert 'Traceback' not in program.output
