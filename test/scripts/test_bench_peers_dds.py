# SPDX-License-Identifier: Apache-2.0
"""Test scripts/bench peers_dds: a short run over DDS, its messages, figures, table and plot."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from std_msgs.msg import Header

from support.docs_pages import load_script
from support.models.detector_models import ANCHORS, SIZE, detector_model
from support.models.support_models import MANIFEST, write_model
from support.waiting import require_arrivals

pytestmark = pytest.mark.ros

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'benchmarks' / 'peers_dds.py'
report = load_script('benchmarks/peers/dds_report.py')
ros_node = load_script('benchmarks/peers/ros_node.py')


def write_square_detector(folder):
    shapes = {'images': [1, 3, SIZE, SIZE], 'output': [1, 6, ANCHORS]}
    inputs, outputs = (
        [{'name': name, 'shape': shape, 'dtype': 'float32'}] for name, shape in shapes.items()
    )
    # The preprocessing of Ultralytics, which the side with ONNX Runtime has.
    usual = {'input_size': [SIZE, SIZE], 'mean': [0, 0, 0], 'std': [1, 1, 1]}
    return write_model(
        *(folder, 'net.onnx', detector_model().SerializeToString()),
        inputs=inputs,
        outputs=outputs,
        preprocessing={**MANIFEST['preprocessing'], **usual},
    )


def test_sides_find_the_same_boxes_and_a_failing_side_is_reported(tmp_path):
    """The weights are no weights, so that Ultralytics fails, installed or not."""
    weights = tmp_path / 'none.pt'
    weights.write_bytes(b'no weights')
    seconds, rate = 2, 5
    result = subprocess.run(
        [
            *(sys.executable, SCRIPT, write_square_detector(tmp_path), '--weights', weights),
            *('--device', 'cpu', '--count', '2', '--rounds', '1', '--rate', str(rate)),
            *('--seconds', str(seconds), '--warm-up', '1', '--json', 'found.json'),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert result.returncode == 1, result.stderr
    record = json.loads((tmp_path / 'found.json').read_text())
    [case] = record['cases']
    assert list(case['failures']) == ['ultralytics'], result.stderr
    assert list(case['medians']) == ['ours', 'onnxruntime']
    [ours], [other] = (case['sides'][name]['rounds'] for name in case['medians'])
    for found in (ours, other):
        require_arrivals([found['received'], len(found['objects']) == 2], 'detections')
        assert found['sent'] == found['received'] + found['lost'] <= 2 * (seconds * rate + 1)
        assert 0 < found['p50_ms'] <= found['p95_ms'] <= found['p99_ms']
        assert found['cpu_percent'] > 0
    assert ours['objects'] == other['objects']
    assert min(ours['objects'].values()) > 0
    rows = report.table_rows(record)
    assert [len(row) for row in rows] == [len(report.HEADS)] * 2
    assert rows[0][2:5] == tuple(f'{ours[key]:.1f}' for key in ('p50_ms', 'p95_ms', 'p99_ms'))
    picture = tmp_path / 'found.svg'
    report.plot(record, picture)
    assert 'latency p99, ms' in picture.read_text()


def test_figures_are_the_medians_of_the_rounds():
    rounds = [
        dict.fromkeys(report.FIGURES, value)
        | {'sent': 100, 'lost': lost, 'objects': {'a': 2, 'b': 5}, 'gpu_mib': None}
        for value, lost in ((9.0, 50), (1.0, 0), (2.0, 4))
    ]
    case = {'sides': {'ours': {'rounds': rounds}, 'ultralytics': {'rounds': []}}}
    expected = dict.fromkeys(report.FIGURES, 2.0)
    expected |= {'lost_share': 0.04, 'objects': 3.5, 'gpu_mib': None}
    assert report.summary(case) == {'ours': expected}


def test_message_has_the_header_of_the_image_and_a_detection_for_each_box():
    header = Header(frame_id='front')
    boxes = np.array([[10, 20, 30, 60], [0, 0, 5, 7]], np.float32)
    found = ros_node.detections_message(header, boxes, np.float32([0.5, 0.25]), np.array([3, 0]))
    assert found.header == header
    first, second = found.detections
    assert (first.bbox.center.position.x, first.bbox.center.position.y) == (20, 40)
    assert (first.bbox.size_x, first.bbox.size_y) == (20, 40)
    assert (second.bbox.size_x, second.bbox.size_y) == (5, 7)
    assert [each.results[0].hypothesis.class_id for each in found.detections] == ['3', '0']
    assert [each.results[0].hypothesis.score for each in found.detections] == [0.5, 0.25]
    assert ros_node.detections_message(header, boxes[:0], [], []).detections == []
