# SPDX-License-Identifier: Apache-2.0
"""Tests of builds that fail or are stopped: messages, progress, and the end of all threads."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from support.building.standin_builds import TESTED_RELEASES, build, make_stand_in, refusal_text
from support.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.mark.parametrize('version', TESTED_RELEASES)
def test_all_unsupported_operators_are_named_with_their_nodes(version, golden_messages):
    module, tensorrt = make_stand_in(version)
    module.parse_errors = [
        ('/a/Fancy', 'Fancy', 'INVALID_NODE', 'creator && "Plugin not found, are the …?"'),
        ('/b/Fancy', 'Fancy', 'INTERNAL_ERROR', 'Op type Fancy is not supported in TensorRT.'),
        ('/c/Det', 'Det', 'UNSUPPORTED_NODE', 'false'),
        ('/d/Conv', 'Conv', 'INVALID_NODE', 'Kernel weight dimension failed'),
    ]
    golden_messages.add(refusal_text(tensorrt))


def test_build_error_has_the_messages_of_tensorrt_and_a_remedy(golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')

    def fail(monitor, logger):
        for name, text in (
            ('WARNING', 'slow'),
            ('ERROR', 'Tactic Selection: no tactics … within workspace limit.'),
        ):
            logger.log(type('Severity', (), {'name': name}), text)

    module.build = fail
    found = refusal_text(tensorrt, workspace_mib=1)
    golden_messages.add(found)
    assert 'slow' not in found


def test_warnings_are_reported_once():
    module, tensorrt = make_stand_in('10.3.0.26')

    def warn(monitor, logger):
        for _ in range(3):
            logger.log(type('Severity', (), {'name': 'WARNING'}), 'slow')
        return module.plan()

    module.build = warn
    assert build(tensorrt).warnings == ('slow',)


def test_builder_creation_error_asks_for_a_gpu(monkeypatch, golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')

    def refuse(logger):
        raise TypeError('pybind11::init(): factory function returned nullptr')

    monkeypatch.setattr(module, 'make_Builder', refuse)
    golden_messages.add(refusal_text(tensorrt))


def test_plan_of_another_flavour_is_refused(golden_messages):
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = lambda monitor, logger: b'vtrt' + bytes(100)
    golden_messages.add(refusal_text(tensorrt))


def endless(module, started):
    def build_until_told(monitor, logger):
        monitor.phase_start('Building', None, 4)
        monitor.phase_start('Timing kernels', 'Building', 1000)
        step = 0
        while monitor.step_complete('Timing kernels', step):
            step = min(step + 1, 998)
            started.set()
            threading.Event().wait(0.001)
        return

    return build_until_told


def test_ctrl_c_stops_the_build():
    module, tensorrt = make_stand_in('10.3.0.26')
    started = threading.Event()
    module.build = endless(module, started)

    def press():
        started.wait(DEADLINE_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        build(tensorrt)
    alive = [t for t in threading.enumerate() if t.name == 'build' and t.is_alive()]
    assert not alive


def test_progress_combines_nested_phases_into_one_scale():
    module, tensorrt = make_stand_in('10.3.0.26')
    seen = []
    told = threading.Event()

    def nested(monitor, logger):
        monitor.phase_start('Building', None, 4)
        monitor.step_complete('Building', 0)
        monitor.phase_start('Timing', 'Building', 10)
        monitor.step_complete('Timing', 4)
        told.wait(DEADLINE_S)
        return module.plan()

    def progress(*position):
        seen.append(position)
        told.set()

    module.build = nested
    build(tensorrt, progress=progress)
    assert seen[0] == ('Timing', 375, 1000)  # 1 of 4 steps, and half of the second step


def test_error_while_showing_progress_stops_the_build():
    module, tensorrt = make_stand_in('10.3.0.26')
    module.build = endless(module, threading.Event())

    def broken(*_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        build(tensorrt, progress=broken)
