# SPDX-License-Identifier: Apache-2.0
"""build_engine calibrates and compares models that describe the whole image."""

import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.building.messages import without_variable_text
from support.gpu.gpu_support import BUILT_ON_CPU_MARKS
from support.models.digits import CALIBRATION_IMAGES
from support.models.image_models import IMAGE_TASKS, NAMES, add_layers, write_image_model
from trt_perception.checks.model import model_findings
from trt_perception.offline.building.steps import validation
from trt_perception.offline.tools import inspect_engine

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [*BUILT_ON_CPU_MARKS, pytest.mark.usefixtures('reuse_equal_plans')]
COUNT = 24
ROOT = Path(__file__).resolve().parents[4]
MODELS, DEMO = ROOT / 'models', ROOT / 'demo'


@pytest.fixture
def images(tmp_path):
    """Write images in folders with names of classes, and their labels in other folders."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        class_id = number % 3
        bgr = np.zeros((48, 64, 3), np.uint8)
        bgr[:, :, 2 - class_id] = 220
        bgr[:16] = rng.integers(0, 255, (16, 64, 3))
        ids = np.full((48, 64), 255, np.uint8)
        ids[24:] = class_id
        depth = np.rint(bgr.mean(2) / 255 * 1000).astype(np.uint16)
        for folder, pixels in (('images', bgr), ('semantic', ids), ('depth', depth)):
            path = tmp_path / folder / NAMES[class_id] / f'{number}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), pixels)
    return tmp_path / 'images'


@pytest.fixture
def build_task(build, images):
    """Return a function that builds the model of a task with the options that describe it."""

    def build_task(task, *words):
        model = images.parent / 'model.onnx'
        parameters = write_image_model(task, model)
        add_layers(model)
        described = ['--task', task, '--decoder', parameters['model.decoder']]
        described += ['--resize', 'stretch', '--color-order', 'rgb', '--scale', 1 / 255]
        described += ['--mean', 0, 0, 0, '--std', 1, 1, 1]
        if 'model.class_names' in parameters:
            described += ['--class-names', *NAMES]
        return build(*described, *words, onnx_file=model)

    return build_task


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_int8_is_calibrated_and_compared_with_the_original(task, build_task, images, capsys):
    result = build_task(task, '--precision', 'int8', '--calibration-images', images)
    assert result.code == 0, capsys.readouterr().err
    record = result.manifest.build.agreement
    assert 0.95 < record.f1 <= 1
    assert (record.images, record.images_of, record.warning) == (COUNT, 'calibration', '')
    assert result.report['agreement']['details']['mean'] == record.f1
    assert result.manifest.build.calibration.images == COUNT
    # doctor and inspect_engine report the agreement.
    engine = images.parent / 'digits.engine'
    assert f'{record.f1:.1%} agreement' in record.statement
    assert inspect_engine.main([str(engine)]) == 0
    assert record.statement in capsys.readouterr().out
    modules = {'tensorrt_rtx': SimpleNamespace(version='1.7.1.116', error='')}
    found = model_findings(str(engine), modules, (), trial=str)
    (finding,) = [one for one in found if one.name == 'accuracy']
    assert finding.found == record.statement


def write_digit_crops(folder, scenes):
    """Write the digits of some demo scenes to folders of classes, as models/README.md says."""
    content = json.loads((DEMO / 'truth.json').read_text())
    names = {one['id']: one['name'] for one in content['categories']}
    files = {one['id']: one['file_name'] for one in content['images'][scenes]}
    for one in content['annotations']:
        if one['image_id'] not in files:
            continue
        scene = cv2.imread(str(DEMO / 'scenes' / files[one['image_id']]))
        left, top, width, height = one['bbox']
        half = max(width, height) * 0.65
        x, y = left + width / 2, top + height / 2
        rows = slice(max(0, int(y - half)), int(np.ceil(y + half)))
        columns = slice(max(0, int(x - half)), int(np.ceil(x + half)))
        path = folder / names[one['category_id']] / f'{one["id"]}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), scene[rows, columns])
    return folder


def test_int8_of_the_shipped_classifier_loses_at_most_0_01(build, tmp_path, capsys):
    calibration = write_digit_crops(tmp_path / 'calibration', slice(40, None))
    digits = write_digit_crops(tmp_path / 'digits', slice(0, 40))
    words = ['--precision', 'int8', '--calibration-images', calibration, '--validate', digits]
    classifier = MODELS / 'digits_classify.onnx'
    result = build(*words, '--max-accuracy-drop', '0.01', onnx_file=classifier)
    assert result.code == 0, capsys.readouterr().err
    record = result.manifest.build.accuracy
    assert (record.measure, record.images > 250) == ('top1', True)
    assert record.reference > 0.95
    assert record.built >= record.reference - 0.01
    # Some classes differ, so the comparison is not of FP32 with itself.
    assert 0.97 < result.manifest.build.agreement.f1 < 1


def write_class_maps(folder, count):
    """Write the true class of each pixel of the first demo scenes, from the visible ink."""
    from pycocotools import mask as coco_masks

    content = json.loads((DEMO / 'truth.json').read_text())
    for image in content['images'][:count]:
        true = np.zeros((image['height'], image['width']), np.uint8)
        for one in content['annotations']:
            if one['image_id'] == image['id']:
                mask = coco_masks.decode(one.get('visible', one['segmentation']))
                true[mask > 0] = one['category_id'] + 1
        cv2.imwrite(str(folder / f'{Path(image["file_name"]).stem}.png'), true)


def test_int8_of_the_shipped_semantic_model_loses_at_most_0_01(build, tmp_path, capsys):
    annotations = tmp_path / 'maps'
    annotations.mkdir()
    write_class_maps(annotations, 30)
    words = ['--precision', 'int8', '--calibration-images', CALIBRATION_IMAGES]
    words += ['--validate', DEMO / 'scenes' / 'scene_0[0-2]?.jpg', '--annotations', annotations]
    segmentation = MODELS / 'digits_semantic.onnx'
    result = build(*words, '--max-accuracy-drop', '0.01', onnx_file=segmentation)
    assert result.code == 0, capsys.readouterr().err
    record = result.manifest.build.accuracy
    assert (record.measure, record.images) == ('mIoU', 30)
    assert record.reference > 0.9
    assert record.built >= record.reference - 0.01
    # Some classes differ, so the comparison is not of FP32 with itself.
    assert 0.99 < result.manifest.build.agreement.f1 < 1


def test_int8_of_the_shipped_depth_model_agrees_with_fp32(build, capsys):
    scenes = DEMO / 'scenes'
    words = ['--precision', 'int8', '--calibration-images', scenes / 'scene_0[45]?.jpg']
    words += ['--validate', scenes / 'scene_0[0-2]?.jpg']
    result = build(*words, onnx_file=MODELS / 'depth_tiny.onnx')
    assert result.code == 0, capsys.readouterr().err
    record = result.manifest.build.agreement
    assert record.images == 30
    assert 0.99 < record.f1 < 1


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_accuracy_gate_uses_the_figure_of_the_task(task, build_task, images, capsys):
    labels = [] if task == 'classify' else ['--annotations', images.parent / task]
    words = ['--precision', 'fp16', '--validate', images, '--max-accuracy-drop', '0.05']
    result = build_task(task, *words, *labels)
    assert result.code == 0, capsys.readouterr().err
    record = result.manifest.build.accuracy
    assert record.measure == {'classify': 'top1', 'semantic': 'mIoU', 'depth': 'delta1'}[task]
    assert record.reference > 0.99
    assert record.built == pytest.approx(record.reference, abs=0.01)
    assert result.report['accuracy']['drop'] == pytest.approx(record.reference - record.built)


def test_other_results_than_the_original_fail_the_build(
    build_task, images, monkeypatch, golden_messages, capsys
):
    real = validation.emulate_rounding

    def negated(model):
        model = real(model)
        for tensor in model.graph.initializer:
            if list(tensor.dims) == [4, 3, 1, 1]:
                values = -numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        onnx.checker.check_model(model)
        return model

    monkeypatch.setattr(validation, 'emulate_rounding', negated)
    for limit in ([], ['--max-accuracy-drop', '0.05']):
        result = build_task('semantic', '--precision', 'fp16', '--validate', images, *limit)
        assert result.code == 1
        golden_messages.add(without_variable_text(capsys.readouterr().err))
        assert result.manifest is None


def test_few_images_are_not_enough_for_the_agreement(build_task, images):
    few = images / 'red' / '0.png'
    result = build_task('depth', '--precision', 'fp16', '--validate', few)
    assert result.code == 0
    record = result.manifest.build.agreement
    assert (record.f1, record.images) == (None, 1)
    assert record.warning


def test_wrong_labels_are_refused_before_slow_steps(build_task, images, golden_messages, capsys):
    annotations = images.parent / 'labels.json'
    annotations.write_text(json.dumps({}))
    for task, labels in (('classify', images), ('semantic', annotations)):
        words = ['--precision', 'fp16', '--validate', images, '--annotations', labels]
        result = build_task(task, *words)
        assert result.code in (1, 2)
        message = without_variable_text(capsys.readouterr().err)
        golden_messages.add(message.replace(str(images.parent), 'FOLDER'))
