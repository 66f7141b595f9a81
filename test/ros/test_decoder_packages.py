# SPDX-License-Identifier: Apache-2.0
"""Decoders of other packages, which are found by their entry points."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.nodes.graph import Detector, found_in, image_message
from support.programs import executable

pytest_plugins = ['support.nodes.graph_fixtures']

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / 'examples' / 'decoder_package'
BOXES = np.array([[4, 6, 20, 30], [30, 8, 60, 40]], np.float32)
SCORES = np.array([0.9, 0.75], np.float32)
CLASSES = np.array([1, 0], np.float32)
NAMES = ['cat', 'dog']
MODEL = {'model.class_names': NAMES, 'model.resize': 'stretch', 'model.scale': 1.0}
MODEL |= {'model.color_order': 'rgb'}


def write_rows(path, rows):
    """Write a model that returns the same rows for every image of 64 x 48 pixels."""
    graph = helper.make_graph(
        [
            helper.make_node('ReduceMean', ['images'], ['mean'], keepdims=0),
            helper.make_node('Mul', ['mean', 'zero'], ['nothing']),
            helper.make_node('Add', ['rows', 'nothing'], ['output']),
        ],
        'rows',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (1, 3, 48, 64))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, rows.shape)],
        [
            numpy_helper.from_array(rows.astype(np.float32), 'rows'),
            numpy_helper.from_array(np.array(0, np.float32), 'zero'),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    onnx.save(model, path)
    return path


def rows_from(first_class):
    """Return rows of box, score and class number."""
    return np.concatenate([BOXES, SCORES[:, None], CLASSES[:, None] + first_class], axis=1)[None]


def efficientdet_rows():
    """Return rows as effdet's DetBenchPredict, whose class numbers begin with 1."""
    return rows_from(1)


def paddle_rows():
    """Return rows as PaddleDetection's multiclass_nms3: class number, score, box."""
    return np.concatenate([CLASSES[:, None], SCORES[:, None], BOXES], axis=1)


ROWS = {'efficientdet': efficientdet_rows, 'paddle': paddle_rows}


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """Install the example into a folder, and return the folder."""
    source, folder = tmp_path_factory.mktemp('source') / 'example', tmp_path_factory.mktemp('site')
    shutil.copytree(EXAMPLE, source)  # the build writes into its folder
    assert len((source / 'more_decoders.py').read_text().splitlines()) <= 25
    install = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index', '--no-deps']
    subprocess.run(
        [*install, '--no-build-isolation', '--target', folder, source], check=True, timeout=100
    )
    return folder


@pytest.fixture
def with_package(site, monkeypatch):
    """Let programs that a test starts find the package."""
    monkeypatch.setenv('PYTHONPATH', str(site), prepend=':')
    return site


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)


def detect(folder, decoder, *more):
    """Run detect_images with a decoder. Return the process and the annotations."""
    rows = ROWS[decoder]() if decoder in ROWS else rows_from(0)
    path = write_rows(folder / 'model.onnx', rows)
    cv2.imwrite(str(folder / 'image.png'), np.zeros((48, 64, 3), np.uint8))
    values = {**MODEL, **({'model.decoder': decoder} if decoder else {})}
    set_values = [
        word for name, value in values.items() for word in ('-p', f'{name}:={json.dumps(value)}')
    ]
    command = [executable('detect_images'), path, '--source', folder / 'image.png']
    done = run(*command, '--output', folder / 'out', '--no-pictures', *set_values, *more)
    try:
        return done, json.loads((folder / 'out' / 'detections.json').read_text())['annotations']
    except FileNotFoundError:
        return done, None


@pytest.mark.parametrize('decoder', ROWS)
def test_tool_reads_the_boxes_with_a_decoder_of_the_package(decoder, with_package, tmp_path):
    done, found = detect(tmp_path, decoder)
    assert done.returncode == 0, done.stderr
    wh = BOXES[:, 2:] - BOXES[:, :2]
    np.testing.assert_allclose(
        [row['bbox'] for row in found], np.concatenate([BOXES[:, :2], wh], axis=1)
    )
    np.testing.assert_allclose([row['score'] for row in found], SCORES, atol=1e-4)
    assert len({row['category_id'] for row in found}) == 2


@pytest.mark.parametrize('decoder', ROWS)
def test_node_publishes_boxes_with_a_decoder_of_the_package(
    decoder, with_package, client, tmp_path
):
    path = write_rows(tmp_path / 'model.onnx', ROWS[decoder]())
    values = {'engine_path': str(path), 'model.decoder': decoder, 'autostart': True, **MODEL}
    detector = Detector(client, values)
    try:
        detector.connect()
        image = np.zeros((48, 64, 3), np.uint8)
        answer = detector.ask(image_message(image.tobytes(), 64, 48, 'bgr8', step=192))
        best = [found.results[0].hypothesis for found in answer.detections]
        assert [one.class_id for one in best] == [NAMES[int(index)] for index in CLASSES]
        np.testing.assert_allclose([one.score for one in best], SCORES, atol=1e-4)
        assert len(found_in(answer)) == 2
    finally:
        detector.close()


def test_manifest_names_the_decoder_of_the_package(with_package, tmp_path):
    path = write_rows(tmp_path / 'model.onnx', paddle_rows())
    values = {**MODEL, 'model.decoder': 'paddle'}
    set_values = [
        word for name, value in values.items() for word in ('-p', f'{name}:={json.dumps(value)}')
    ]
    done = run(executable('write_manifest'), path, *set_values)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / 'model.onnx.json').read_text())
    assert manifest['decoder'] == {'family': 'paddle'}
    assert run(executable('inspect_engine'), path).returncode == 0


def test_without_the_package_its_decoder_is_unknown(tmp_path):
    done, found = detect(tmp_path, 'paddle')
    assert (done.returncode, found) == (2, None)


def test_installed_package_does_not_change_how_other_models_are_read(site, tmp_path, monkeypatch):
    # The rows of EfficientDet have the shape of decoders of this package.
    without = detect(tmp_path, '')[0]
    monkeypatch.setenv('PYTHONPATH', str(site), prepend=':')
    with_it = detect(tmp_path, '')[0]
    assert 'end_to_end' in without.stderr
    assert (with_it.returncode, with_it.stderr) == (without.returncode, without.stderr)


def copy_with(site, folder, change):
    """Copy the installed package into a folder with a changed module."""
    shutil.copytree(site, folder)
    module = folder / 'more_decoders.py'
    changed = change(module.read_text())
    assert changed != module.read_text()
    module.write_text(changed)
    return folder


@pytest.mark.parametrize(
    'change',
    [
        lambda code: 'import nowhere\n' + code,
        lambda code: code.replace('PRESETS =', 'OTHER ='),
        lambda code: code + 'PRESETS = 3\n',
        lambda code: code + "PRESETS = 'dense', 'paddle'\n",
        lambda code: code.replace("    family = 'paddle'\n", ''),
        lambda code: code.replace('Paddle())', '3)'),
    ],
    ids=['import', 'no such name', 'a number', 'texts', 'no family', 'no decoder'],
)
def test_package_that_cannot_be_used_is_logged_and_the_rest_works(
    change, site, tmp_path, monkeypatch
):
    broken = copy_with(site, tmp_path / 'site', change)
    monkeypatch.setenv('PYTHONPATH', str(broken), prepend=':')
    done, found = detect(tmp_path, 'end_to_end')
    assert done.returncode == 0
    assert 'more-decoders 1.0' in done.stderr
    assert len(found) == 2


@pytest.mark.parametrize(
    'change',
    [
        lambda code: code.replace("DecoderPreset('paddle'", "DecoderPreset('dense'"),
        lambda code: code.replace("DecoderPreset('paddle'", "DecoderPreset('efficientdet'"),
        lambda code: code.replace("family = 'paddle'", "family = 'end_to_end'"),
        lambda code: code.replace("family = 'paddle'", "family = 'efficientdet'"),
    ],
    ids=['preset of this package', 'preset twice', 'family of this package', 'family twice'],
)
@pytest.mark.parametrize('command', ['detect_images', 'detector_node', 'doctor'])
def test_name_that_exists_ends_every_command(command, change, site, tmp_path, monkeypatch):
    folder = copy_with(site, tmp_path / 'site', change)
    monkeypatch.setenv('PYTHONPATH', str(folder), prepend=':')
    done = run(executable(command), '--help')
    assert done.returncode == 2
    assert 'Traceback' not in done.stderr
    assert 'more-decoders 1.0' in done.stderr
