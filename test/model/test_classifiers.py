# SPDX-License-Identifier: Apache-2.0
"""The activation of a classifier, and configurations that do not name the architecture."""

import json

import numpy as np
import pytest

from support.models.support_models import manifest
from support.oracles.recognition_support import recognised
from trt_perception.errors import EngineError, MissingModelInfoError, OutputError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.decoders.whole_image import ClassScoresDecoder
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

IMAGE = TensorSpec('pixel_values', (1, 3, 32, 32), 'float32')
SQUARE = {'size': {'height': 32, 'width': 32}, 'image_mean': [0.5] * 3, 'image_std': [0.5] * 3}
PREPROCESSING = {'resize': 'stretch', 'color_order': 'rgb', 'scale': 1.0}
MEANS = {'mean': [0.0] * 3, 'std': [1.0] * 3}
#: "problem_type", logits, and the scores that ImageClassificationPipeline of transformers 5.24
#: gives a ViT with random weights for an image of noise.
PIPELINE = [
    (None, [-2.816037], [0.056464]),
    (None, [-2.769849, 8.528963], [1.2e-05, 0.999988]),
    (None, [1.885514, 6.167761, 3.758669], [0.012514, 0.906036, 0.08145]),
    (
        'single_label_classification',
        [1.885514, 6.167761, 3.758669],
        [0.012514, 0.906036, 0.08145],
    ),
    (
        'multi_label_classification',
        [1.885514, 6.167761, 3.758669],
        [0.868243, 0.997908, 0.977216],
    ),
    ('multi_label_classification', [-2.816037], [0.056464]),
]


def output(*shape, name='logits'):
    return (TensorSpec(name, shape, 'float32'),)


def labels(count):
    return {str(number): f'label {number}' for number in range(count)}


def config_json(model_type, count, **more):
    return {
        'model_type': model_type,
        'id2label': labels(count),
        'preprocessor_config': SQUARE,
        **more,
    }


@pytest.mark.parametrize('architectures', [['ViTForImageClassification'], None])
@pytest.mark.parametrize(('problem', 'logits', 'scores'), PIPELINE)
def test_scores_are_those_of_the_pipeline(architectures, problem, logits, scores):
    count = len(logits)
    config = config_json('vit', count, problem_type=problem, architectures=architectures)
    for batch in (1, -1):
        inputs = (TensorSpec('pixel_values', (batch, 3, 32, 32), 'float32'),)
        found = recognised(output(batch, count), (), config, inputs)
        assert (found.task.name, len(found.class_names)) == ('classify', count)
        result = found.decoder.result([np.array(logits, np.float32)], None)
        assert np.abs(result.scores - scores).max() < 2e-6


@pytest.mark.parametrize('count', [1, 3])
def test_regression_is_refused_unless_the_user_sets_a_decoder(count, golden_messages):
    config = config_json('vit', count, problem_type='regression')
    for architectures in (['ViTForImageClassification'], ['Swinv2ForImageClassification'], None):
        config['architectures'] = architectures
        with golden_messages.raises(EngineError):
            recognised(output(1, count), (), config, (IMAGE,))
        found = recognised(output(1, count), (), config, (IMAGE,), decoder='class_sigmoid')
        assert found.decoder == ClassScoresDecoder('sigmoid')


@pytest.mark.parametrize('logit', [-1e4, -90.0, 0.0, 90.0, 1e4])
def test_sigmoid_of_any_logit_is_a_probability(logit):
    scores = ClassScoresDecoder('sigmoid').result([np.float32([logit, 0])], None).scores
    assert scores[1] == 0.5
    assert scores[0] == (0.5 if logit == 0 else logit > 0)
    with pytest.raises(OutputError):
        ClassScoresDecoder('sigmoid').result([np.float32([logit, np.nan])], None)


def resolve(outputs, config=None, written=None, **values):
    given = ParameterValues.from_values({f'model.{name}': value for name, value in values.items()})
    model = ModelInfo('x.onnx', (IMAGE,), outputs, {}, config)
    return resolve_model_spec(model, written, given.model_overrides())


def test_one_class_without_metadata_offers_no_softmax(golden_messages):
    """A softmax of one logit is 1 for each image."""
    for values in ({}, {'class_names': ['cat']}):
        with golden_messages.raises(MissingModelInfoError) as caught:
            resolve(output(1, 1), **values)
        assert 'class_sigmoid' in caught.value.missing['decoder']
        assert 'class_logits' not in caught.value.missing['decoder']
    given = {'class_names': ['cat'], **PREPROCESSING, **MEANS}
    for name in ('class_sigmoid', 'class_probabilities'):
        assert resolve(output(1, 1), decoder=name, **given).decoder == PRESETS[name].decoder
    for outputs in (output(1, 1), output(1, -1)):
        with golden_messages.raises(EngineError):
            resolve(outputs, decoder='class_logits', **given)


def test_manifest_with_a_softmax_of_one_class_only_warns(caplog):
    content = manifest()
    content |= {'task': 'classify', 'class_names': ['cat'], 'engine': None, 'schema': 2}
    content['decoder'] = {'family': 'class_scores', 'activation': 'softmax'}
    content['inputs'] = [{'name': IMAGE.name, 'shape': list(IMAGE.shape), 'dtype': 'float32'}]
    content['outputs'] = [{'name': 'logits', 'shape': [1, 1], 'dtype': 'float32'}]
    content['preprocessing'] |= {'input_size': [32, 32]}
    written = parse_manifest(json.dumps(content).encode(), 'x.json')
    assert resolve(output(1, 1), written=written).decoder == PRESETS['class_logits'].decoder
    assert [record.levelname for record in caplog.records] == ['WARNING']
    with pytest.raises(EngineError):
        resolve(output(1, 1), written=written, decoder='class_logits')


# Networks whose "model_type" alone decides no decoder, or the decoder of another task.
@pytest.mark.parametrize('model_type', ['vit', 'resnet', 'dinov2', 'segformer', 'dpt', 'detr'])
@pytest.mark.parametrize('architectures', ['missing', None, []])
@pytest.mark.parametrize(
    ('shape', 'decoder'), [((1, 5), 'class_logits'), ((1, 5, 8, 8), 'pixel_logits')]
)
def test_output_decides_the_task_without_architectures(model_type, architectures, shape, decoder):
    config = config_json(model_type, 5)
    if architectures != 'missing':
        config['architectures'] = architectures
    found = recognised(output(*shape), (), config, (IMAGE,))
    assert found.decoder == PRESETS[decoder].decoder
    assert found.class_names == tuple(labels(5).values())
    assert (found.preprocessing.resize, found.preprocessing.mean) == ('stretch', (0.5,) * 3)
    assert not found.assumption


def test_two_labels_without_names_are_the_default_of_transformers():
    config = {'model_type': 'resnet', 'preprocessor_config': SQUARE}
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(output(1, 2), (), config, (IMAGE,))
    assert set(caught.value.missing) == {'class_names'}
    found = recognised(output(1, 2), (), config, (IMAGE,), class_names=['cat', 'dog'])
    assert found.decoder == PRESETS['class_logits'].decoder


@pytest.mark.parametrize(
    'outputs',
    [
        output(1, 7),
        output(1, 7, 8, 8),
        (*output(1, 5), *output(1, 5, name='hidden')),
    ],
)
def test_config_of_other_outputs_is_not_used(outputs, golden_messages):
    with golden_messages.raises(EngineError):
        recognised(outputs, (), config_json('vit', 5), (IMAGE,))


@pytest.mark.parametrize(
    'name', ['DeiTForImageClassificationWithTeacher', 'PerceiverForImageClassificationLearned']
)
def test_longer_names_of_classifiers_are_recognised(name):
    found = recognised(output(1, 5), (), config_json('x', 5, architectures=[name]), (IMAGE,))
    assert found.decoder == PRESETS['class_logits'].decoder
