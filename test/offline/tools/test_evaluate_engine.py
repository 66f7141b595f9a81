# SPDX-License-Identifier: Apache-2.0
"""evaluate_engine measures the digits model and models with known outputs."""

import json
import re
import sys
from pathlib import Path

import pytest

from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.support_models import file_identity
from support.models.tiny_model import CLASS_NAMES, expected_detections, write_tiny_model
from support.optional_packages import needs
from support.oracles.evaluation_support import expected_stats, truth, written
from trt_perception.offline.tools import evaluate_engine
from trt_perception.offline.tools.parts.model_arguments import values_from_options

ROOT = Path(__file__).resolve().parents[3]
SIZE = (320, 240)
USUAL = ('--engine', 'MODEL', '--images', 'IMAGES', '--annotations', 'TRUTH')


def run_evaluate_engine(*arguments):
    """Run the command. Return its exit code, also if argparse exits."""
    try:
        return evaluate_engine.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


@pytest.fixture
def evaluation_inputs(tmp_path):
    """Return the arguments by name: a model, three images and their annotations."""
    import cv2
    import numpy as np

    folder = tmp_path / 'images'
    folder.mkdir()
    boxes = []
    for number, rgb in enumerate([(255, 0, 0), (0, 255, 128), (0, 0, 0)]):
        picture = np.full((SIZE[1], SIZE[0], 3), rgb[::-1], np.uint8)
        cv2.imwrite(str(folder / f'{number:03d}.png'), picture)
        for name, _, (x, y, width, height) in expected_detections(rgb, SIZE):
            boxes.append((number, name, (x - width / 2, y - height / 2, width, height)))
    content = truth(boxes, images=3, categories=CLASS_NAMES)
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    return {
        'model': model,
        'images': folder,
        'truth': written(tmp_path, content),
        'content': content,
        'folder': tmp_path,
    }


def run_usual(evaluation_inputs, *arguments):
    return run_evaluate_engine(
        *('--engine', evaluation_inputs['model'], '--images', evaluation_inputs['images']),
        *('--annotations', evaluation_inputs['truth'], *arguments),
    )


@needs('pycocotools')
@pytest.mark.parametrize(('left', 'code'), [(-1e9, 0), (1e9, 0), (1e10, 2), (1e300, 2)])
def test_object_far_outside_its_image_is_drawn_or_refused(
    evaluation_inputs, capsys, golden_messages, left, code
):
    (missed, *_), folder = evaluation_inputs['content']['annotations'], evaluation_inputs['folder']
    missed['bbox'][0] = left
    written(folder, evaluation_inputs['content'])
    assert run_usual(evaluation_inputs, '--worst', folder / 'worst') == code
    assert (folder / 'worst' / 'tiny.onnx' / 'montage.jpg').exists() == (code == 0)
    if code:
        golden_messages.add(capsys.readouterr().err)


@needs('pycocotools')
def test_model_that_finds_all_objects_scores_1(evaluation_inputs, capsys, golden_messages):
    folder = evaluation_inputs['folder']
    arguments = ['--json', folder / 'r.json', '--results', folder / 'results']
    assert run_usual(evaluation_inputs, *arguments, '--worst', folder / 'worst') == 0
    output, error = capsys.readouterr()
    assert error == ''  # no progress bar without a terminal
    golden_messages.add('\n'.join(line for line in output.splitlines() if 'image' in line))
    report = json.loads((folder / 'r.json').read_text())
    assert report['command'].startswith('evaluate_engine --engine')
    (model,) = report['models'].values()
    assert model['metrics']['mAP'] == pytest.approx(1)
    assert model['at_threshold']['precision'] == model['at_threshold']['recall'] == 1
    assert model['detections'] == 4
    assert 0 < model['latency_ms']['p50'] <= model['latency_ms']['p99']
    rows = json.loads((folder / 'results' / 'tiny.onnx.results.json').read_text())
    for annotation in evaluation_inputs['content']['annotations']:
        annotation['id'] += 1  # in a hand-written file, an object with the id 0 is never matched
    written(folder, evaluation_inputs['content'])
    stats = expected_stats(folder, rows)
    assert model['metrics']['mAP'] == pytest.approx(stats[0], abs=1e-12)


@needs('pycocotools')
def test_tilde_is_the_home_folder(evaluation_inputs, monkeypatch):
    monkeypatch.setenv('HOME', str(evaluation_inputs['folder']))
    arguments = ['--json=~/r.json', '--results=~/results']
    assert (
        run_usual(evaluation_inputs, *arguments, '--annotations=~/truth.json', '--images=~/images')
        == 0
    )
    assert (evaluation_inputs['folder'] / 'r.json').is_file()
    assert (evaluation_inputs['folder'] / 'results').is_dir()


@needs('pycocotools')
def test_two_models_are_compared(evaluation_inputs, capsys):
    (evaluation_inputs['folder'] / 'other').mkdir()
    other = write_tiny_model(evaluation_inputs['folder'] / 'other' / 'tiny.onnx')
    saved = evaluation_inputs['folder'] / 'r.json'
    arguments = ['--engine', other, '--json', saved, '--confidence', '0.6']
    assert run_usual(evaluation_inputs, *arguments) == 0
    output = capsys.readouterr().out
    report = json.loads(saved.read_text())
    assert list(report['models']) == [str(evaluation_inputs['model']), str(other)]
    second = report['models'][str(other)]
    assert second['difference'] == {'mAP': 0, 'mAP50': 0, 'mAP75': 0}
    assert second['agreement']['F1'] == 1
    # In one image the score of blue is 0.5: below the threshold, but used for mAP.
    assert second['metrics']['mAP'] == pytest.approx(1)
    assert second['at_threshold']['recall'] == 3 / 4
    assert '  difference' in output
    assert f'against {evaluation_inputs["model"]}' in output


@needs('pycocotools')
def test_batch_model_is_compared_with_a_single_image_model(evaluation_inputs, capsys):
    several = write_tiny_model(evaluation_inputs['folder'] / 'several.onnx', batch=2)
    report = evaluation_inputs['folder'] / 'r.json'
    assert run_usual(evaluation_inputs, '--engine', several, '--json', report) == 0
    assert 'several.onnx, 2 at once' in capsys.readouterr().out
    models = json.loads(report.read_text())['models']
    sums = json.loads(report.read_text())['sha256']
    assert sums['several.onnx'] == file_identity('', several.read_bytes())['sha256']
    assert [models[name]['batch'] for name in ('tiny.onnx', 'several.onnx')] == [1, 2]
    assert models['several.onnx']['metrics'] == models['tiny.onnx']['metrics']
    assert models['several.onnx']['agreement']['F1'] == 1


@needs('pycocotools')
def test_models_with_different_class_names_share_a_class_map(
    evaluation_inputs, capsys, golden_messages
):
    other = write_tiny_model(evaluation_inputs['folder'] / 'other.onnx')
    path = other.with_name('other.onnx.json')
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, 'class_names': ['Rot', 'green', 'blue']}))
    assert run_usual(evaluation_inputs, '--engine', other) == 1
    golden_messages.add(capsys.readouterr().err)
    class_map, report = (
        evaluation_inputs['folder'] / 'map.json',
        evaluation_inputs['folder'] / 'r.json',
    )
    class_map.write_text('{"Rot": "red"}')
    arguments = ['--engine', other, '--class-map', class_map, '--json', report]
    assert run_usual(evaluation_inputs, *arguments) == 0
    models = json.loads(report.read_text())['models']
    assert models['other.onnx']['metrics'] == models['tiny.onnx']['metrics']
    class_map.write_text('{"Rot": "red", "rouge": "red"}')
    assert run_usual(evaluation_inputs, *arguments) == 1
    golden_messages.add(capsys.readouterr().err)


@needs('pycocotools')
@pytest.mark.parametrize(('limit', 'code'), [('0.5', 1), ('0.7', 0), (None, 0)])
def test_loss_above_the_limit_is_exit_code_1(
    evaluation_inputs, capsys, golden_messages, limit, code
):
    other = write_tiny_model(evaluation_inputs['folder'] / 'other.onnx')
    path = other.with_name('other.onnx.json')
    described = json.loads(path.read_text())
    # Two of three names are exchanged, so that the second model has many wrong classes.
    path.write_text(json.dumps({**described, 'class_names': ['red', 'blue', 'green']}))
    saved = evaluation_inputs['folder'] / 'r.json'
    arguments = [other, '--json', saved, *(['--max-accuracy-drop', limit] if limit else [])]
    assert run_usual(evaluation_inputs, '--engine', *arguments) == code
    report = json.loads(saved.read_text())  # also written if a model fails
    assert ('verdicts' in report) == (limit is not None)
    if limit:
        verdict = report['verdicts']['other.onnx']
        assert verdict['loss'] == report['models']['other.onnx']['drop']
        assert (verdict['of'], verdict['within']) == ('mAP50', code == 0)
        assert verdict['loss'] == pytest.approx(2 / 3)
    error = capsys.readouterr().err
    assert bool(error) == bool(code)
    if error:
        golden_messages.add(error)


def test_unknown_loss_is_not_within_a_limit(evaluation_inputs, capsys, golden_messages):
    other = write_tiny_model(evaluation_inputs['folder'] / 'other.onnx')
    path = other.with_name('other.onnx.json')
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, 'class_names': ['rouge', 'vert', 'bleu']}))
    arguments = ['--images', evaluation_inputs['images'], '--max-accuracy-drop', '1']
    assert run_evaluate_engine(evaluation_inputs['model'], other, *arguments) == 1
    golden_messages.add(capsys.readouterr().err)


@pytest.mark.parametrize('value', ['2', '-0.1', 'nan', 'x'])
def test_limit_of_the_loss_is_a_share(evaluation_inputs, capsys, golden_messages, value):
    assert run_usual(evaluation_inputs, f'--max-accuracy-drop={value}') == 2
    golden_messages.add(capsys.readouterr().err)


def test_limit_of_the_loss_needs_a_second_model(evaluation_inputs, capsys, golden_messages):
    assert run_usual(evaluation_inputs, '--max-accuracy-drop', '0.1') == 2
    golden_messages.add(capsys.readouterr().err)


def test_two_models_are_compared_without_annotations(evaluation_inputs, capsys):
    (evaluation_inputs['folder'] / 'other').mkdir()
    other = write_tiny_model(evaluation_inputs['folder'] / 'other' / 'second.onnx')
    assert (
        run_evaluate_engine(
            '--engine', evaluation_inputs['model'], other, '--images', evaluation_inputs['images']
        )
        == 0
    )
    output = capsys.readouterr().out
    assert '3 images ' in output
    assert re.search(r'^second.onnx +1\.0000 +1\.0000 +4 +4 +4 ', output, re.MULTILINE)
    assert 'mAP' not in output


@needs('matplotlib', 'pycocotools')
def test_evaluation_of_digits_writes_report_worst_images_and_plot(
    tmp_path, capsys, golden_messages
):
    images = tmp_path / 'images'
    images.mkdir()
    for path in sorted(ROOT.glob('demo/scenes/*.jpg'))[30:40]:
        (images / path.name).symlink_to(path)
    arguments = ['--engine', ROOT / 'models' / 'digits.onnx', '--images', images]
    arguments += ['--annotations', ROOT / 'demo' / 'truth.json']
    assert run_evaluate_engine(*arguments) == 2
    golden_messages.add(capsys.readouterr().err.replace(str(ROOT), 'ROOT'))
    arguments += ['--allow-missing', '--plot', tmp_path / 'plot.png']
    arguments += ['--worst', tmp_path / 'worst', '--json', tmp_path / 'report.json']
    assert run_evaluate_engine(*arguments, '--worst-count', '2') == 0
    output, error = capsys.readouterr()
    assert 'saved 2 images' in output
    golden_messages.add(error.replace(str(ROOT), 'ROOT'))
    assert len(json.loads((tmp_path / 'report.json').read_text())['missing_images']) == 50
    assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
    names = {path.name[:2] for path in (tmp_path / 'worst' / 'digits.onnx').iterdir()}
    assert names == {'01', '02', 'mo', 'pi'}  # montage and list


@needs('pycocotools')
def test_unmatched_classes_are_refused(evaluation_inputs, capsys, golden_messages):
    for category in evaluation_inputs['content']['categories']:
        category['name'] = category['name'].upper()
    written(evaluation_inputs['folder'], evaluation_inputs['content'])
    assert run_usual(evaluation_inputs) == 1
    golden_messages.add(capsys.readouterr().err)
    pairs = {name: name.upper() for name in CLASS_NAMES}
    given = written(evaluation_inputs['folder'], pairs, 'map.json')
    assert run_usual(evaluation_inputs, '--class-map', given) == 0
    assert 'mAP' in capsys.readouterr().out
    written(evaluation_inputs['folder'], {**pairs, 'blue': None}, 'map.json')
    assert run_usual(evaluation_inputs, '--class-map', given) == 1
    golden_messages.add(capsys.readouterr().err)
    assert run_usual(evaluation_inputs, '--class-map', given, '--allow-subset') == 0
    output, error = capsys.readouterr()
    assert '3 images, 3 objects' in output
    golden_messages.add(error)


def test_parameters_accept_python_number_formats():
    values = ['model.scale=1e-3', 'model.std=[1e-2, 2, 3E1]']
    options = evaluate_engine._parser().parse_args(
        [*USUAL, *(f'--param={value}' for value in values)]
    )
    parameters = values_from_options(options, 'a.onnx')
    assert (parameters.model_scale, parameters.model_std) == (0.001, (0.01, 2.0, 30.0))


@needs('pycocotools')
def test_unreadable_image_is_reported(evaluation_inputs, capsys, golden_messages):
    (evaluation_inputs['images'] / '001.png').write_bytes(b'no picture')
    assert run_usual(evaluation_inputs) == 1
    golden_messages.add(capsys.readouterr().err)


@needs('pycocotools')
def test_image_of_a_wrong_size_is_reported(evaluation_inputs, capsys, golden_messages):
    for image in evaluation_inputs['content']['images']:
        image['width'] += 1
    written(evaluation_inputs['folder'], evaluation_inputs['content'])
    assert run_usual(evaluation_inputs) == 1
    golden_messages.add(capsys.readouterr().err)


def test_unusable_second_model_is_reported_before_the_first_runs(
    evaluation_inputs, monkeypatch, capsys
):
    monkeypatch.setattr(evaluate_engine, 'evaluate_model', lambda *_, **__: pytest.fail('ran'))
    for name, start in (('other.engine', b'ftrt'), ('other.onnx', b'more')):
        other = evaluation_inputs['folder'] / name
        other.write_bytes(start + bytes(200))
        assert run_usual(evaluation_inputs, '--engine', other) == 1
        assert capsys.readouterr().err


@needs('pycocotools')
def test_interrupt_ends_with_exit_code_130(evaluation_inputs, monkeypatch, capsys):
    def raise_interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_engine, 'evaluate_model', raise_interrupt)
    assert run_usual(evaluation_inputs) == 130
    assert 'interrupted' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['pycocotools.cocoeval', 'matplotlib.figure'])
def test_missing_package_is_reported(evaluation_inputs, name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    package = name.partition('.')[0]
    arguments = (
        ['--plot', evaluation_inputs['folder'] / 'a.png'] if package == 'matplotlib' else []
    )
    assert run_usual(evaluation_inputs, *arguments) in (1, 2)
    assert package in capsys.readouterr().err


@needs_tensorrt
@needs('pycocotools')
def test_engine_agrees_with_its_onnx_file(evaluation_inputs):
    content = evaluation_inputs['model'].read_bytes()
    engine = evaluation_inputs['folder'] / 'tiny.engine'
    plan = build_plan(content)
    engine.write_bytes(plan)
    manifest = json.loads((evaluation_inputs['folder'] / 'tiny.onnx.json').read_text())
    del manifest['onnx']
    manifest['engine'] = file_identity(engine.name, plan)
    engine.with_name('tiny.engine.json').write_text(json.dumps(manifest))
    saved = evaluation_inputs['folder'] / 'r.json'
    assert run_usual(evaluation_inputs, '--engine', engine, '--json', saved) == 0
    other = json.loads(saved.read_text())['models']['tiny.engine']
    assert other['metrics']['mAP'] == pytest.approx(1)
    assert other['agreement']['F1'] == 1
