# SPDX-License-Identifier: Apache-2.0
"""Test scripts/bench bags: its bag, its steady rate, and a short run on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from support.detect_bags import read_rows
from support.docs_pages import load_script
from support.models.digits import SCENES
from support.optional_packages import needs

pytestmark = [needs('rosbags'), needs('mcap')]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / 'scripts' / 'benchmarks' / 'bags.py'
bags = load_script('benchmarks/bags.py')


@pytest.mark.parametrize('image', ['raw', 'jpeg'])
def test_bag_has_different_images_at_30_hz(image, tmp_path):
    bags.write_bag(tmp_path / 'drive', image, (96, 64), 7)
    topic = '/front/image_raw' + '/compressed' * (image == 'jpeg')
    rows = read_rows(tmp_path / 'drive')
    assert [name for name, _, _ in rows] == [topic] * 7
    assert np.diff([log_ns for _, log_ns, _ in rows]) == pytest.approx(1e9 / 30, abs=1)
    assert len({message.data.tobytes() for _, _, message in rows}) == 7
    third = rows[2][2]
    scene = cv2.resize(cv2.imread(str(sorted(SCENES.glob('*.jpg'))[2])), (96, 64))
    expected = np.hstack([scene[:, -14:], scene[:, :-14]])
    if image == 'jpeg':
        found = cv2.imdecode(third.data, cv2.IMREAD_COLOR)
        assert np.abs(found.astype(int) - expected).mean() < 8
    else:
        assert np.array_equal(third.data.reshape(64, 96, 3), expected)


def test_steady_rate_begins_with_the_last_worker_and_ends_with_the_first_idle_one():
    """Worker 1 alone makes 100 images/s. From 2 s on, two workers make 150 and 50 images/s."""
    events = [
        (1.0, 'Opened', None, 0),
        (1.5, 'Progress', 'a', 50),
        (2.0, 'Progress', 'a', 50),
        (2.0, 'Opened', None, 0),
        (3.0, 'Progress', 'a', 150),
        (3.0, 'Progress', 'b', 50),
        (4.0, 'Progress', 'a', 150),
        (4.0, 'Finished', 'a', 0),
        (5.0, 'Progress', 'c', 150),
        (5.0, 'Finished', 'c', 0),
        (6.0, 'Progress', 'b', 150),
        (6.0, 'Finished', 'b', 0),
    ]
    # Each second of the clock needs 3 s of CPU time.
    record = {'events': [[time_s, 3 * time_s, *rest] for time_s, *rest in events]}
    found = bags.steady_figures(record, 2)
    assert found['images_per_s'] == pytest.approx(200)
    assert found['steady_s'] == 3
    assert found['steady_images'] == pytest.approx(600)
    assert found['cpu_ms'] == pytest.approx(15)
    alone = bags.steady_figures({'events': record['events'][:3] + record['events'][6:8]}, 1)
    assert alone['steady_s'] == 3


@pytest.mark.parametrize('late_s', [None, 3.5])
def test_run_in_which_a_worker_had_no_work_has_no_steady_rate(late_s):
    """Worker 1 finishes all parts before worker 2 opens the model, or nearly all."""
    events = [(1.0, 'Opened', None, 0)]
    events += [(1.0 + part, 'Progress', str(part), 50) for part in (1, 2, 3)]
    events += [(1.0 + part, 'Finished', str(part), 0) for part in (1, 2, 3)]
    if late_s:
        events.append((late_s, 'Opened', None, 0))
    record = {'events': [[time_s, time_s, *rest] for time_s, *rest in sorted(events)]}
    openings = {'first_opened_s': 1.0, 'last_opened_s': late_s or 1.0}
    assert bags.steady_figures(record, 2) == openings


def test_short_run_measures_all_sides_and_finds_equal_bytes(tmp_path):
    result = subprocess.run(
        [
            *(sys.executable, SCRIPT, ROOT / 'models' / 'digits.onnx', '--image', 'raw'),
            *('--size', '160x120', '--images', '8', '--repeat', '2', '--part-s', '0.1'),
            *('--rounds', '1', '--seconds', '0.2', '--workers', '1', '2', '--json', 'found.json'),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / 'found.json').read_text())
    assert not record['failures']
    assert len(set(record['digests'].values())) == 1
    assert list(record['digests']) == ['workers_1', 'workers_2']
    for name in ('pipeline', 'workers_1'):
        assert record['medians'][name]['images_per_s'] > 0
        assert record['medians'][name]['cpu_ms'] > 0
    # The second worker may open the model when the first one has no more work.
    assert record['medians']['workers_2']['images_per_s_of_command'] > 0
    (steps,) = record['sides']['steps']
    assert min(steps['model'], steps['read and decode']) > 0
    assert min(steps['cpu_ms'][name] for name in ('read', 'read and decode')) > 0
    assert 0 < steps['seconds']['wait for the model'] < steps['seconds']['all']
    assert list(record['medians']['ratios']) == [
        'workers_1 to pipeline',
        'workers_2 to pipeline',
        'workers_2 to workers_1',
    ]


def test_sides_that_differ_and_sides_that_fail_are_reported(tmp_path, monkeypatch, capsys):
    class Stub:
        bag_bytes = 1

        def __init__(self, options, folder):
            self.digests = {'workers_1': 'a', 'workers_2': 'b'}

        def steps(self):
            raise SystemExit('no GPU')

        def sides(self):
            return {'workers_1': lambda: {'images_per_s': 5.0, 'cpu_ms': 1.0}}

    monkeypatch.setattr(bags, 'Runner', Stub)
    target = tmp_path / 'found.json'
    assert bags.main(['model.onnx', '--rounds', '2', '--json', str(target)]) == 1
    record = json.loads(target.read_text())
    assert list(record['failures']) == ['steps']
    assert len(record['sides']['workers_1']) == 2
    assert 'differ' in capsys.readouterr().out


def test_too_few_parts_are_refused():
    with pytest.raises(SystemExit) as end:
        bags.main(['model.onnx', '--images', '900', '--part-s', '10', '--workers', '2'])
    assert end.value.code == 2
