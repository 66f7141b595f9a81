# SPDX-License-Identifier: Apache-2.0
"""Test the order of test files, their split into shares, and their marker for ROS."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest
from conftest import MOST_RERUNS, pytest_sessionfinish, side_by_side

from support import durations

ROOT = Path(__file__).resolve().parents[2]
NO_MARKER = {'get_closest_marker.return_value': None}
IMPORTS_ROS = re.compile(
    r'^(?:import|from) (?:rclpy|cv_bridge|launch|\w+_msgs|trt_perception\.ros)\b', re.MULTILINE
)


def test_files_that_import_ros_are_in_the_ros_folder_or_marked():
    folder = ROOT / 'test' / 'ros'
    texts = {path: path.read_text() for path in (ROOT / 'test').rglob('test_*.py')}
    found = [path for path, text in texts.items() if IMPORTS_ROS.search(text)]
    assert len(found) > 50
    assert not [p for p in found if folder not in p.parents and 'mark.ros' not in texts[p]]


def test_slow_files_run_first_and_alternate_with_files_of_ros():
    files = ['ros/test_waits.py', 'test_slow.py', 'ros/test_waits_longer.py', 'test_fast.py']
    seconds = dict(zip(files, ([3, 3], [9, 1], [5, 5], [1, 1]), strict=True))
    items = [mock.Mock(path=ROOT / 'test' / file, **NO_MARKER) for file in files]
    with mock.patch.object(durations, 'stored', return_value=seconds):
        order = [item.path.name for item in side_by_side(items)]
    assert order == ['test_waits_longer.py', 'test_slow.py', 'test_waits.py', 'test_fast.py']


def test_shares_are_even_without_engine_builds():
    seconds = {'test_a.py': [90, 4], 'test_b.py': [3, 3], 'test_c.py': [2, 2]}
    paths = [ROOT / 'test' / name for name in [*seconds, 'test_new.py']]
    with mock.patch.object(durations, 'stored', return_value=seconds):
        shares = [durations.share_of(number, 2, paths) for number in (1, 2)]
    assert shares == [{paths[0], paths[3]}, {paths[1], paths[2]}]


def test_durations_are_stored_by_file(tmp_path, monkeypatch):
    (tmp_path / 'test_kept.py').touch()
    (tmp_path / 'durations.json').write_text('{"test_kept.py": [7, 7], "test_gone.py": [8, 8]}')
    monkeypatch.setattr(durations, 'TEST_FOLDER', tmp_path)
    monkeypatch.setattr(durations, 'DURATIONS_FILE', tmp_path / 'durations.json')
    durations.stored.cache_clear()
    recorder = durations.Recorder()
    for name, keywords in (('plain', {}), ('builds', {'engine_build': 1})):
        node = f'test/test_new.py::test_{name}'
        recorder.pytest_runtest_logreport(mock.Mock(nodeid=node, duration=1.0, keywords=keywords))
    recorder.pytest_sessionfinish()
    written = json.loads((tmp_path / 'durations.json').read_text())
    durations.stored.cache_clear()
    assert written == {'test_kept.py': [7, 7], 'test_new.py': [2.0, 1.0]}


@pytest.mark.parametrize(('reruns', 'fails'), [(MOST_RERUNS, False), (MOST_RERUNS + 1, True)])
def test_run_fails_after_too_many_reruns(reruns, fails, capsys):
    reporter = mock.Mock(stats={'rerun': [None] * reruns})
    session = mock.Mock(exitstatus=0)
    session.config.pluginmanager.getplugin.return_value = reporter
    pytest_sessionfinish(session)
    assert (session.exitstatus == 1) is fails
    assert bool(capsys.readouterr().out) is fails
