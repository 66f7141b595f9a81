"""Images, labels and gates that build_engine refuses: each has its message, and no engine."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from support.gpu.gpu_support import why_no_gpu
from support.models.detector_models import (
    KNOWN,
    detector_model,
    parsed_models,
    run,
    write_detector,
    write_images,
)

RTX = 'needs TensorRT-RTX 1.7 or newer: older ones build no quantised convolutions'
pytest.importorskip('tensorrt_rtx', minversion='1.7', reason=RTX)
pytest_plugins = ['support.building.build_fixtures']
INT8 = ('--precision', 'int8')


pytestmark = pytest.mark.usefixtures('own_caches')


def test_labels_that_do_not_fit_cost_no_build(tmp_path, refused, monkeypatch):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    labels = tmp_path / 'labels.json'
    parsed = parsed_models(monkeypatch)
    given = ('--onnx', path, *KNOWN, '--validate', images, '--annotations', labels)
    assert 'cannot be read: No such file' in refused(*given, code=2)
    picture = {'id': 1, 'file_name': '0.png', 'width': 96, 'height': 80}
    bird = {'id': 1, 'image_id': 1, 'category_id': 7, 'bbox': [1, 1, 9, 9]}
    content = {'images': [picture], 'annotations': [bird]}
    content['categories'] = [{'id': 7, 'name': 'bird'}]
    labels.write_text(json.dumps(content))
    message = refused(*given, code=2)
    assert 'bird' in message
    assert 'cat' in message
    assert 'give --class-names as the annotations have them' in message
    assert parsed == []


@pytest.mark.skipif(not why_no_gpu(), reason='there is a GPU')
@pytest.mark.parametrize(
    ('precision', 'reason'),
    [
        ('fp32', 'would compare FP32 with itself'),
        ('tf32', 'would compare FP32 with itself'),
        ('bf16', 'has no bf16 on CPUs'),
    ],
)
def test_accuracy_that_only_a_gpu_tells(tmp_path, refused, precision, reason):
    given = ('--precision', precision, '--validate', write_images(tmp_path / 'images'))
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *given)
    assert f'{reason}; build without --validate' in message


def test_int8_without_images(tmp_path, refused):
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *INT8, code=2)
    assert 'int8: needs images to calibrate with; give --calibration-images' in message


def test_images_without_int8(tmp_path, refused):
    images = write_images(tmp_path / 'images')
    options = ('--calibration-images', images)
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *options, code=2)
    assert 'add --precision int8' in message


@pytest.mark.parametrize('option', ['--calibration-images', '--validate'])
def test_images_that_are_not_there(tmp_path, refused, option):
    path = write_detector(tmp_path)
    precision = INT8 if option == '--calibration-images' else ()
    (tmp_path / 'empty').mkdir()
    given = ('--onnx', path, *KNOWN, *precision, option)
    assert 'this folder holds no image' in refused(*given, tmp_path / 'empty', code=2)
    assert 'does not exist' in refused(*given, tmp_path / 'missing', code=2)


@pytest.mark.parametrize('damage', [lambda _: b'no picture', lambda content: content[:-200]])
def test_an_image_that_cannot_be_read(tmp_path, refused, damage):
    images = write_images(tmp_path / 'images')
    broken = images / '7.png'
    broken.write_bytes(damage(broken.read_bytes()))
    path = write_detector(tmp_path)
    message = refused('--onnx', path, *KNOWN, *INT8, '--calibration-images', images, code=2)
    assert '7.png' in message


def test_too_few_images_and_all_alike(tmp_path, refused):
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, *INT8, '--calibration-images')
    few = write_images(tmp_path / 'few', 3)
    assert 'at least 8 images' in refused(*given, few, code=2)
    alike = write_images(tmp_path / 'alike')
    for image in alike.iterdir():
        image.write_bytes((few / '0.png').read_bytes())
    assert 'the same image' in refused(*given, alike, code=2)


def test_a_model_that_falls_below_the_gate_leaves_no_engine(tmp_path, refused, monkeypatch):
    from trt_perception.building.steps import accuracy_gate

    images = write_images(tmp_path / 'images')
    real = accuracy_gate._record

    def worse(*measured):
        record = real(*measured)
        return type(record)(**{**vars(record), 'built': 0.5})

    monkeypatch.setattr(accuracy_gate, '_record', worse)
    monkeypatch.setattr(accuracy_gate.AccuracyReport, 'drop', lambda *_: 0.25)
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, '--validate', images, '--max-accuracy-drop')
    message = refused(*given, '0.2', *INT8, '--calibration-images', images)
    assert '10 images are few' in message  # what was warned of may be the reason
    assert 'accuracy: falls by 0.2500, more than --max-accuracy-drop 0.2' in message
    assert run(*given, '0.25') == 0


def test_images_that_show_nothing_hold_no_gate(tmp_path, refused):
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
    given = ('--onnx', path, *KNOWN, '--validate', images)
    message = refused(*given, '--max-accuracy-drop', '0.5')
    assert 'finds anything on these 10 images' in message
    assert run(*given) == 0


def test_a_damaged_calibration_cache_is_made_again(tmp_path, capsys):
    path = write_detector(tmp_path)
    images, cache = write_images(tmp_path / 'images'), tmp_path / 'cache'
    given = ('--onnx', path, *KNOWN, *INT8, '--calibration-images', images)
    given += ('--calibration-cache', cache)
    assert run(*given) == 0
    first = (tmp_path / 'net.engine').read_bytes()
    (entry,) = cache.iterdir()
    assert run(*given) == 0
    assert 'cache: reused' in capsys.readouterr().out
    entry.write_bytes(entry.read_bytes()[:-20])
    assert run(*given) == 0
    assert 'is damaged' in capsys.readouterr().out
    assert (tmp_path / 'net.engine').read_bytes() == first
    np.testing.assert_equal(len(list(cache.iterdir())), 1)
