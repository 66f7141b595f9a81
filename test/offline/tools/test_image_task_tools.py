# SPDX-License-Identifier: Apache-2.0
"""Tools that measure and describe models accept models for the tasks of the whole image."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.models.image_models import IMAGE_TASKS, NAMES, tool_arguments
from trt_perception.model.tasks.table import TASKS
from trt_perception.offline.tools.benchmark_engine import main as benchmark_engine
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine
from trt_perception.offline.tools.export_triton import main as export_triton
from trt_perception.offline.tools.inspect_engine import main as inspect_engine
from trt_perception.offline.tools.write_manifest import main as write_manifest


def change_weights(path, factors):
    """Multiply the rows of the weights in a file."""
    model = onnx.load(path)
    (weights,) = model.graph.initializer
    changed = numpy_helper.to_array(weights) * np.array(factors, np.float32).reshape(-1, 1, 1, 1)
    weights.CopyFrom(numpy_helper.from_array(changed, weights.name))
    onnx.save(model, path)


def test_every_task_of_the_whole_image_has_a_network():
    assert set(IMAGE_TASKS) == {name for name, task in TASKS.items() if not task.finds_objects}


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_benchmark_has_no_boxes_and_measures_the_agreement(task, tmp_path, capsys):
    model, *parameters = tool_arguments(task, tmp_path / 'model.onnx')
    other = tool_arguments(task, tmp_path / 'other.onnx')[0]
    if task != 'depth':
        change_weights(other, [-1, -1, -1, -1])
    quick = ['--frames', '3', '--warmup', '0', '--size', '64x48']
    saved = tmp_path / 'r.json'
    words = [model, other, *parameters, *quick, '--json', saved]
    assert benchmark_engine(list(map(str, words))) == 0
    output = capsys.readouterr().out
    assert 'candidates' not in output
    assert 'differ from their first run' not in output
    report = json.loads(saved.read_text())
    for model in report['models']:
        assert model['candidates'] == []
        assert model['pipelines'][0]['detections'] is None
        assert model['pipelines'][0]['unequal'] == 0
    (agreement,) = report['agreement']
    assert agreement['images'] == 8
    if task == 'depth':
        assert (agreement['mean'], agreement['lowest']) == (1, 1)
    else:
        assert agreement['mean'] < 0.5, 'opposite logits have other best classes'


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_benchmark_refuses_options_for_objects(task, tmp_path, golden_messages, capsys):
    assert write_manifest(tool_arguments(task, tmp_path / 'model.onnx')) == 0
    models = [Path(__file__).parents[3] / 'models' / 'digits.onnx', tmp_path / 'model.onnx']
    for option in (['--confidence', '0.9'], ['--iou', '0.9'], ['--max-detections', '5']):
        assert benchmark_engine([*map(str, models), *option]) == 2
        golden_messages.add(last_error(capsys, tmp_path))


def test_benchmark_accepts_default_values_of_options_for_objects(tmp_path):
    words = tool_arguments('semantic', tmp_path / 'model.onnx')
    quick = ['--frames', '1', '--warmup', '0', '--size', '64x48', '--steps-only']
    assert benchmark_engine([*words, *quick, '--confidence', '0.25']) == 0


def last_error(capsys, folder):
    """Return the last message. Messages before it tell how the model was recognised."""
    return capsys.readouterr().err.replace(str(folder), 'FOLDER').splitlines()[-1]


@pytest.fixture
def scenes(tmp_path):
    """Write images of one colour in folders named like classes, and labels for other tasks."""
    for name, bgr in COLORS.items():
        for number in range(2):
            place = f'{name}/{number}'
            for folder in ('images', 'ids', 'depth'):
                (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
            pixels = np.full((48, 64, 3), bgr, np.uint8)
            cv2.imwrite(str(tmp_path / 'images' / f'{place}.png'), pixels)
            ids = np.full((48, 64), NAMES.index(name), np.uint8)
            ids[:12] = 255
            ids[12:21] = NAMES.index('gray')  # a quarter of the other pixels
            cv2.imwrite(str(tmp_path / 'ids' / f'{place}.png'), ids)
            metres = sum(bgr) / 765
            depth = np.full((48, 64), round(metres * 1000 / 1.1), np.uint16)
            cv2.imwrite(str(tmp_path / 'depth' / f'{place}.png'), depth)
    return tmp_path


COLORS = {'red': (0, 0, 204), 'green': (0, 204, 0), 'blue': (204, 0, 0)}
LABELS = {'classify': None, 'semantic': 'ids', 'depth': 'depth'}
FIGURES = {
    'classify': {'top1': 1, 'top5': 1},
    # Each colour: 27 of 36 rows are right. Gray is never found.
    'semantic': {'mIoU': 0.75 * 3 / 4, 'pixel_accuracy': 0.75},
    'depth': {'AbsRel': 0.1, 'delta1': 1},
}


def evaluate(scenes, task, *others, **parameters):
    """Run evaluate_engine. Return the exit code and the report."""
    model, *words = tool_arguments(task, scenes / 'model.onnx', **parameters)
    saved = scenes / 'report.json'
    words = [model, *others, *words, '--images', scenes / 'images', '--json', saved]
    code = evaluate_engine(list(map(str, words)))
    return code, json.loads(saved.read_text()) if saved.exists() else None


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_evaluation_measures_against_labels(task, scenes, capsys):
    labels = ['--annotations', scenes / LABELS[task]] if LABELS[task] else []
    code, report = evaluate(scenes, task, *labels)
    output, error = capsys.readouterr()
    assert code == 0, error
    assert report['images'] == 6
    model = report['models']['model.onnx']
    assert model['metrics'] == pytest.approx(FIGURES[task], abs=2e-3)
    for name, value in FIGURES[task].items():
        assert name in output
        assert f'{value:.3f}' in output or name == 'AbsRel'
    assert model['latency_ms']['p50'] > 0
    if task == 'semantic':
        expected = {'red': 0.75, 'green': 0.75, 'blue': 0.75, 'gray': 0}
        assert model['classes'] == pytest.approx(expected)


def test_relative_depth_is_evaluated_after_alignment(scenes):
    # Each image has one depth, which the shift alone explains.
    labels = ['--annotations', scenes / 'depth']
    code, report = evaluate(scenes, 'depth', *labels, model_decoder='relative_depth')
    assert code == 0
    figures = report['models']['model.onnx']['metrics']
    assert figures == pytest.approx({'AbsRel': 0, 'delta1': 1}, abs=1e-3)


@pytest.mark.parametrize('limit', [0.5, 0.7])
@pytest.mark.parametrize('labelled', [True, False])
def test_loss_of_a_classifier_has_a_limit(scenes, labelled, limit):
    other = tool_arguments('classify', scenes / 'other.onnx')[0]
    change_weights(other, [-1, -1, 1, 1])
    if not labelled:
        for folder in COLORS:
            (scenes / 'images' / folder).rename(scenes / 'images' / f'camera {folder}')
    code, report = evaluate(scenes, 'classify', other, '--max-accuracy-drop', limit)
    verdict = report['verdicts']['other.onnx']
    assert verdict['of'] == ('top1' if labelled else 'agreement')
    # Only the blue images keep their best class.
    assert verdict['loss'] == pytest.approx(2 / 3)
    assert (verdict['within'], code) == ((True, 0) if limit > 2 / 3 else (False, 1))


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_evaluation_compares_models_without_labels(task, scenes, capsys):
    other = tool_arguments(task, scenes / 'other.onnx')[0]
    if task != 'depth':
        change_weights(other, [-1, -1, 1, 1])
    for folder in COLORS:
        (scenes / 'images' / folder).rename(scenes / 'images' / f'camera {folder}')
    code, report = evaluate(scenes, task, other)
    output, error = capsys.readouterr()
    assert code == 0, error
    assert 'without labels' in output
    assert report['models']['model.onnx']['metrics'] is None
    assert report['models']['model.onnx']['agreement'] is None
    agreement = report['models']['other.onnx']['agreement']
    # Only the blue images keep their best class.
    assert agreement['mean'] == pytest.approx(1 if task == 'depth' else 1 / 3, abs=1e-6)
    assert agreement['lowest'] == (1 if task == 'depth' else 0)


@pytest.mark.parametrize(
    ('task', 'others'),
    [
        ('classify', ['--annotations', 'FOLDER/ids']),
        ('semantic', []),
        ('classify', ['--annotations', 'FOLDER/objects.json']),
        ('semantic', ['--annotations', 'FOLDER/model.onnx']),
        ('semantic', ['--annotations', 'FOLDER/objects.json']),
        ('depth', ['--annotations', 'FOLDER/missing.json']),
        ('semantic', ['--annotations', 'FOLDER/ids', '--boxes-only']),
        ('semantic', ['--annotations', 'FOLDER/ids', '--confidence', '0.9']),
        ('semantic', ['--annotations', 'FOLDER/ids', '--class-map', 'FOLDER/map.json']),
        ('semantic', ['--annotations', 'FOLDER/depth']),
        ('depth', ['--annotations', 'FOLDER']),
        ('classify', ['--worst', 'FOLDER/worst']),
        ('classify', ['--allow-missing']),
        ('semantic', ['--allow-subset']),
        ('semantic', ['FOLDER/other.onnx', '--allow-missing']),
    ],
)
def test_options_that_do_not_fit_the_task_are_refused(
    task, others, scenes, golden_messages, capsys
):
    (scenes / 'map.json').write_text('{"red": "rot"}')
    objects = '{"images": [], "annotations": [], "categories": []}'
    (scenes / 'objects.json').write_text(objects)
    tool_arguments(task, scenes / 'other.onnx')
    words = [word.replace('FOLDER', str(scenes)) for word in others]
    code, _ = evaluate(scenes, task, *words)
    assert code in (1, 2)
    golden_messages.add(last_error(capsys, scenes))


@pytest.mark.parametrize('folders', [COLORS, ['blue']])
def test_one_classifier_needs_folders_with_names_of_classes(
    folders, scenes, golden_messages, capsys
):
    for name in COLORS:
        if name not in folders:
            shutil.rmtree(scenes / 'images' / name)
    for name in folders:
        (scenes / 'images' / name).rename(scenes / 'images' / f'camera {name}')
    assert evaluate(scenes, 'classify')[0] == 2
    golden_messages.add(last_error(capsys, scenes))


def test_folder_of_labels_is_refused_for_models_that_find_objects(scenes, golden_messages, capsys):
    digits = Path(__file__).parents[3] / 'models' / 'digits.onnx'
    words = [digits, '--images', scenes / 'images', '--annotations', scenes / 'ids']
    assert evaluate_engine(list(map(str, words))) == 2
    golden_messages.add(last_error(capsys, scenes))


def test_models_of_different_tasks_are_refused(scenes, golden_messages, capsys):
    digits = Path(__file__).parents[3] / 'models' / 'digits.onnx'
    assert write_manifest(tool_arguments('semantic', scenes / 'model.onnx')) == 0
    capsys.readouterr()
    words = [digits, scenes / 'model.onnx', '--images', scenes / 'images']
    assert evaluate_engine(list(map(str, words))) == 1
    golden_messages.add(last_error(capsys, scenes))


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_manifest_is_written_shown_and_exported(task, tmp_path, capsys):
    words = tool_arguments(task, tmp_path / 'model.onnx')
    assert write_manifest(words) == 0
    manifest = json.loads((tmp_path / 'model.onnx.json').read_text())
    assert (manifest['task'], manifest['class_names']) == (
        task,
        [] if task == 'depth' else list(NAMES),
    )
    assert ('classes' in capsys.readouterr().out.splitlines()[0]) == (task != 'depth')
    assert inspect_engine([words[0]]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ['task', task] in lines
    assert any(line[:1] == ['classes'] for line in lines) == (task != 'depth')
    (tmp_path / 'models').mkdir()
    for kind in ('unchanged', 'uint8'):
        words = [words[0], '--repository', str(tmp_path / 'models'), '--name', kind]
        assert export_triton([*words, '--input', kind]) == 0
        assert (tmp_path / 'models' / kind / 'config.pbtxt').is_file()
