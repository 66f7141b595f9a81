# SPDX-License-Identifier: Apache-2.0
"""Tests of the arguments that errors print: each program reads them, and the model is complete."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.optional_packages import needs
from support.oracles.family_outputs import NAMES, NETWORK, OUTPUTS, random_objects
from trt_perception.api import _parameters_by_name
from trt_perception.errors import MissingModelInfoError
from trt_perception.model.decoders.table import OBJECT_PRESETS
from trt_perception.model.recognition.parameter_syntax import (
    LAUNCH_SYNTAX,
    OPTION_SYNTAX,
    PYTHON_SYNTAX,
    ROS_SYNTAX,
)
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.tools import build_engine, detect_images
from trt_perception.offline.tools.parts.model_arguments import values_from_options
from trt_perception.parameters.launch_arguments import (
    launch_arguments,
    parameter_values,
    unknown_arguments,
)
from trt_perception.parameters.values import ParameterValues

IMAGE = TensorSpec('images', (1, 3, 640, 640), 'float32')
OPEN_IMAGE = TensorSpec('images', (1, 3, -1, -1), 'float32')
DENSE = {'output0': (1, 6, 8400)}
YOLOX = {'output': (1, 8400, 7)}
NMS = {'num_dets': (1, 1), 'boxes': (1, 100, 4), 'scores': (1, 100), 'classes': (1, 100)}
SOFTMAX = {'logits': (1, 100, 3), 'pred_boxes': (1, 100, 4)}
BICUBIC = {
    'model_type': 'detr',
    'id2label': None,
    'preprocessor_config': {'size': {'height': 640, 'width': 640}, 'resample': 3},
}
#: Replaces the placeholders that a user must replace.
SAMPLES = {'resize': 'stretch', 'color_order': 'bgr', 'scale': '0.5', 'decoder': 'dense'}
MODELS = {
    'class names': (IMAGE, DENSE, None),
    'decoder': (IMAGE, YOLOX, None),
    'preprocessing': (IMAGE, NMS, None),
    'input size': (OPEN_IMAGE, NMS, None),
    'antialias': (IMAGE, SOFTMAX, BICUBIC),
}


def read_by_tool(text):
    words = shlex.split(f'm.onnx --source a --output b {text}')
    parameters = values_from_options(detect_images._parser().parse_args(words), 'm.onnx')
    return parameters.model_overrides()


def read_by_launch(text):
    words = dict(word.split(':=', 1) for word in shlex.split(text))
    assert not any(unknown_arguments(words, launch_arguments(Path())))
    return ParameterValues.from_values(parameter_values(words)).model_overrides()


def read_by_build_engine(text):
    from trt_perception.offline.building.options.sources import given_options, load_options
    from trt_perception.offline.building.steps.prepare import _model_overrides

    parsed = build_engine._parser().parse_args(shlex.split(f'm.onnx {text}'))
    return _model_overrides(load_options(None, given_options(parsed)), IMAGE)


def read_by_load(text):
    values = _parameters_by_name('m.onnx', eval(f'dict({text})'))
    return ParameterValues.from_values(values).model_overrides()


def recognise_model(name, overrides):
    image, shapes, config = MODELS[name]
    outputs = tuple(
        TensorSpec(key, shape, 'int32' if key in ('num_dets', 'classes') else 'float32')
        for key, shape in shapes.items()
    )
    return recognise(ModelInfo('x.onnx', (image,), outputs, {}, config), overrides)


def fill(arguments, keys):
    """Replace the placeholders in arguments, as a user does."""
    for word, value in (('NAME', 'cat'), ('NAME', 'dog'), ('WIDTH', '64'), ('HEIGHT', '32')):
        arguments = arguments.replace(word, value, 1)
    for key in SAMPLES.keys() & keys:
        spelled = key.replace('_', '[-_]')
        arguments = re.sub(rf'({spelled}\W+)VALUE', rf'\g<1>{SAMPLES[key]}', arguments)
    return arguments


each_program = pytest.mark.parametrize(
    ('syntax', 'read'),
    [
        pytest.param(ROS_SYNTAX, read_by_tool, id='tool'),
        pytest.param(LAUNCH_SYNTAX, read_by_launch, id='launch'),
        pytest.param(OPTION_SYNTAX, read_by_build_engine, id='build', marks=needs('onnx')),
        pytest.param(PYTHON_SYNTAX, read_by_load, id='load'),
    ],
)


@pytest.mark.parametrize('model', MODELS)
@each_program
def test_printed_arguments_complete_the_model(model, syntax, read):
    if (model, syntax) == ('input size', OPTION_SYNTAX):
        pytest.skip('build_engine takes the size from --shapes, and asks for no input size')
    with pytest.raises(MissingModelInfoError) as caught:
        recognise_model(model, ModelOverrides(syntax=syntax))
    error = caught.value

    overrides = read(fill(error.arguments, error.missing))

    assert error.arguments in error.fix
    given = recognise_model(model, overrides)
    if 'class_names' in error.missing:
        assert given.class_names == ('cat', 'dog')
    if 'input_size' in error.missing:
        assert given.preprocessing.input_size == (64, 32)
    if 'antialias' in error.missing:
        assert given.preprocessing.antialias is True


@pytest.mark.parametrize(
    'preset', [name for name, row in OBJECT_PRESETS.items() if row.preprocessing]
)
@each_program
def test_printed_arguments_state_the_assumed_preprocessing(preset, syntax, read):
    objects = random_objects(np.random.default_rng(0))
    arrays = OUTPUTS[preset](np.random.default_rng(0), *objects)
    outputs = tuple(
        TensorSpec(name, array.shape, str(array.dtype)) for name, array in arrays.items()
    )
    image = TensorSpec('images', (1, 3, *NETWORK[::-1]), 'float32')
    model = ModelInfo('x.onnx', (image,), outputs, {})
    known = ModelOverrides(decoder=preset, class_names=NAMES, syntax=syntax)
    if OBJECT_PRESETS[preset].networks_by_resize:
        known = replace(known, preprocessing={'resize': 'stretch'})

    assumed = recognise(model, known)
    arguments = assumed.assumption.partition(' and add ')[2].partition(' with the right values')[0]
    values = read(arguments).preprocessing | {'input_size': NETWORK}  # build_engine adds the size
    stated = recognise(model, replace(known, preprocessing={**known.preprocessing, **values}))

    assert arguments
    assert stated.assumption == ''
    assert stated.preprocessing == assumed.preprocessing
