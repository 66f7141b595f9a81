# SPDX-License-Identifier: Apache-2.0
"""The tools and the Python API run a YOLOX that others trained, as the demo of YOLOX does.

The images show characters with known boxes (scripts/benchmarks/text_scenes.py).
"""

import json
import shutil

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.docs_pages import load_script
from support.optional_packages import needs
from support.oracles.yolox import YoloxFile, count_pairs
from support.trained_yolox import PARAM_OPTIONS, PARAMETERS, THRESHOLDS, read_truth
from trt_perception.errors import EngineError
from trt_perception.offline.tools import (
    detect_images,
    evaluate_engine,
    inspect_engine,
    write_manifest,
)

pytest.importorskip('matplotlib', reason='needs matplotlib')
pytest_plugins = ['support.trained_fixtures']
text_scenes = load_script('benchmarks/text_scenes.py')

NETWORK = 416
#: Sizes for which YOLOX's resized sides are whole numbers.
WHOLE_SIZES_WH = [(640, 480), (1920, 1080), (416, 416), (208, 104), (480, 640)]
#: Sizes for which YOLOX truncates a resized side.
TRUNCATED_SIZES_WH = [(300, 180), (637, 477), (297, 174), (411, 415), (479, 634)]
IMAGES = 20


@pytest.fixture(scope='module')
def reference(trained_yolox):
    return YoloxFile(trained_yolox)


@pytest.fixture(scope='module')
def model(trained_yolox):
    with tp.load(trained_yolox, **PARAMETERS) as opened:
        yield opened


@pytest.fixture(scope='module')
def truth(trained_yolox, tmp_path_factory):
    """Return the path of truth.json, next to its images."""
    return text_scenes.write_scenes(
        tmp_path_factory.mktemp('scenes') / 'new', range(1, IMAGES + 1)
    )


def scene_of_size(size_wh):
    picture, _ = text_scenes.scene(sum(size_wh))
    return cv2.resize(picture, size_wh, interpolation=cv2.INTER_AREA)


def network_pixel(image):
    """Return the size of a pixel of the network's input, in pixels of the image."""
    return max(image.shape[:2]) / NETWORK


@pytest.mark.parametrize('size_wh', WHOLE_SIZES_WH)
def test_boxes_equal_those_of_yolox(model, reference, size_wh):
    image = scene_of_size(size_wh)
    boxes, scores = reference.detect(image, **THRESHOLDS)
    found = model(image)
    assert len(found) >= 2
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_allclose(found.xyxy, boxes, atol=0.01)
    assert not found.class_ids.any()


@pytest.mark.parametrize('size_wh', TRUNCATED_SIZES_WH)
def test_scores_equal_those_of_yolox_if_it_truncates_a_side(model, reference, size_wh):
    """YOLOX scales boxes as if it had not truncated, which moves them by up to a network pixel."""
    image = scene_of_size(size_wh)
    boxes, scores = reference.detect(image, **THRESHOLDS)
    found = model(image)
    assert len(found) >= 2
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_allclose(found.xyxy, boxes, atol=network_pixel(image))


def test_low_scores_equal_those_of_yolox(model, reference):
    image = scene_of_size(WHOLE_SIZES_WH[0])
    boxes, scores = reference.detect(image, confidence=1e-4, iou=0.9)
    found = model(image, confidence_threshold=1e-4, iou_threshold=0.9)
    assert len(found) > 20
    np.testing.assert_allclose(found.scores, scores, rtol=1e-3)
    np.testing.assert_allclose(found.xyxy, boxes, atol=0.01)


def test_file_without_metadata_needs_parameters(trained_yolox, capsys):
    with pytest.raises(EngineError):
        tp.load(trained_yolox)
    assert inspect_engine.main([str(trained_yolox)]) == 1
    assert capsys.readouterr().out == ''


def test_inspect_engine_shows_the_preprocessing_of_yolox(trained_yolox, tmp_path):
    report = tmp_path / 'report.json'
    assert inspect_engine.main([str(trained_yolox), *PARAM_OPTIONS, '--json', str(report)]) == 0
    found = json.loads(report.read_text())['recognised']
    assert found['decoder'] == {'family': 'yolox_raw', 'strides': [8, 16, 32]}
    expected = {'color_order': 'bgr', 'scale': 1.0, 'pad_value': 114, 'mean': [0] * 3}
    expected |= {'resize': 'letterbox_top_left', 'std': [1] * 3, 'antialias': False}
    assert expected.items() <= found['preprocessing'].items()


def test_manifest_replaces_the_parameters(trained_yolox, model, tmp_path):
    path = shutil.copy(trained_yolox, tmp_path)
    assert write_manifest.main([str(path), *PARAM_OPTIONS]) == 0
    image = scene_of_size(WHOLE_SIZES_WH[0])
    with tp.load(path) as described:
        found, expected = described(image), model(image)
        assert described.class_names == model.class_names == ('character',)
    assert len(found) >= 2
    np.testing.assert_array_equal(found.xyxy, expected.xyxy)


def test_detect_images_writes_the_boxes_of_yolox(trained_yolox, reference, truth, tmp_path):
    out = tmp_path / 'out'
    arguments = ['--source', str(truth.parent / '*.png'), '--output', str(out), '--no-pictures']
    assert detect_images.main([str(trained_yolox), *arguments, *PARAM_OPTIONS]) == 0
    written = json.loads((out / 'detections.json').read_text())
    assert [each['name'] for each in written['categories']] == ['character']
    assert len(written['images']) == IMAGES
    for image in written['images']:
        pixels = cv2.imread(str(truth.parent / image['file_name']))
        rows = [row for row in written['annotations'] if row['image_id'] == image['id']]
        boxes, scores = reference.detect(pixels, **THRESHOLDS)
        boxes[:, 2:] -= boxes[:, :2]
        np.testing.assert_allclose([row['score'] for row in rows], scores, atol=1e-3)
        found = np.reshape([row['bbox'] for row in rows], (-1, 4))
        np.testing.assert_allclose(found, boxes, atol=network_pixel(pixels))


@needs('pycocotools')
def test_evaluate_engine_counts_the_true_characters(trained_yolox, reference, truth, tmp_path):
    report = tmp_path / 'report.json'
    arguments = ['--images', str(truth.parent), '--annotations', str(truth), *PARAM_OPTIONS]
    assert evaluate_engine.main([str(trained_yolox), *arguments, '--json', str(report)]) == 0
    (measured,) = json.loads(report.read_text())['models'].values()
    right = found = objects = 0
    for image, true in read_truth(truth):
        boxes, _ = reference.detect(image, **THRESHOLDS)
        right += count_pairs(boxes, true)
        found += len(boxes)
        objects += len(true)
    # Boxes near an IoU of 0.5 may count differently, because YOLOX moves boxes.
    assert measured['at_threshold']['right'] == pytest.approx(right, abs=1)
    assert measured['at_threshold']['false'] == pytest.approx(found - right, abs=1)
    assert measured['metrics']['objects'] == objects
    assert right > 0.75 * objects
    assert measured['metrics']['mAP50'] > 0.8
