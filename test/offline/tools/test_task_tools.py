# SPDX-License-Identifier: Apache-2.0
"""Commands and Python API support models for poses, oriented boxes and masks."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.models.recorded_exports import recorded_values, write_export
from trt_perception.images.detections import oriented_corners
from trt_perception.images.drawing import draw_detections
from trt_perception.model.tasks.pose import COCO_KEYPOINTS
from trt_perception.offline.tools.benchmark_engine import main as benchmark_engine
from trt_perception.offline.tools.detect_images import main as detect_images

RECORDING = recorded_values('ultralytics_pose')


@pytest.fixture
def model(tmp_path):
    write_export(RECORDING, tmp_path / 'pose.onnx')
    return tmp_path / 'pose.onnx'


def found_by(model):
    with tp.load(model, confidence_threshold=0.02) as opened:
        assert opened.keypoint_names == COCO_KEYPOINTS.names
        return opened(RECORDING['image'])


def test_python_api_returns_keypoints(model):
    found = found_by(model)
    assert found.keypoints.shape == (len(found), 17, 3)
    assert set(found.as_supervision()) == {'xyxy', 'confidence', 'class_id'}
    with tp.load(Path(__file__).parents[3] / 'models' / 'digits.onnx') as digits:
        assert digits.keypoint_names == ()
        assert digits(RECORDING['image']).keypoints is None


def test_detect_images_writes_and_draws_keypoints(model, tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), RECORDING['image'])
    out = tmp_path / 'out'
    words = ['--engine', model, '--source', tmp_path / 'a.png', '--output', out]
    assert detect_images([*map(str, words), '--confidence', '0.02']) == 0
    found = found_by(model)
    dataset = json.loads((out / 'detections.json').read_text())
    (category,) = dataset['categories']
    assert (category['name'], len(category['keypoints'])) == ('person', 17)
    assert category['skeleton'][0] == [16, 14], 'left ankle and knee, counted from 1'
    results = json.loads((out / 'results.json').read_text())
    assert len(found) == len(results) == len(dataset['annotations']) > 3
    for index, (row, annotation) in enumerate(zip(results, dataset['annotations'], strict=True)):
        points = np.array(row['keypoints']).reshape(17, 3)
        assert np.allclose(points[:, :2], found.keypoints[index, :, :2], atol=1e-4)
        assert (points[:, 2] == np.where(found.keypoints[index, :, 2] >= 0.5, 2, 1)).all()
        assert row['keypoint_scores'] == pytest.approx(found.keypoints[index, :, 2].tolist())
        assert annotation['keypoints'] == row['keypoints']
        assert annotation['num_keypoints'] == 17
    expected = RECORDING['image'].copy()
    draw_detections(expected, found, ('person',), COCO_KEYPOINTS.skeleton)
    assert np.array_equal(cv2.imread(str(out / 'a.png')), expected)
    assert json.loads((out / 'summary.json').read_text())['task'] == 'pose'


def test_oriented_boxes_are_returned_and_written(tmp_path):
    recording = recorded_values('ultralytics_obb')
    write_export(recording, tmp_path / 'obb.onnx')
    cv2.imwrite(str(tmp_path / 'a.png'), recording['image'])
    with tp.load(tmp_path / 'obb.onnx', confidence_threshold=0.05) as model:
        found = model(recording['image'])
    assert found.keypoints is None
    assert len(found) > 3
    corners = found.as_supervision()['data']['xyxyxyxy']
    assert np.array_equal(corners, oriented_corners(found.oriented))
    out = tmp_path / 'out'
    words = ['--engine', tmp_path / 'obb.onnx', '--source', tmp_path / 'a.png', '--output', out]
    assert detect_images([*map(str, words), '--confidence', '0.05']) == 0
    dataset = json.loads((out / 'detections.json').read_text())
    results = json.loads((out / 'results.json').read_text())
    assert len(dataset['annotations']) == len(results) == len(found)
    for index, (row, result) in enumerate(zip(dataset['annotations'], results, strict=True)):
        assert row['oriented_bbox'] == pytest.approx(found.oriented[index].tolist(), abs=1e-5)
        assert np.allclose(row['segmentation'], corners[index].reshape(1, 8), atol=1e-4)
        assert row['area'] == pytest.approx(found.oriented[index, 2:4].prod(), rel=1e-4)
        assert result['oriented_bbox'] == row['oriented_bbox']
        assert 'segmentation' not in result


def test_masks_are_returned_written_and_drawn(tmp_path):
    mask = pytest.importorskip('pycocotools.mask')
    recording = recorded_values('ultralytics_segment_26')
    write_export(recording, tmp_path / 'segment.onnx')
    cv2.imwrite(str(tmp_path / 'a.png'), recording['image'])
    with tp.load(tmp_path / 'segment.onnx', confidence_threshold=0.05) as model:
        found = model(recording['image'])
    masks = found.as_supervision()['mask']
    assert masks.any(axis=(1, 2)).sum() > 3
    out = tmp_path / 'out'
    words = ['--engine', tmp_path / 'segment.onnx', '--source', tmp_path / 'a.png']
    words += ['--output', out, '--confidence', '0.05']
    assert detect_images([*map(str, words)]) == 0
    results = json.loads((out / 'results.json').read_text())
    dataset = json.loads((out / 'detections.json').read_text())
    assert len(results) == len(found)
    for expected, result, row in zip(masks, results, dataset['annotations'], strict=True):
        assert np.array_equal(mask.decode(result['segmentation']).astype(bool), expected)
        assert row['segmentation'] == result['segmentation']
        assert row['area'] == expected.sum()
    drawn = cv2.imread(str(out / 'a.png'))
    changed = (drawn != recording['image']).any(axis=2)
    assert changed[masks.any(axis=0)].mean() > 0.9


@pytest.mark.parametrize('task', ['pose', 'obb', 'segment'])
def test_benchmark_engine_runs_each_task(task, tmp_path, capsys):
    write_export(recorded_values(f'ultralytics_{task}'), tmp_path / 'model.onnx')
    report = tmp_path / 'r.json'
    words = [str(tmp_path / 'model.onnx'), '--frames', '3', '--warmup', '1', '--size', '320x240']
    assert benchmark_engine([*words, '--confidence', '0.01', '--json', str(report)]) == 0
    (model,) = json.loads(report.read_text())['models']
    assert set(model['stages']) == {'preprocess', 'inference', 'decode'}
    assert re.search(r' and [1-9]\d* detections', capsys.readouterr().out)
