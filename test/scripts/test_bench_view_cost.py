# SPDX-License-Identifier: Apache-2.0
"""Test a short run of `scripts/bench view_cost`, and how it compares drawings with detections."""

import json
import subprocess
import sys

import pytest
from foxglove_msgs.msg import (
    ImageAnnotations,
    KeyValuePair,
    Point2,
    PointsAnnotation,
    TextAnnotation,
)
from vision_msgs.msg import BoundingBox2D, Detection2D, Detection2DArray, ObjectHypothesisWithPose

from support.docs_pages import ROOT, load_script
from support.waiting import require_arrivals

pytestmark = pytest.mark.ros

SCRIPT = ROOT / 'scripts' / 'benchmarks' / 'view_cost.py'
# A script finds the modules of its own folder.
sys.path.append(str(SCRIPT.parent))
viewer = load_script('benchmarks/view_cost_viewer.py')
view_cost = load_script('benchmarks/view_cost.py')


def test_only_windows_with_a_viewer_have_messages_and_they_equal_the_detections(tmp_path):
    options = ('--rate', '5', '--size', '640x480', '--rounds', '2', '--seconds', '1')
    result = subprocess.run(
        [
            *(sys.executable, SCRIPT, ROOT / 'models' / 'digits.onnx', *options),
            *('--warm-up', '1', '--json', 'result.json', '--log', 'node.log'),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert (tmp_path / 'result.json').exists(), result.stderr
    record = json.loads((tmp_path / 'result.json').read_text())
    windows, viewer = [*record['rounds']['with'], *record['rounds']['without']], record['viewer']
    require_arrivals([figures['received'] for figures in windows], 'detections')
    require_arrivals([*viewer['messages'][1:3], viewer['compared']], 'annotations')
    assert not result.returncode, result.stderr
    assert [count > 0 for count in viewer['messages']] == [False, True, True, False]
    assert viewer['equal'] == viewer['compared']
    assert record['objects']['camera_0'] > 3
    for figures in windows:
        assert figures['sent'] == figures['received'] + figures['lost']
        assert figures['images_per_s'] == figures['received']  # of a window of one second
    assert set(record['medians']) == {'with', 'without', 'with / without'}
    assert '[INFO]' in (tmp_path / 'node.log').read_text()


def test_windows_alternate_and_do_not_overlap():
    plan = list(view_cost.windows(100.0, 2, 8.0))
    assert [viewed for viewed, *_ in plan] == [False, True, True, False]
    bounds = [time for _, *window in plan for time in window]
    assert bounds == sorted(bounds)
    assert [end - first for _, first, end in plan] == [8.0] * 4


def drawing_and_detection(class_id='car', score=0.5, center=(30.0, 40.0), size=(20.0, 10.0)):
    found = Detection2D(bbox=BoundingBox2D(size_x=20.0, size_y=10.0))
    found.bbox.center.position.x, found.bbox.center.position.y = 30.0, 40.0
    found.results = [ObjectHypothesisWithPose()]
    found.results[0].hypothesis.class_id, found.results[0].hypothesis.score = 'car', 0.5
    (x, y), (width, height) = center, size
    values = {'class': class_id, 'score': str(score)}
    box = PointsAnnotation(
        metadata=[KeyValuePair(key=key, value=value) for key, value in values.items()],
        points=[
            Point2(x=x + across * width / 2, y=y + down * height / 2)
            for across, down in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ],
    )
    drawings = ImageAnnotations(points=[box], texts=[TextAnnotation()])
    return drawings, Detection2DArray(detections=[found])


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        ({}, True),
        ({'class_id': 'bus'}, False),
        ({'score': 0.51}, False),
        ({'center': (31.0, 40.0)}, False),
        ({'size': (20.0, 11.0)}, False),
    ],
)
def test_changed_drawing_is_not_the_same(change, expected):
    assert viewer.is_same(*drawing_and_detection(**change)) is expected


def test_missing_drawing_is_not_the_same():
    _, detections = drawing_and_detection()
    assert not viewer.is_same(ImageAnnotations(), detections)
