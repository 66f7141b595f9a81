# SPDX-License-Identifier: Apache-2.0
"""Class names that do not fit the outputs: the error has both numbers, and its fix works."""

import re

import pytest

from support.models.zero_model import write_zero_model
from support.oracles.recognition_support import ULTRALYTICS, tensors
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.recognition.missing_info import needed_class_count
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.tools.write_manifest import main as write_manifest
from trt_perception.parameters.values import ParameterValues

IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
CLASSIFIER = {
    'resize': 'stretch',
    'color_order': 'rgb',
    'scale': 1.0,
    'mean': [0.0] * 3,
    'std': [1.0] * 3,
}
PROCESSOR = {
    'size': {'height': 640, 'width': 640},
    'resample': 2,
    'image_mean': [0.5] * 3,
    'image_std': [0.5] * 3,
}
WRONG = 3  # names


def named(count):
    return [f'class {number}' for number in range(count)]


def ultralytics(task, **more):
    return {**ULTRALYTICS, 'task': task, 'names': str(dict(enumerate(named(WRONG)))), **more}


def huggingface(model_type, architecture):
    return {
        'model_type': model_type,
        'architectures': [architecture],
        'id2label': {str(number): name for number, name in enumerate(named(WRONG))},
        'preprocessor_config': PROCESSOR,
    }


BOXES = tensors(output0=(1, 84, 8400))
MASKS = tensors(output0=(1, 116, 8400), output1=(1, 32, 160, 160))
POINTS = tensors(output0=(1, 57, 8400))
ANGLES = tensors(output0=(1, 20, 8400))
SCORES = tensors(output0=(1, 80))
LOGITS = tensors(logits=(1, 80))
MAP = tensors(output0=(1, 80, 160, 160))
CLASS_MAP = tensors(logits=(1, 80, 160, 160))
YOLOV5 = {'names': ultralytics('detect')['names'], 'stride': '32'}
POSE = ultralytics('pose', kpt_shape='[17, 3]')
LIBREYOLO = {'libreyolo_version': '1.0', 'task': 'detect', 'names': '["a", "b", "c"]'}
# The outputs, the source of wrong names, the values of the user, and the right number of names.
FROM_METADATA = {
    'detect': (BOXES, ultralytics('detect'), 80),
    'segment': (MASKS, ultralytics('segment'), 80),
    'pose': (POINTS, POSE, 2),
    'obb': (ANGLES, ultralytics('obb'), 15),
    'classify': (SCORES, ultralytics('classify'), 80),
    'semantic': (MAP, ultralytics('semantic'), 80),
    'YOLOv5': (tensors(output0=(1, 25200, 85)), YOLOV5, 80),
    'LibreYOLO': (BOXES, LIBREYOLO, 80),
    'unknown exporter': (BOXES, {'names': YOLOV5['names']}, 80),
}
FROM_CONFIG = {
    'rtdetr': (
        tensors(logits=(1, 300, 80), pred_boxes=(1, 300, 4)),
        huggingface('rt_detr', 'RTDetrForObjectDetection'),
        80,
    ),
    'detr': (
        tensors(logits=(1, 300, 81), pred_boxes=(1, 300, 4)),
        huggingface('detr', 'DetrForObjectDetection'),
        80,
    ),
    'classify': (LOGITS, huggingface('vit', 'ViTForImageClassification'), 80),
    'semantic': (CLASS_MAP, huggingface('segformer', 'SegformerForSemanticSegmentation'), 80),
}
FROM_USER = {
    'detect': (BOXES, {}, 80),
    'detect, decoder': (BOXES, {'decoder': 'dense'}, 80),
    'segment': (MASKS, {'task': 'segment', 'decoder': 'dense'}, 80),
    'obb': (ANGLES, {'task': 'obb', 'decoder': 'dense'}, 15),
    'classify, decoder': (SCORES, {**CLASSIFIER, 'decoder': 'class_logits'}, 80),
    'semantic': (MAP, {}, 80),
    'semantic, task': (MAP, {'task': 'semantic'}, 80),
    'semantic, decoder': (MAP, {'decoder': 'pixel_logits'}, 80),
}


def resolve(outputs, metadata=(), config=None, **given):
    values = {f'model.{name}': value for name, value in given.items()}
    model = ModelInfo('x.onnx', IMAGE, outputs, dict(metadata), config)
    overrides = ParameterValues.from_values(values).model_overrides()
    return resolve_model_spec(model, None, overrides)


def numbers_of(error):
    """Return the whole numbers in the parts of an error that describe the class names."""
    parts = [error.found, error.expected, error.fix]
    if isinstance(error, MissingModelInfoError):
        parts = [error.missing['class_names']]
    return {int(number) for number in re.findall(r'\b\d+\b', ' '.join(parts))}


def check(source, right, *arguments, **given):
    with pytest.raises(EngineError) as caught:
        resolve(*arguments, **given)
    error = caught.value
    assert {WRONG, right} <= numbers_of(error)
    where = getattr(error, 'missing', {}).get('class_names', '')
    assert source in where + error.found + error.expected + error.fix
    found = resolve(*arguments, **{**given, 'class_names': named(right)})
    assert len(found.class_names) == right


@pytest.mark.parametrize('case', FROM_METADATA)
def test_error_names_the_metadata_and_both_numbers(case):
    outputs, metadata, right = FROM_METADATA[case]
    check('metadata "names"', right, outputs, metadata)


@pytest.mark.parametrize('case', FROM_CONFIG)
def test_error_names_the_config_and_both_numbers(case):
    outputs, config, right = FROM_CONFIG[case]
    check('config.json "id2label"', right, outputs, (), config)


@pytest.mark.parametrize('case', FROM_USER)
def test_error_names_the_parameter_and_both_numbers(case):
    outputs, given, right = FROM_USER[case]
    check('model.class_names', right, outputs, class_names=named(WRONG), **given)


@pytest.mark.parametrize('case', FROM_METADATA)
def test_parameter_is_named_if_it_replaces_the_metadata(case):
    outputs, metadata, right = FROM_METADATA[case]
    names = str(dict(enumerate(named(right))))
    right_metadata = {**metadata, 'names': names}
    check('model.class_names', right, outputs, right_metadata, class_names=named(WRONG))


def test_names_that_fit_another_decoder_are_not_called_wrong():
    """The metadata say a detector of 80 classes, and so do the channels behind the anchors."""
    names = str(dict(enumerate(named(80))))
    with pytest.raises(MissingModelInfoError) as caught:
        resolve(tensors(output0=(1, 8400, 84)), {**ULTRALYTICS, 'names': names})
    assert set(caught.value.missing) == {'decoder'}


def test_option_with_the_file_of_names_is_named(tmp_path, monkeypatch, capsys, golden_messages):
    monkeypatch.chdir(tmp_path)
    inputs, outputs = {'images': (1, 3, 640, 640)}, {'output0': (1, 84, 8400)}
    write_zero_model(tmp_path / 'model.onnx', inputs, outputs)
    (tmp_path / 'names.txt').write_text('\n'.join(named(WRONG)))
    words = ['model.onnx', '--class-names-file', 'names.txt', '--param', 'model.decoder=dense']
    assert write_manifest(words) != 0
    golden_messages.add(capsys.readouterr().err)
    (tmp_path / 'names.txt').write_text('\n'.join(named(80)))
    assert write_manifest(words) == 0


@pytest.mark.parametrize(('decoder', 'right'), [('detr_sigmoid', 6), ('detr', 5)])
@pytest.mark.parametrize(
    ('shape', 'more'),
    [
        ((1, 30, 6), {'last_hidden_state': (1, 30, 32)}),
        ((-1, 30, 6), {'last_hidden_state': (-1, -1, -1)}),
        ((-1, -1, 6), {'encoder_last_hidden_state': (-1, -1, 32)}),
    ],
)
def test_unused_outputs_do_not_hide_the_number_of_classes(shape, more, decoder, right):
    outputs = tensors(logits=shape, pred_boxes=(*shape[:2], 4), **more)
    assert needed_class_count(PRESETS[decoder].decoder, outputs, DETECT) == right


def test_dynamic_number_of_classes_is_unknown():
    outputs = tensors(logits=(1, 30, -1), pred_boxes=(1, 30, 4), last_hidden_state=(1, 30, 32))
    assert needed_class_count(PRESETS['detr'].decoder, outputs, DETECT) is None
