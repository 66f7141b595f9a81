# SPDX-License-Identifier: Apache-2.0
"""Names with control characters or of several megabytes are refused from each source, or replaced.

Such names could act on a terminal or forge lines of a log. The messages stay short.
"""

import json

import pytest

from support.models.support_models import manifest_bytes, manifest_with_value
from support.oracles.recognition_support import ULTRALYTICS
from trt_perception.errors import TrtPerceptionError
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.building.options.sources import load_options, read_class_names
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.parameters.values import ParameterValues

# Each name looks like a message of the node, or hides a message.
HOSTILE = {
    'newline': 'cat\n[ERROR] [0] [detector]: the GPU is on fire',
    'carriage return': 'cat\rdog',
    'escape': '\x1b[2J\x1b[1;1Hcat',
    'bell': 'cat\x07',
    'NUL': 'cat\0',
    'delete': 'cat\x7f',
    'CSI in one byte': '\x9b2Jcat',
    'next line': 'cat\x85dog',
    'line separator': 'cat\u2028dog',
    'right to left': 'cat\u202egod',
    'half a pair': 'cat\ud800',
    'very long': 'x' * 5_000_000,
}
IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
DENSE = (TensorSpec('output0', (1, 6, 8400), 'float32'),)
QUERIES = (
    TensorSpec('logits', (1, 300, 2), 'float32'),
    TensorSpec('pred_boxes', (1, 300, 4), 'float32'),
)


def by_manifest(name, folder):
    parse_manifest(manifest_bytes(manifest_with_value(['class_names', 1], name)), 'x.json')


def by_tensor_of_a_manifest(name, folder):
    parse_manifest(manifest_bytes(manifest_with_value(['outputs', 0, 'name'], name)), 'x.json')


def by_parameter(name, folder):
    ParameterValues.from_values({'model.class_names': ['dog', name]})


def by_class_filter(name, folder):
    ParameterValues.from_values({'class_filter': ['dog', name]})


def by_metadata(name, folder):
    names = repr({0: 'dog', 1: name})
    return recognise(
        ModelInfo('x.onnx', IMAGE, DENSE, {**ULTRALYTICS, 'names': names}), ModelOverrides()
    ).class_names


def by_config_json(name, folder):
    config = {'model_type': 'rt_detr', 'id2label': {'0': 'dog', '1': name}}
    model = ModelInfo('x.onnx', IMAGE, QUERIES, {}, config)
    return recognise(model, ModelOverrides()).class_names


def by_option(name, folder):
    load_options(None, {'onnx': 'm.onnx', 'class_names': ['dog', name]})


def by_yaml(name, folder):
    path = folder / 'build.yaml'
    path.write_text(json.dumps({'onnx': 'm.onnx', 'class_names': ['dog', name]}))
    load_options(path, {})


def by_file_of_names(name, folder):
    path = folder / 'names.txt'
    path.write_text(f'dog\n{name}\n', 'utf-8', 'surrogatepass')
    return read_class_names(load_options(None, {'onnx': 'm.onnx', 'class_names_file': str(path)}))


def _annotations(folder, name='cat', file_name='a.png'):
    path = folder / 'truth.json'
    content = {
        'images': [{'id': 1, 'file_name': file_name, 'width': 9, 'height': 9}],
        'categories': [{'id': 1, 'name': name}],
        'annotations': [{'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 3, 4]}],
    }
    path.write_text(json.dumps(content))
    return read_annotations(path)


def by_coco_category(name, folder):
    _annotations(folder, name=name)


def by_coco_file_name(name, folder):
    _annotations(folder, file_name=name)


SOURCES = [
    *(by_manifest, by_tensor_of_a_manifest, by_parameter, by_class_filter, by_option, by_yaml),
    *(by_coco_category, by_coco_file_name),
]
#: One bad name in a model's own names does not take the other names with it.
SOURCES_OF_A_MODEL = [by_metadata, by_config_json, by_file_of_names]


@pytest.mark.parametrize('kind', HOSTILE)
@pytest.mark.parametrize('source', SOURCES, ids=lambda source: source.__name__)
def test_bad_name_is_refused_in_a_short_message(source, kind, tmp_path):
    name = HOSTILE[kind]
    with pytest.raises(TrtPerceptionError) as caught:
        source(name, tmp_path)
    message = str(caught.value)
    assert len(message) < 1500
    assert all(line.isprintable() for line in message.split('\n')), message
    assert name not in message


@pytest.mark.parametrize('kind', HOSTILE)
@pytest.mark.parametrize('source', SOURCES_OF_A_MODEL, ids=lambda source: source.__name__)
def test_bad_name_of_a_model_is_replaced(source, kind, tmp_path, caplog):
    if kind == 'very long' and source is not by_config_json:
        pytest.skip('the list of names is too long to be read')
    if source is by_file_of_names and kind in ('newline', 'half a pair'):
        pytest.skip('a line break separates names in this file, which must be UTF-8')
    caplog.set_level('INFO')
    assert source(HOSTILE[kind], tmp_path) == ('dog', 'class 1')
    for record in caplog.records:
        message = record.getMessage()
        assert len(message) < 1500
        assert message.isprintable()


@pytest.mark.parametrize(
    'source', [*SOURCES, *SOURCES_OF_A_MODEL], ids=lambda source: source.__name__
)
def test_valid_name_is_accepted_from_each_source(source, tmp_path):
    source('größer als 自転車', tmp_path)


def test_too_many_names_are_refused(golden_messages):
    names = [f'n{number}' for number in range(65537)]
    for give in (
        lambda: ParameterValues.from_values({'model.class_names': names}),
        lambda: ParameterValues.from_values({'class_filter': names}),
        lambda: load_options(None, {'onnx': 'm.onnx', 'class_names': names}),
        lambda: parse_manifest(
            manifest_bytes(manifest_with_value(['class_names'], names)), 'x.json'
        ),
    ):
        with golden_messages.raises(TrtPerceptionError) as caught:
            give()
        assert len(str(caught.value)) < 300


def test_huge_class_filter_is_read_and_its_error_stays_short():
    parameters = ParameterValues.from_values({'class_filter': ['cat'] * 60_000})
    assert parameters.thresholds(('dog', 'cat')).class_ids == (1,)
    parameters = ParameterValues.from_values(
        {'class_filter': ['x' * 200 + str(n) for n in range(9999)]}
    )
    with pytest.raises(TrtPerceptionError) as caught:
        parameters.thresholds(('dog', 'cat'))
    assert len(str(caught.value)) < 10_000
