# SPDX-License-Identifier: Apache-2.0
"""build_engine refuses bad images, labels and gates with a message, and writes no engine."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from support import golden
from support.building.messages import text_of_messages, without_variable_text
from support.gpu.gpu_support import why_no_gpu
from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    detector_model,
    parsed_models,
    run_build_engine,
    write_detector,
    write_images,
)

RTX = 'needs TensorRT-RTX 1.7 or newer: older ones build no quantised convolutions'
pytest.importorskip('tensorrt_rtx', minversion='1.7', reason=RTX)
pytest_plugins = ['support.building.build_fixtures']
INT8 = ('--precision', 'int8')


pytestmark = pytest.mark.usefixtures('own_caches')


def write_labels(folder):
    """Write annotations of a bird in the first image."""
    picture = {'id': 1, 'file_name': '0.png', 'width': 96, 'height': 80}
    bird = {'id': 1, 'image_id': 1, 'category_id': 7, 'bbox': [1, 1, 9, 9]}
    content = {'images': [picture], 'annotations': [bird]}
    content['categories'] = [{'id': 7, 'name': 'bird'}]
    (folder / 'labels.json').write_text(json.dumps(content))
    return folder / 'labels.json'


def images_with_damage(folder, damage):
    images = write_images(folder)
    (images / '7.png').write_bytes(damage((images / '7.png').read_bytes()))
    return images


def equal_images(folder):
    images = write_images(folder)
    for image in images.iterdir():
        image.write_bytes((images / '0.png').read_bytes())
    return images


def test_invalid_images_and_labels_are_refused_before_the_build(
    tmp_path, build_error, monkeypatch
):
    arguments = ('--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS)
    images, few = write_images(tmp_path / 'images'), write_images(tmp_path / 'few', 3)
    (tmp_path / 'empty').mkdir()
    rows = [
        ('--validate', images, '--annotations', tmp_path / 'none.json'),
        ('--validate', images, '--annotations', write_labels(tmp_path)),
        ('--validate', tmp_path / 'empty'),
        ('--validate', tmp_path / 'missing'),
        ('--calibration-images', images),
        INT8,
        (*INT8, '--calibration-images', tmp_path / 'empty'),
        (*INT8, '--calibration-images', tmp_path / 'missing'),
        (
            *INT8,
            '--calibration-images',
            images_with_damage(tmp_path / 'text', lambda _: b'no picture'),
        ),
        (
            *INT8,
            '--calibration-images',
            images_with_damage(tmp_path / 'cut', lambda whole: whole[:-200]),
        ),
        (*INT8, '--calibration-images', few),
        (*INT8, '--calibration-images', equal_images(tmp_path / 'alike')),
    ]
    parsed = parsed_models(monkeypatch)
    messages = [build_error(*arguments, *row, code=2) for row in rows]
    golden.check('offline/building/refused_images.txt', text_of_messages(messages, tmp_path))
    assert parsed == []


@pytest.mark.skipif(not why_no_gpu(), reason='needs a machine without a GPU')
def test_accuracy_that_needs_a_gpu_is_refused(tmp_path, build_error):
    arguments = ('--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS)
    arguments += ('--validate', write_images(tmp_path / 'images'), '--precision')
    messages = [build_error(*arguments, name) for name in ('fp32', 'tf32', 'bf16')]
    golden.check('offline/building/refused_accuracy.txt', text_of_messages(messages, tmp_path))


def test_model_below_the_accuracy_gate_leaves_no_engine(
    tmp_path, build_error, monkeypatch, golden_messages
):
    from trt_perception.offline.building.steps import accuracy_gate

    images = write_images(tmp_path / 'images')
    real = accuracy_gate._accuracy_record

    def lower_accuracy(*arguments_of_record):
        record = real(*arguments_of_record)
        return type(record)(**{**vars(record), 'built': 0.5})

    monkeypatch.setattr(accuracy_gate, '_accuracy_record', lower_accuracy)
    monkeypatch.setattr(accuracy_gate.AccuracyReport, 'accuracy_drop', lambda *_: 0.25)
    path = write_detector(tmp_path)
    arguments = (
        '--onnx',
        path,
        *DECODER_AND_CLASSES_ARGUMENTS,
        '--validate',
        images,
        '--max-accuracy-drop',
    )
    # The error repeats the warnings, because they may explain it.
    golden_messages.add(
        without_variable_text(
            build_error(*arguments, '0.2', *INT8, '--calibration-images', images)
        )
    )
    assert run_build_engine(*arguments, '0.25') == 0


def test_accuracy_gate_without_detections_is_refused(tmp_path, build_error, golden_messages):
    images = write_images(tmp_path / 'images')
    model = detector_model()
    logits = next(node for node in model.graph.node if node.name == 'scores')
    logits.op_type = 'Identity'
    model.graph.node.insert(
        list(model.graph.node).index(logits),
        helper.make_node('Mul', [logits.input[0], 'zero'], ['nothing'], name='nothing'),
    )
    logits.input[0] = 'nothing'
    model.graph.initializer.append(helper.make_tensor('zero', onnx.TensorProto.FLOAT, [], [0]))
    path = tmp_path / 'net.onnx'
    onnx.save_model(model, path)
    arguments = ('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--validate', images)
    golden_messages.add(build_error(*arguments, '--max-accuracy-drop', '0.5'))
    assert run_build_engine(*arguments) == 0


def test_damaged_calibration_cache_is_replaced(tmp_path, capsys):
    path = write_detector(tmp_path)
    images, cache = write_images(tmp_path / 'images'), tmp_path / 'cache'
    arguments = (
        '--onnx',
        path,
        *DECODER_AND_CLASSES_ARGUMENTS,
        *INT8,
        '--calibration-images',
        images,
    )
    arguments += ('--calibration-cache', cache)
    assert run_build_engine(*arguments) == 0
    first = (tmp_path / 'net.engine').read_bytes()
    (entry,) = cache.iterdir()
    assert run_build_engine(*arguments) == 0
    assert 'calibration cache reused: ' in capsys.readouterr().out
    entry.write_bytes(entry.read_bytes()[:-20])
    assert run_build_engine(*arguments) == 0
    assert 'is damaged' in capsys.readouterr().out
    assert (tmp_path / 'net.engine').read_bytes() == first
    np.testing.assert_equal(len(list(cache.iterdir())), 1)
