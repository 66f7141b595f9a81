"""scripts/demo.py: the whole way over DDS, and what it says of a model with other classes."""

import json
from pathlib import Path

import numpy as np
import pytest
from ament_index_python.packages import get_package_share_directory

from support.demo_runs import run_demo
from support.models.task_models import write_task_model
from support.models.tiny_model import write_tiny_model

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.ros

DIGITS = Path(get_package_share_directory('trt_perception')) / 'models' / 'digits.onnx'


def demo(folder, *arguments, in_step=False):
    ended = run_demo(*arguments, folder=folder, in_step=in_step)
    assert ended.returncode == 0, ended.stderr
    assert 'Traceback' not in ended.stderr
    return ended, json.loads((folder / 'summary.json').read_text())


def test_a_model_with_none_of_the_classes_measures_no_accuracy(tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    ended, summary = demo(tmp_path / 'out', '--model', model, '--rate', '60')
    assert summary['precision'] is None
    assert summary['recall'] is None
    assert summary['published'] > 0
    note = 'the scenes show 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, but the model has only these'
    # Before the pictures are sent, and below the table.
    assert note in ended.stderr
    assert note in ended.stdout
    assert 'red, green, blue' in ended.stdout
    assert ended.stdout.count('  not measured\n') == 2


def test_several_cameras_find_what_one_finds(tmp_path):
    arguments = ('--model', DIGITS, '--cameras', 'front,rear', '--rate', '100')
    ended, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    table = ended.stdout.splitlines()
    for name in ('front', 'rear'):
        of_camera = summary['cameras'][name]
        assert of_camera['precision'] > 0.9
        assert of_camera['sent'] == 20
        ends = sum(of_camera['dropped'].values()) + of_camera['published'] + of_camera['failed']
        assert of_camera['received'] == ends
        assert sum(line.split()[:2] == [name, '20'] for line in table) == 1
        assert (tmp_path / 'out' / f'overview_{name}.jpg').is_file()
    found = json.loads((tmp_path / 'out' / 'detections.json').read_text())
    assert len(found['front']) == 20
    assert None not in found['front'].values()
    assert found['front'] == found['rear']


def test_masks_come_with_their_boxes(tmp_path):
    model = write_task_model(tmp_path / 'segment.onnx', 'segment')
    arguments = ('--task', 'segment', '--model', model, '--rate', '100')
    _, summary = demo(tmp_path / 'out', *arguments, in_step=True)
    assert (tmp_path / 'out' / 'overview.jpg').is_file()
    assert summary['sent'] == 20
    content = json.loads((tmp_path / 'out' / 'detections.json').read_text())
    shares = []
    for one in [one for image in content.values() for one in image]:
        x, y, width, height = one['bbox']
        left, top, right, bottom = np.ceil([x, y, x + width, y + height])
        shares.append(one['mask_pixels'] / ((right - left) * (bottom - top)))
    # The model's masks fill their boxes. A better mask on top hides a few.
    assert np.median(shares) == 1


def test_the_digits_model(tmp_path):
    ended, summary = demo(tmp_path / 'out', '--model', DIGITS)
    assert 'has none of these classes' not in ended.stdout
    assert summary['precision'] > 0.9
    assert summary['recall'] > 0
