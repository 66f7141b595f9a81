# SPDX-License-Identifier: Apache-2.0
"""The config.json of timm gives timm's own preprocessing, classes and activation.

test/data/exports/record_timm.py wrote timm.npz. For models of timm 1.0.31 it has the config.json,
and values of the input tensors.
"""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.models.digits import DIGITS
from support.oracles.recognition_support import recognised
from support.oracles.reference_images import levels_off, recorded_noise
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoders.whole_image import ClassScoresDecoder
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.host_preprocess import HostPreprocessor

EXPORTS = Path(__file__).parents[2] / 'data' / 'exports'
with np.load(EXPORTS / 'timm.npz') as content:
    RECORDED = dict(content)
CONFIGS = json.loads(str(RECORDED['configs']))
SIZES = ['517x333', '1920x1080', '333x517']
STEP = 499  # as in record_timm.py
REFUSED = {'resnet18.a1_in1k squash and crop', 'resnet18.a1_in1k oblong'}
RESNET = 'resnet18.a1_in1k'
NAMES = [f'class {number}' for number in range(1000)]


def recognised_timm(config, side_hw=None, channels=1000, outputs=None, **options):
    """Recognise a classifier with a config.json; the size is the one of the file by default."""
    height, width = side_hw or config['pretrained_cfg']['input_size'][1:]
    outputs = outputs or (TensorSpec('output', (1, channels), 'float32'),)
    inputs = (TensorSpec('input', (1, 3, height, width), 'float32'),)
    if not {'label_names', 'labels'} & config.keys():
        options.setdefault('class_names', NAMES[:channels])
    return recognised(outputs, (), config, inputs, **options)


def changed(**values):
    config = copy.deepcopy(CONFIGS[RESNET])
    config['pretrained_cfg'] |= values
    return config


def difference(name, size, preprocessing):
    tensor, _ = HostPreprocessor(preprocessing)(recorded_noise(size, RECORDED))
    assert list(tensor.shape[-3:]) == RECORDED[f'{name} {size} shape'].tolist()
    return levels_off(tensor, RECORDED[f'{name} {size}'], STEP, preprocessing)


@pytest.mark.parametrize('name', sorted(CONFIGS.keys() - REFUSED))
def test_input_is_that_of_timm(name):
    spec = recognised_timm(CONFIGS[name])
    assert spec.task.name == 'classify'
    assert spec.decoder == ClassScoresDecoder('softmax')
    preprocessing = spec.preprocessing
    allowed = 3 if preprocessing.filter == 'bicubic' else 1
    for size in SIZES:
        assert difference(name, size, preprocessing) <= allowed + 1e-3, size
    other = 'letterbox' if preprocessing.resize == 'stretch' else 'stretch'
    assert difference(name, size, replace(preprocessing, resize=other)) > 5


def test_recorded_models_differ_in_what_is_read():
    kinds = {
        (spec.preprocessing.resize, spec.preprocessing.filter, spec.preprocessing.shorter_side)
        for spec in (recognised_timm(CONFIGS[name]) for name in CONFIGS.keys() - REFUSED)
    }
    assert len(kinds) >= 6
    assert {resize for resize, _, _ in kinds} == {'center_crop', 'stretch', 'letterbox'}


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_geometry_that_cannot_be_done_is_asked_for(name):
    with pytest.raises(MissingModelInfoError) as caught:
        recognised_timm(CONFIGS[name])
    assert list(caught.value.missing) == ['resize']
    spec = recognised_timm(CONFIGS[name], resize='stretch')
    assert spec.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))


@pytest.mark.parametrize(
    ('values', 'missing'),
    [
        ({'mean': 'bright'}, ['mean']),
        ({'std': [0.2, 0.2]}, ['std']),
        ({'interpolation': 'lanczos'}, ['antialias']),
        ({'crop_mode': 'spiral'}, ['resize']),
        ({'crop_pct': 'most'}, ['resize']),
        ({'crop_border_pixels': 4}, ['resize']),
    ],
)
def test_one_bad_value_leaves_the_others(values, missing):
    with pytest.raises(MissingModelInfoError) as caught:
        recognised_timm(changed(**values))
    assert list(caught.value.missing) == missing


def test_values_of_the_test_size_apply_to_a_network_of_that_size():
    config = changed(test_input_size=[3, 288, 288], test_crop_pct=1.0, crop_pct=0.875)
    assert recognised_timm(config).preprocessing.shorter_side == 256
    assert recognised_timm(config, (288, 288)).preprocessing.shorter_side == 288


@pytest.mark.parametrize('key', ['label_names', 'labels'])
def test_class_names_are_read(key):
    config = changed(num_classes=3)
    config.pop('label_names', None)
    config |= {'num_classes': 3, key: ['cat', 'dog', 'yak']}
    spec = recognised_timm(config, channels=3)
    assert spec.class_names == ('cat', 'dog', 'yak')


@pytest.mark.parametrize('count', [0, 10])
def test_other_number_of_classes_is_refused(count):
    config = changed()
    config['num_classes'] = count
    with pytest.raises(EngineError) as caught:
        recognised_timm(config)
    assert 'num_classes' in caught.value.found


def test_file_of_a_backbone_is_not_used():
    outputs = tuple(TensorSpec(f'map{i}', (1, 64, 8 * i, 8 * i), 'float32') for i in (1, 2, 3))
    with pytest.raises(EngineError):
        recognised_timm(changed(), outputs=outputs)


def test_config_next_to_the_model_is_read(tmp_path):
    path = tmp_path / 'model.onnx'
    path.write_bytes(DIGITS.read_bytes())
    for content in (CONFIGS[RESNET], CONFIGS[RESNET]['pretrained_cfg'] | {'architecture': 'x'}):
        (tmp_path / 'config.json').write_text(json.dumps(content))
        assert read_model_file(path).config['architecture'] == content['architecture']
