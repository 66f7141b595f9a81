# SPDX-License-Identifier: Apache-2.0
"""Test a short run of `scripts/bench cameras` with two cameras, and its count of lost images."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.docs_pages import load_script
from support.waiting import DEADLINE_S, require_arrivals

pytestmark = pytest.mark.ros

# Other tests of benchmarks cover the use of ROS.
SCRIPT = Path(__file__).parents[2] / 'scripts' / 'benchmarks' / 'cameras.py'
report = load_script('benchmarks/cameras_report.py')
children = load_script('benchmarks/children.py')


def bench(folder, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=280,
    )


def test_each_image_of_the_window_is_received_or_lost(tmp_path):
    seconds, rate = 2, 10
    options = ('--count', 2, '--rounds', 1, '--seconds', seconds, '--warm-up', 1, '--rate', rate)
    more = ('--image', 'jpeg', '--size', '64x48', '--timing', 'triggered')
    more += ('--nodes', 'one', 'two', 'many', '--logs', 'logs')
    result = bench(tmp_path, *options, *more, '--json', 'result.json')
    assert not result.returncode, result.stderr
    [case] = json.loads((tmp_path / 'result.json').read_text())['cases']
    assert list(case['rounds']) == ['one', 'two', 'many']
    for [figures] in ([case['intake']], *case['rounds'].values()):
        cameras = figures['cameras']
        assert list(cameras) == ['camera_0', 'camera_1']
        require_arrivals([camera['received'] for camera in cameras.values()], 'images of a camera')
        for camera in (figures, *cameras.values()):
            assert camera['sent'] == camera['received'] + camera['lost']
        for count in ('sent', 'received', 'lost'):
            assert figures[count] == sum(camera[count] for camera in cameras.values())
        assert all(camera['sent'] <= seconds * rate + 1 for camera in cameras.values())
        assert 0 < figures['p50_ms'] <= figures['p95_ms'] <= figures['p99_ms']
        assert figures['p99_ms'] <= figures['max_ms']
        assert figures['cpu_percent'] > 0
        assert 10 < figures['pss_mib'] < figures['rss_mib']
    assert case['rounds']['one'][0]['pss_mib'] < case['rounds']['many'][0]['pss_mib']
    ratios = case['ratios']['one / many']
    assert len(ratios['p99_ms']) == 1
    logs = {path.stem: path.read_text() for path in (tmp_path / 'logs').iterdir()}
    names = ['one_1_0', *[f'{side}_1_{node}' for side in ('many', 'two') for node in (0, 1)]]
    assert sorted(logs) == sorted(f'jpeg_2_triggered_{name}' for name in names)
    # The node logs the counts of an activation after the benchmark has asked it to end.
    assert all('[INFO]' in text and 'counts' in text for text in logs.values())


def test_warning_before_a_long_log_is_found():
    program = "print('[WARN] first'); [print('x' * 99) for _ in range(99)]"
    with children.Child('-c', program, answers=False) as child:
        child._process.wait(DEADLINE_S)
        lines = child.log_lines()
    assert lines == ['[WARN] first', *['x' * 99] * 99]


def test_images_of_the_window_count_even_if_they_arrive_after_its_end():
    sent_ns = [80, 100, 120, 140, 160, 180, 200, 220]
    arrivals = [(80, 110), (120, 150), (180, 230), (200, 240)]
    found = report.match(sent_ns, arrivals, 100, 200)
    assert found == [None, 30, None, None, 50]


@pytest.mark.parametrize('arrivals', [[(90, 110)], [(100, 110), (100, 120)]])
def test_arrival_that_fits_no_image_is_an_error(arrivals):
    with pytest.raises(RuntimeError):
        report.match([80, 100], arrivals, 0, 200)


def test_camera_count_above_64_is_refused(tmp_path):
    assert bench(tmp_path, '--count', '1,65').returncode == 2


def test_two_nodes_of_one_camera_are_refused(tmp_path):
    assert bench(tmp_path, '--count', '2,1', '--nodes', 'two').returncode == 2


def test_folder_without_the_package_is_refused(tmp_path):
    assert bench(tmp_path, '--other', tmp_path).returncode == 2
