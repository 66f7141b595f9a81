# SPDX-License-Identifier: Apache-2.0
"""The error about missing information lists the required parameters, and only these."""

import pytest

from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.recognition.parameter_syntax import (
    OPTION_SYNTAX,
    PYTHON_SYNTAX,
    ROS_SYNTAX,
)
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec

IMAGE = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
COCO = tuple(f'class {number}' for number in range(80))
PREPROCESSING = ['resize', 'color_order', 'scale']
DETR = {
    'model_type': 'detr',
    'id2label': {'0': 'a'},
    'preprocessor_config': {'size': {'height': 640, 'width': 640}},
}


def recognise_outputs(shapes, names=(), config=None, inputs=IMAGE, **given):
    outputs = tuple(
        TensorSpec(name, shape, 'int32' if name in ('num_dets', 'classes') else 'float32')
        for name, shape in shapes.items()
    )
    said = ModelOverrides(given, class_names=names)
    return recognise(ModelInfo('x.onnx', inputs, outputs, {}, config), said)


DENSE = {'output0': (1, 84, 8400)}
YOLOX = {'output': (1, 8400, 85)}
PAIR = {'logits': (1, 300, 80), 'pred_boxes': (1, 300, 4)}
NMS = {'num_dets': (1, 1), 'boxes': (1, 100, 4), 'scores': (1, 100), 'classes': (1, 100)}
FINAL = {'output0': (1, 300, 6)}
LABELS = {str(number): name for number, name in enumerate(COCO)}


def processor(**values):
    size = {'size': {'height': 640, 'width': 640}}
    return {**DETR, 'preprocessor_config': {**size, **values}}


SOFTMAX = {'logits': (1, 100, 2), 'pred_boxes': (1, 100, 4)}
DETR_PROCESSORS = [
    f'{name}{kind}'
    for name in ('Detr', 'ConditionalDetr', 'DeformableDetr', 'RTDetr', 'Yolos')
    for kind in ('FeatureExtractor', 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil')
]


@pytest.mark.parametrize(
    'values',
    [
        {'resample': 2},
        {'resample': 2, 'image_processor_type': 'OwlViTImageProcessor'},
        {},
        {'resample': None, 'image_processor_type': 'DetrImageProcessor'},
        *({'image_processor_type': name} for name in DETR_PROCESSORS),
        {'feature_extractor_type': 'DetrFeatureExtractor'},
    ],
    ids=str,
)
def test_bilinear_image_processor_uses_antialiasing(values):
    assert recognise_outputs(SOFTMAX, config=processor(**values)).preprocessing.antialias


@pytest.mark.parametrize(
    ('model', 'values', 'antialias'),
    [
        ('rf_detr', {'image_processor_type': 'RfDetrImageProcessor', 'resample': 2}, False),
        ('rf_detr', {'image_processor_type': 'RfDetrImageProcessorFast'}, False),
        ('rf_detr', {'resample': 2}, False),
        ('detr', {'image_processor_type': 'RfDetrImageProcessor'}, False),
        ('rf_detr', {'image_processor_type': 'DetrImageProcessor'}, True),
        ('rt_detr', {'resample': 2}, True),
    ],
)
def test_only_the_rfdetr_processor_resizes_floats_without_antialiasing(model, values, antialias):
    config = {**processor(**values), 'model_type': model}
    outputs = {'logits': (1, 100, 1), 'pred_boxes': (1, 100, 4)}
    if model == 'detr':
        outputs = SOFTMAX
    found = recognise_outputs(outputs, config=config).preprocessing
    assert (found.antialias, found.round_pixels) == (antialias, antialias)


@pytest.mark.parametrize(
    'values',
    [
        *({'resample': value} for value in (0, 1, 4, 5, 6, True, 2.0, ['x'] * 999)),
        {'resample': 'bicubic\n\x1b[2J'},
        {'image_processor_type': 'OwlViTImageProcessor'},
        {'image_processor_type': ['x']},
    ],
    ids=str,
)
def test_other_resize_filter_needs_the_parameter_antialias(values, golden_messages):
    with golden_messages.raises(MissingModelInfoError) as caught:
        recognise_outputs(SOFTMAX, config=processor(**values))
    assert list(caught.value.missing) == ['antialias']
    assert len(str(caught.value)) < 1200
    for antialias in (True, False):
        found = recognise_outputs(SOFTMAX, config=processor(**values), antialias=antialias)
        assert found.preprocessing.antialias is antialias


@pytest.mark.parametrize(
    ('values', 'given'),
    [
        ({'size': {'longest_edge': 800}}, {'resize': 'stretch'}),
        ({'image_processor_type': 'Owlv2ImageProcessor', 'resample': 2}, {'resize': 'letterbox'}),
        ({'do_resize': False, 'do_pad': True, 'size_divisor': 14}, {'resize': 'stretch'}),
        ({'do_rescale': 1}, {'scale': 1.0}),
        ({'image_mean': [0.5], 'image_std': [2.0] * 3}, {'mean': (0.0,) * 3}),
        ({'include_top': True}, {'scale': 1.0, 'mean': (0.0,) * 3, 'std': (1.0,) * 3}),
    ],
)
def test_unread_key_needs_its_parameter_only(values, given, golden_messages):
    with golden_messages.raises(MissingModelInfoError) as caught:
        recognise_outputs(SOFTMAX, config=processor(**values))
    assert set(caught.value.missing) == set(given)
    found = recognise_outputs(SOFTMAX, config=processor(**values), **given).preprocessing
    assert {key: getattr(found, key) for key in given} == given
    if values.get('image_std'):
        assert found.std == (2.0,) * 3


def test_warning_lists_only_values_that_the_file_does_not_state(golden_messages):
    """A file in the old form states mean and std."""
    stated = {'size': 800, 'max_size': 1333, 'image_mean': [0.4] * 3, 'image_std': [0.3] * 3}
    config = {**processor(), 'preprocessor_config': stated}
    found = recognise_outputs(SOFTMAX, config=config)
    assert found.assumption == ''
    assert (found.preprocessing.mean, found.preprocessing.std) == ((0.4,) * 3, (0.3,) * 3)
    config['preprocessor_config'] = {'image_mean': [0.4] * 3, 'image_std': [0.3] * 3}
    golden_messages.add(recognise_outputs(SOFTMAX, config=config).assumption)
    config['preprocessor_config'] = {'size': {'shortest_edge': 800, 'longest_edge': 1333}}
    golden_messages.add(recognise_outputs(SOFTMAX, config=config).assumption)


def test_antialias_is_listed_with_all_other_missing_parameters():
    with pytest.raises(MissingModelInfoError) as caught:
        recognise_outputs(SOFTMAX, config={**processor(resample=1), 'id2label': None})
    assert list(caught.value.missing) == ['class_names', 'antialias']


@pytest.mark.parametrize(
    ('shapes', 'shown'),
    [
        ({'logits': (1, 300, 80), 'pred_boxes': (1, 300, 4)}, {'decoder': 'rtdetr'}),
        ({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, {'decoder': 'detr'}),
    ],
)
def test_models_trained_with_pil_use_antialiasing_without_a_config(shapes, shown):
    outputs = tuple(TensorSpec(name, shape, 'float32') for name, shape in shapes.items())
    given = ModelOverrides({}, class_names=COCO, **shown)
    found = recognise(ModelInfo('x.onnx', IMAGE, outputs), given)
    assert found.preprocessing.antialias


@pytest.mark.parametrize(
    'shapes',
    [DENSE, {'output0': (1, 300, 84)}, {'dets': (1, 300, 4), 'labels': (1, 300, 80)}],
)
def test_models_trained_with_opencv_or_tensors_use_no_antialiasing(shapes):
    assert not recognise_outputs(shapes, COCO).preprocessing.antialias


@pytest.mark.parametrize(
    ('shapes', 'more', 'expected'),
    [
        (DENSE, {}, ['class_names']),
        (YOLOX, {'names': COCO}, ['decoder']),
        (YOLOX, {}, ['decoder', 'class_names']),
        (PAIR, {'names': COCO}, ['decoder']),
        (FINAL, {'names': COCO}, ['decoder']),
        (NMS, {'names': COCO}, PREPROCESSING),
        ({'dets': (1, 300, 4), 'labels': (1, 300, 80)}, {}, ['class_names']),
        ({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, {'config': DETR}, None),
        # detr does not have this output, but other decoders can read the shape.
        (DENSE, {'config': {**DETR, 'id2label': LABELS}}, ['decoder']),
    ],
)
def test_only_required_parameters_are_listed(shapes, more, expected):
    with pytest.raises(MissingModelInfoError) as caught:
        recognise_outputs(shapes, **more)
    assert list(caught.value.missing) == (expected or ['class_names'])


def test_wrong_number_of_class_names_in_a_config_is_reported(golden_messages):
    with golden_messages.raises(MissingModelInfoError):
        recognise_outputs({'logits': (1, 100, 81), 'pred_boxes': (1, 100, 4)}, config=DETR)


def test_error_lists_the_values_of_each_parameter(golden_messages):
    for arguments in ((DENSE,), (FINAL,), (NMS, COCO)):
        with golden_messages.raises(MissingModelInfoError):
            recognise_outputs(*arguments)


SYNTAX_IDS = ['node', 'build_engine', 'load']


# A file name never counts as a parameter name.
@pytest.mark.parametrize('name', ['model.onnx', 'model.decoder.onnx'])
@pytest.mark.parametrize('syntax', [ROS_SYNTAX, OPTION_SYNTAX, PYTHON_SYNTAX], ids=SYNTAX_IDS)
def test_error_has_the_parameter_names_of_its_program(name, syntax, golden_messages):
    def message(shapes, **more):
        outputs = tuple(TensorSpec(key, shape, 'float32') for key, shape in shapes.items())
        given = ModelOverrides(syntax=syntax, **more)
        with pytest.raises(EngineError) as caught:
            recognise(ModelInfo(name, IMAGE, outputs), given)
        return caught.value

    error = message(DENSE)
    assert list(error.missing) == ['class_names']
    golden_messages.add(error)
    golden_messages.add(
        message({'boxes': (1, 8400, 4), 'scores': (1, 8400, 80)}, class_names=COCO)
    )
    golden_messages.add(message({'output0': (1, 85, 8400)}, class_names=COCO))


@pytest.mark.parametrize('syntax', [ROS_SYNTAX, OPTION_SYNTAX, PYTHON_SYNTAX], ids=SYNTAX_IDS)
def test_evidence_has_the_parameter_names_of_its_program(syntax, golden_messages):
    outputs = (TensorSpec('output0', (1, 84, 8400), 'float32'),)
    given = ModelOverrides({}, 'dense', COCO, syntax=syntax)
    found = recognise(ModelInfo('model.onnx', IMAGE, outputs), given)
    golden_messages.add('\n'.join(found.evidence))


def test_listed_parameters_are_sufficient():
    assert recognise_outputs(DENSE, COCO).preprocessing.resize == 'letterbox'
    said = {'resize': 'stretch', 'color_order': 'bgr', 'scale': 1.0}
    assert recognise_outputs(NMS, COCO, **said).preprocessing.color_order == 'bgr'


@pytest.mark.parametrize('names', [(), COCO])
def test_error_without_a_remedy_lists_no_parameters(names, golden_messages):
    with golden_messages.raises(EngineError) as caught:
        recognise_outputs({'prob': (1000,)}, names)
    assert type(caught.value) is EngineError


@pytest.mark.parametrize('shape', [(1, 1, 480, 640), (1, 480, 640, 4), (1, 480, 640)])
def test_image_input_without_three_channels_is_refused(shape, golden_messages):
    with golden_messages.raises(EngineError):
        recognise_outputs(DENSE, COCO, inputs=(TensorSpec('images', shape, 'float32'),))


QUERIES_WITH_MASKS = {
    'logits': (1, 10, 7),
    'pred_boxes': (1, 10, 4),
    'pred_masks': (1, 10, 50, 75),
    'last_hidden_state': (1, 10, 64),
}


def test_masks_of_detr_are_refused_with_the_decoder_of_the_boxes(golden_messages):
    config = {
        'model_type': 'detr',
        'id2label': {str(number): str(number) for number in range(6)},
        'architectures': ['DetrForSegmentation'],
    }
    with golden_messages.raises(EngineError):
        recognise_outputs(QUERIES_WITH_MASKS, config=config)
    found = recognise(
        ModelInfo(
            'x.onnx',
            IMAGE,
            tuple(TensorSpec(*item, 'float32') for item in QUERIES_WITH_MASKS.items()),
            {},
            config,
        ),
        ModelOverrides(decoder='detr'),
    )
    assert (found.task.name, len(found.class_names)) == ('detect', 6)


@pytest.mark.parametrize(
    'architecture', ['MaskFormerForInstanceSegmentation', 'Mask2FormerForUniversalSegmentation']
)
def test_segmentation_without_boxes_is_a_model_that_no_decoder_reads(
    architecture, golden_messages
):
    model_type = architecture.split('For', maxsplit=1)[0].lower()
    config = {'model_type': model_type, 'architectures': [architecture], 'id2label': LABELS}
    with golden_messages.raises(EngineError):
        recognise_outputs({'output0': (1, 10, 7), 'output1': (1, 10, 32, 32)}, config=config)
