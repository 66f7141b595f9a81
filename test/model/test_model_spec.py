# SPDX-License-Identifier: Apache-2.0
"""Tensors, manifest and parameters describe a model: tests of their priority and of errors."""

import json
import logging
from dataclasses import replace

import pytest
from test_manifest_text import BUILD

from support.models.support_models import manifest, manifest_with_value
from trt_perception.errors import EngineError, ManifestError, MissingModelInfoError
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.resolve_spec import check_model_spec, resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.values import ParameterValues

IMAGES = TensorSpec('images', (1, 3, 48, 64), 'float32')
OUTPUT = TensorSpec('output0', (1, 6, -1), 'float32')
# The parameters that a model without a manifest needs, besides its tensors.
SUFFICIENT_VALUES = {
    'model.resize': 'letterbox',
    'model.color_order': 'bgr',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
}


def resolve(values=(), described=None, inputs=(IMAGES,), outputs=(OUTPUT,), metadata=()):
    content = None if described is None else parse_manifest(json.dumps(described).encode(), 'm')
    parameters = ParameterValues.from_values(dict(values))
    model = ModelInfo('tiny.onnx', tuple(inputs), tuple(outputs), dict(metadata))
    return resolve_model_spec(model, content, parameters.model_overrides())


def refusal(error=EngineError, **arguments):
    with pytest.raises(error) as caught:
        resolve(**arguments)
    assert type(caught.value) is error
    assert 'tiny.onnx' in str(caught.value)
    return str(caught.value)


def test_manifest_alone_describes_a_model():
    spec = resolve(described=manifest())
    assert spec.input == IMAGES
    assert spec.outputs == (OUTPUT,)
    assert spec.preprocessing == Preprocessing(
        input_size=(64, 48),
        scale=0.00392156862745098,
        mean=(0.0, 0.5, 0.0),
        std=(1.0, 1.0, 0.25),
    )
    assert spec.decoder == PRESETS['dense'].decoder
    assert spec.class_names == ('cat', 'dog')
    assert spec.has_manifest


def test_parameters_alone_describe_a_model():
    spec = resolve(SUFFICIENT_VALUES)
    assert spec.input == IMAGES
    assert spec.preprocessing == Preprocessing(
        input_size=(64, 48), color_order='bgr', size_rounding='half_even'
    )
    assert spec.preprocessing.pad_value == 114
    assert spec.preprocessing.mean == (0.0, 0.0, 0.0)
    assert spec.preprocessing.std == (1.0, 1.0, 1.0)
    assert spec.decoder == PRESETS['dense'].decoder
    assert spec.class_names == ('cat', 'dog')
    assert not spec.has_manifest


def test_assumed_preprocessing_is_a_warning_for_diagnostics(caplog, golden_messages):
    assumed = {'model.decoder': 'dense', 'model.class_names': ['cat', 'dog']}
    resolve(assumed)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.show
    golden_messages.add(record.getMessage())
    caplog.clear()
    resolve({**assumed, 'model.scale': 1.0})  # the user sets one of the values
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    golden_messages.add(record.getMessage())


def test_stated_preprocessing_gives_no_warning(caplog):
    resolve(SUFFICIENT_VALUES)
    resolve(described=manifest())
    yolov5 = {'names': "{0: 'cat', 1: 'dog'}", 'stride': '32'}
    resolve({'model.decoder': 'dense'}, metadata=yolov5)
    # No parameter sets round_pixels, so a warning about it would never end.
    rfdetr = {'model.decoder': 'rfdetr', 'model.mean': [0.1] * 3, 'model.std': [0.2] * 3}
    shapes = {'dets': (1, 300, 4), 'labels': (1, 300, 2)}
    outputs = [TensorSpec(name, shape, 'float32') for name, shape in shapes.items()]
    assert not resolve(SUFFICIENT_VALUES | rfdetr, outputs=outputs).preprocessing.round_pixels
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


DYNAMIC_IMAGES = TensorSpec('images', (1, 3, -1, -1), 'float32')
# Each parameter with a value, the field that changes, and the new value of the field.
OVERRIDES = [
    ('model.resize', 'stretch', 'resize', 'stretch'),
    ('model.resize', 'center_crop', 'resize', 'center_crop'),
    ('model.shorter_side', 64, 'shorter_side', 64),
    ('model.filter', 'bicubic', 'filter', 'bicubic'),
    ('model.antialias', 1, 'antialias', True),
    ('model.pad_value', 0, 'pad_value', 0),
    ('model.pad_value', 255, 'pad_value', 255),
    ('model.color_order', 'bgr', 'color_order', 'bgr'),
    ('model.scale', 1.0, 'scale', 1.0),
    ('model.mean', [0.0, 0.0, 0.0], 'mean', (0.0, 0.0, 0.0)),
    ('model.mean', [1, 2, 3], 'mean', (1.0, 2.0, 3.0)),
    ('model.std', [1.0, 1.0, 1.0], 'std', (1.0, 1.0, 1.0)),
]


@pytest.mark.parametrize(('name', 'value', 'field', 'expected'), OVERRIDES)
def test_parameter_replaces_only_its_value_of_the_manifest(name, value, field, expected):
    base = vars(resolve(described=manifest()).preprocessing)
    changed = vars(resolve({name: value}, manifest()).preprocessing)
    assert changed == {**base, field: expected}


def test_parameter_can_switch_antialiasing_off():
    content = manifest_with_value(['preprocessing', 'antialias'], True)
    assert resolve({'model.antialias': -1}, content).preprocessing.antialias is True
    assert resolve({'model.antialias': 0}, content).preprocessing.antialias is False


def test_input_size_replaces_the_manifest_for_a_dynamic_input():
    described = manifest(inputs=[{'name': 'images', 'shape': [1, 3, -1, -1], 'dtype': 'float32'}])
    assert resolve(described=described, inputs=[DYNAMIC_IMAGES]).input.shape == (1, 3, 48, 64)
    spec = resolve({'model.input_size': [320, 160]}, described, inputs=[DYNAMIC_IMAGES])
    assert spec.preprocessing.input_size == (320, 160)
    assert spec.input.shape == (1, 3, 160, 320)


def test_decoder_and_class_names_replace_the_manifest():
    values = {'model.decoder': 'dense_objectness', 'model.class_names': ['fox']}
    spec = resolve(values, manifest())
    assert spec.decoder == PRESETS['dense_objectness'].decoder
    assert spec.class_names == ('fox',)
    assert resolve({'model.class_names': ['a', 'b']}, manifest()).class_names == ('a', 'b')


# These outputs have no usual preprocessing, so all parameters are required.
OUTPUTS_WITHOUT_PREPROCESSING = [TensorSpec('output0', (1, 100, 6), 'float32')]


@pytest.mark.parametrize('missing', SUFFICIENT_VALUES)
def test_error_mentions_each_unknown_value(missing):
    values = {**SUFFICIENT_VALUES, 'model.decoder': 'dense_transposed'}
    del values[missing]
    with pytest.raises(MissingModelInfoError) as caught:
        resolve(values, outputs=OUTPUTS_WITHOUT_PREPROCESSING)
    assert [f'model.{name}' for name in caught.value.missing] == [missing]


def test_error_lists_all_unknown_values_and_the_evidence(golden_messages):
    golden_messages.add(
        refusal(MissingModelInfoError, outputs=OUTPUTS_WITHOUT_PREPROCESSING)
    )  # the tensor already has the input size
    golden_messages.add(refusal(MissingModelInfoError, inputs=[DYNAMIC_IMAGES]))
    golden_messages.add(
        refusal(MissingModelInfoError, values=SUFFICIENT_VALUES, inputs=[DYNAMIC_IMAGES])
    )


@pytest.mark.parametrize('shape', [(-1, 3, -1, 64), (1, 3, 48, -1), (-1, -1, -1, -1)])
def test_input_size_replaces_dynamic_dimensions(shape, golden_messages):
    tensor = TensorSpec('images', shape, 'float32')
    golden_messages.add(refusal(MissingModelInfoError, values=SUFFICIENT_VALUES, inputs=[tensor]))
    spec = resolve({**SUFFICIENT_VALUES, 'model.input_size': [64, 48]}, inputs=[tensor])
    assert spec.input.shape == (1, 3, 48, 64)


def test_preprocessing_has_the_data_type_of_the_input_tensor():
    half = TensorSpec('images', (1, 3, 48, 64), 'float16')
    assert resolve(SUFFICIENT_VALUES, inputs=[half]).preprocessing.dtype == 'float16'


# Each shape of an input, the fixed shape, and the layout.
LAYOUTS = [
    ((1, 3, 48, 64), (1, 3, 48, 64), 'nchw'),
    ((-1, 3, 48, 64), (1, 3, 48, 64), 'nchw'),
    ((3, 48, 64), (3, 48, 64), 'nchw'),
    ((1, 48, 64, 3), (1, 48, 64, 3), 'nhwc'),
    ((-1, -1, -1, 3), (1, 48, 64, 3), 'nhwc'),
]


@pytest.mark.parametrize(('shape', 'final', 'order'), LAYOUTS, ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'uint8'])
def test_layout_and_dtype_follow_the_input_shape(shape, final, order, dtype):
    values = {**SUFFICIENT_VALUES, 'model.input_size': [64, 48], 'model.scale': 1.0}
    spec = resolve(values, inputs=[TensorSpec('images', shape, dtype)])
    assert spec.input == TensorSpec('images', final, dtype)
    assert (spec.preprocessing.layout, spec.preprocessing.dtype) == (order, dtype)
    assert spec.preprocessing.input_size == (64, 48)


AUXILIARY_INPUTS = [
    TensorSpec('orig_target_sizes', (-1, 2), 'int64'),
    TensorSpec('sizes', (1, 2), 'int32'),
    TensorSpec('pixel_mask', (1, -1, -1), 'int64'),
    TensorSpec('pixel_mask', (-1, 16, 24), 'int64'),
]


@pytest.mark.parametrize('auxiliary', AUXILIARY_INPUTS, ids=str)
@pytest.mark.parametrize('first', [False, True])
def test_auxiliary_inputs_have_constant_values(auxiliary, first):
    spec = resolve(SUFFICIENT_VALUES, inputs=[auxiliary, IMAGES] if first else [IMAGES, auxiliary])
    assert spec.input == IMAGES
    (constant,) = constant_inputs(spec.auxiliary_inputs, (64, 48)).values()
    assert constant.shape == spec.auxiliary_inputs[0].shape
    assert constant.dtype == auxiliary.dtype
    if auxiliary.name == 'pixel_mask':
        assert constant.shape == ((1, 16, 24) if auxiliary.shape[1] == 16 else (1, 48, 64))
        assert (constant == 1).all()
    else:
        assert constant.tolist() == [[64, 48]]


def test_unknown_second_input_is_refused(golden_messages):
    other = TensorSpec('im_shape', (1, 2), 'float32')
    golden_messages.add(refusal(values=SUFFICIENT_VALUES, inputs=[IMAGES, other]))


WRONG_INPUTS = {
    'none': [],
    'two': [IMAGES, IMAGES],
    'no dimensions': [TensorSpec('images', (), 'float32')],
    'three dimensions': [TensorSpec('images', (48, 64, 3), 'float32')],
    'five dimensions': [TensorSpec('images', (1, 1, 3, 48, 64), 'float32')],
    'other size, NHWC': [TensorSpec('images', (1, 64, 48, 3), 'float32')],
    'two channels': [TensorSpec('images', (1, 48, 64, 2), 'float32')],
    'one channel': [TensorSpec('images', (1, 1, 48, 64), 'float32')],
    'other size': [TensorSpec('images', (1, 3, 64, 48), 'float32')],
    'bytes': [TensorSpec('images', (1, 3, 48, 64), 'uint8')],
    'double': [TensorSpec('images', (1, 3, 48, 64), 'tensor(double)')],
}


@pytest.mark.parametrize('inputs', WRONG_INPUTS.values(), ids=WRONG_INPUTS.keys())
def test_inputs_of_other_networks_are_refused(inputs, golden_messages):
    golden_messages.add(
        refusal(values={**SUFFICIENT_VALUES, 'model.input_size': [64, 48]}, inputs=inputs)
    )
    # The inputs are also refused if a manifest describes them. Some types have no description.
    if inputs and not inputs[0].dtype.startswith('tensor'):
        described = [
            {'name': tensor.name, 'shape': list(tensor.shape), 'dtype': tensor.dtype}
            for tensor in inputs
        ]
        refusal(described=manifest(inputs=described), inputs=inputs)


def test_batch_size_is_that_of_the_input(golden_messages):
    batch = [TensorSpec('images', (8, 3, 48, 64), 'float32')]
    outputs = [replace(OUTPUT, shape=(8, *OUTPUT.shape[1:]))]
    described = manifest(
        inputs=[{'name': 'images', 'shape': [8, 3, 48, 64], 'dtype': 'float32'}],
        outputs=[{'name': OUTPUT.name, 'shape': list(outputs[0].shape), 'dtype': 'float32'}],
    )
    for known in ({'values': SUFFICIENT_VALUES}, {'described': described}):
        spec = resolve(inputs=batch, outputs=outputs, **known)
        assert (spec.batch, spec.input) == (8, batch[0])
    # An output for one image does not match a batch of eight.
    golden_messages.add(refusal(values=SUFFICIENT_VALUES, inputs=batch))
    golden_messages.add(refusal(values={**SUFFICIENT_VALUES, 'model.input_size': [65, 48]}))
    # A dynamic batch is one image until with_batch_size changes it.
    spec = resolve(SUFFICIENT_VALUES, inputs=[replace(IMAGES, shape=(-1, 3, 48, 64))])
    assert spec.batch == 1
    several = spec.with_batch_size(4)
    assert several.input.shape == (4, 3, 48, 64)
    assert several.outputs[0].shape == (4, *OUTPUT.shape[1:])
    assert several.with_batch_size(1) == spec


def test_fixed_shapes_of_an_engine_match_a_dynamic_manifest():
    """An engine reports the shapes of its only profile, or the outputs of its first profile."""
    open_image, open_output = (
        replace(each, shape=(-1, *each.shape[1:])) for each in (IMAGES, OUTPUT)
    )
    described = manifest(
        inputs=[{'name': 'images', 'shape': [-1, 3, 48, 64], 'dtype': 'float32'}],
        outputs=[{'name': OUTPUT.name, 'shape': list(open_output.shape), 'dtype': 'float32'}],
    )
    four_images, four_outputs = (
        replace(each, shape=(4, *each.shape[1:])) for each in (IMAGES, OUTPUT)
    )
    for known in ({'values': SUFFICIENT_VALUES}, {'described': described}):
        spec = resolve(inputs=[four_images], outputs=[four_outputs], **known)
        assert (spec.batch, spec.input) == (4, four_images)
        spec = resolve(inputs=[open_image], outputs=[four_outputs], **known)
        assert spec.batch == 1
        assert spec.with_batch_size(4).outputs == (four_outputs,)
    # An engine with a profile of a single shape also reports width and height.
    described['inputs'][0]['shape'] = [-1, 3, -1, -1]
    refusal(ManifestError, described=described, inputs=[four_images], outputs=[four_outputs])
    ranges = {key: [4, 3, 48, 64] for key in ('min', 'opt', 'max')}
    built = {**described, 'build': {**BUILD, 'profiles': [{'images': ranges}]}}
    spec = resolve(described=built, inputs=[four_images], outputs=[four_outputs])
    assert spec.input == four_images
    # A fixed dimension of the manifest matches neither another size nor a dynamic dimension.
    fixed = manifest(inputs=[{'name': 'images', 'shape': [1, 3, 48, 64], 'dtype': 'float32'}])
    for image in (four_images, open_image):
        refusal(ManifestError, described=fixed, inputs=[image])


def test_input_of_one_pixel_is_accepted():
    tensor = TensorSpec('images', (1, 3, 1, 1), 'float32')
    assert resolve(SUFFICIENT_VALUES, inputs=[tensor]).preprocessing.input_size == (1, 1)


def test_error_mentions_expected_and_actual_data_type(golden_messages):
    golden_messages.add(
        refusal(values=SUFFICIENT_VALUES, inputs=[TensorSpec('images', (1, 3, 48, 64), 'int64')])
    )
    golden_messages.add(
        refusal(values=SUFFICIENT_VALUES, inputs=[TensorSpec('images', (1, 3, 48, 64), 'uint8')])
    )
    half = TensorSpec('images', (1, 3, 48, 64), 'float16')
    described = manifest(inputs=[{**vars(half), 'shape': list(half.shape)}])
    golden_messages.add(refusal(described=described, inputs=[half]))


WRONG_OUTPUTS = {
    'none': [],
    'two': [OUTPUT, OUTPUT],
    'no dimensions': [TensorSpec('output0', (), 'float32')],
    'two dimensions': [TensorSpec('output0', (6, 100), 'float32')],
    'four dimensions': [TensorSpec('output0', (1, 6, 10, 10), 'float32')],
    'one class more': [TensorSpec('output0', (1, 7, 100), 'float32')],
    'one class less': [TensorSpec('output0', (1, 5, 100), 'float32')],
    'transposed': [TensorSpec('output0', (1, 100, 6), 'float32')],
    'batch': [TensorSpec('output0', (8, 6, 100), 'float32')],
    'whole numbers': [TensorSpec('output0', (1, 6, 100), 'int64')],
    'truth values': [TensorSpec('output0', (1, 6, 100), 'bool')],
}


@pytest.mark.parametrize('outputs', WRONG_OUTPUTS.values(), ids=WRONG_OUTPUTS.keys())
def test_outputs_that_the_decoder_cannot_read_are_refused(outputs, golden_messages):
    golden_messages.add(refusal(values=SUFFICIENT_VALUES, outputs=outputs))


@pytest.mark.parametrize(
    ('decoder', 'shape'),
    [
        ('dense', (1, 6, 100)),
        ('dense', (-1, -1, -1)),
        ('dense', (1, 6, -1)),
        ('dense_transposed', (1, 100, 6)),
        ('dense_transposed', (1, -1, -1)),
        ('dense_objectness', (1, 7, 100)),
        ('dense_objectness_transposed', (1, 100, 7)),
    ],
)
def test_each_decoder_accepts_only_its_outputs(decoder, shape, golden_messages):
    outputs = [TensorSpec('output0', shape, 'float32')]
    assert (
        resolve({**SUFFICIENT_VALUES, 'model.decoder': decoder}, outputs=outputs).outputs[0].shape
        == shape
    )
    if -1 not in shape:
        wrong = [TensorSpec('output0', shape[::-1], 'float32')]
        golden_messages.add(
            refusal(values={**SUFFICIENT_VALUES, 'model.decoder': decoder}, outputs=wrong)
        )


@pytest.mark.parametrize(
    'change',
    [
        {'name': 'image'},
        {'shape': [1, 3, 48, -1]},
        {'shape': [1, 3, 64, 48]},
        {'dtype': 'float16'},
    ],
)
def test_manifest_of_other_tensors_is_refused(change, golden_messages):
    described = {'name': 'images', 'shape': [1, 3, 48, 64], 'dtype': 'float32', **change}
    golden_messages.add(refusal(ManifestError, described=manifest(inputs=[described])))
    refusal(ManifestError, described=manifest(inputs=[*manifest()['inputs'], described]))


def test_engine_may_report_a_fixed_output_for_a_dynamic_manifest():
    # TensorRT-RTX infers the output if all profiles have one shape.
    known = TensorSpec('output0', (1, 6, 100), 'float32')
    assert resolve(described=manifest(), outputs=[known]).outputs == (known,)
    for other in ('output1', (1, 6, 100)), ('output0', (1, 7, 100)), ('output0', (1, 6, 100, 1)):
        refusal(ManifestError, described=manifest(), outputs=[TensorSpec(*other, 'float32')])
    refusal(ManifestError, described=manifest(), outputs=[known, known])


def test_manifest_of_other_outputs_is_refused(golden_messages):
    described = manifest(outputs=[{'name': 'output0', 'shape': [1, 6, 100], 'dtype': 'float32'}])
    golden_messages.add(refusal(ManifestError, described=described))


def test_written_manifest_of_a_recognised_model_describes_the_same_model():
    recognised = resolve(SUFFICIENT_VALUES)
    written = recognised.manifest((IMAGES,), (OUTPUT,))
    model = ModelInfo('tiny.onnx', (IMAGES,), (OUTPUT,))
    again = resolve_model_spec(model, written, ModelOverrides())
    assert again.has_manifest
    assert again.names_source != recognised.names_source
    same = {'has_manifest': False, 'evidence': (), 'names_source': ''}
    assert replace(again, **same) == replace(recognised, **same)


def test_input_is_checked_without_shapes_of_the_outputs():
    unknown = replace(OUTPUT, shape=())
    model = ModelInfo('tiny.onnx', (IMAGES,), (unknown,))
    spec = replace(resolve(described=manifest()), outputs=(unknown,), model=model)
    check_model_spec(spec, ModelOverrides(), knows_outputs=False)
    with pytest.raises(EngineError):
        check_model_spec(spec, ModelOverrides())
    half = replace(spec, model=replace(model, inputs=(replace(IMAGES, dtype='float16'),)))
    with pytest.raises(EngineError):
        check_model_spec(half, ModelOverrides(), knows_outputs=False)
