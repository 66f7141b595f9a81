"""scripts/demo.py with masks, oriented boxes and keypoints, over DDS, against the truth's own."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ament_index_python.packages import get_package_share_directory
from pycocotools import mask as coco_masks
from sensor_msgs.msg import Image

from support.demo_runs import ROOT, run_demo
from support.models.task_models import write_task_model

# test_demo shows what of the demo depends on ROS.
pytestmark = pytest.mark.any_ros
SHARE = Path(get_package_share_directory('trt_perception'))
TRUTH = json.loads((SHARE / 'demo' / 'truth.json').read_text())['annotations']


def shown(folder, task):
    """What the demo found with a model of a task, and the detections of all images it saw."""
    model = write_task_model(folder / f'{task}.onnx', task)
    ended = run_demo('--task', task, '--model', model, '--rate', '10', folder=folder / 'out')
    assert ended.returncode == 0, ended.stderr
    assert 'Traceback' not in ended.stderr
    assert (folder / 'out' / 'overview.jpg').is_file()
    content = json.loads((folder / 'out' / 'detections.json').read_text())
    found = [one for image in content.values() for one in image or ()]
    assert len(found) > 100
    return ended.stdout, json.loads((folder / 'out' / 'summary.json').read_text()), found


def test_masks(tmp_path):
    told, summary, found = shown(tmp_path, 'segment')
    shares = []
    for one in found:
        x, y, width, height = one['bbox']
        left, top, right, bottom = np.ceil([x, y, x + width, y + height])
        shares.append(one['mask_pixels'] / ((right - left) * (bottom - top)))
    # Boxes are written to a hundredth of a pixel; a better mask on top hides a few.
    assert np.median(shares) == 1
    assert max(shares) < 1.2
    # A mask that fills its box is right where the ink fills half of it.
    ink = np.array([coco_masks.area(one['segmentation']) for one in TRUTH])
    share = np.mean(ink / [one['area'] for one in TRUTH] >= 0.5)
    assert summary['precision'] == pytest.approx(share, abs=0.15)
    assert summary['recall'] <= summary['precision'] + 0.1
    assert 'precision at mask IoU 0.5' in told


def test_oriented_boxes(tmp_path):
    told, summary, found = shown(tmp_path, 'obb')
    assert all(one['oriented_bbox'][4] == 0 for one in found)
    assert summary['precision'] > 0.85  # an upright box overlaps nearly every turned one by half
    errors = np.degrees(np.abs([one['oriented_bbox'][4] for one in TRUTH]))
    assert summary['angle_error_deg'] == pytest.approx(np.median(errors), abs=3)
    assert 'median error of the angle' in told


def test_keypoints(tmp_path):
    told, summary, found = shown(tmp_path, 'pose')
    for one in found:
        x, y, width, height = one['bbox']
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        np.testing.assert_allclose([point[:2] for point in one['keypoints']], corners, atol=0.03)
        assert all(point[2] == 1 for point in one['keypoints'])
    assert summary['precision'] == pytest.approx(np.mean(list(corners_of_boxes())), abs=0.12)
    assert 'precision at OKS 0.5' in told


def corners_of_boxes():
    """Whether the upright box's corners reach OKS 0.5, for each object of the truth."""
    for one in TRUTH:
        x, y, width, height = one['bbox']
        corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
        points = np.array(one['keypoints']).reshape(4, 3)
        counts = points[:, 2] > 0
        apart = np.square(corners - points[:, :2]).sum(1)[counts]
        yield np.mean(np.exp(-apart / (2 * (2 * 0.05) ** 2 * one['area']))) >= 0.5


def test_what_the_transport_lost_is_measured_as_nothing_found(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / 'scripts')
    detections_of = importlib.import_module('demo_results').detections_of
    masks = Image(height=48, width=64, step=128, encoding='mono16', data=bytes(48 * 128))
    options = SimpleNamespace(task='segment', truth=SHARE / 'demo' / 'truth.json')
    camera = SimpleNamespace(classes=['0'], detections={}, carried={7: masks})
    found = detections_of(options, camera, 7)
    assert len(found) == 0
    assert found.masks is None


def test_sizes_are_of_boxes_alone(tmp_path):
    ended = run_demo('--task', 'pose', '--size', '640x480', '--model', tmp_path)
    assert ended.returncode == 2
    assert '--size goes with --task detect only (got --task pose)' in ended.stderr


def test_the_shipped_model_is_taken(tmp_path):
    ended = run_demo('--task', 'obb', '--rate', '10', folder=tmp_path / 'out')
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())
    assert summary['precision'] > 0.8
    # A busy machine drops pictures, and recall is of all that were sent.
    assert summary['recall'] > 0.8 * summary['published'] / summary['sent']
    assert summary['angle_error_deg'] < 6  # an upright box is 12 degrees off


def test_a_model_of_another_task(tmp_path):
    model = SHARE / 'models' / 'digits.onnx'
    ended = run_demo('--task', 'obb', '--model', model, folder=tmp_path / 'out')
    assert ended.returncode == 1
    assert f'{model} is a model of the task detect, expected obb; give --task' in ended.stderr


def test_a_missing_model_is_named(tmp_path):
    ended = run_demo('--task', 'obb', '--model', tmp_path / 'none.onnx', folder=tmp_path / 'out')
    assert ended.returncode == 2
    assert 'none.onnx does not exist' in ended.stderr
