# SPDX-License-Identifier: Apache-2.0
"""Models whose declared or computed shapes are too large are refused."""

import tracemalloc
from contextlib import closing

import onnx
import pytest
from onnx import TensorProto, helper

from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.warm_up import open_warm_pipeline

DETECT = {'model.decoder': 'dense', 'model.class_names': ['cat', 'dog']}


def write_model(folder, image, output=(1, 6, 'anchors'), *, filled=(1, 6, 4), further=()):
    """Write a model without a manifest. It returns zeros of the shape ``filled``.

    Args:
        image: shape of the image input.
        output: the declared shape of the output.
        filled: the shape of the computed output.
        further: names and shapes of other float inputs.
    """

    def value(name, shape, kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    zero = helper.make_tensor('value', TensorProto.FLOAT16, [1], b'\0\0', raw=True)
    graph = helper.make_graph(
        [
            # The shape depends on the pixels, so ONNX Runtime cannot know it before the run.
            helper.make_node('ReduceMin', ['images'], ['darkest'], keepdims=0),
            helper.make_node('Clip', ['darkest', '', 'black'], ['zero']),
            helper.make_node('Cast', ['zero'], ['whole'], to=TensorProto.INT64),
            helper.make_node('Add', ['whole', 'filled'], ['shape']),
            helper.make_node('ConstantOfShape', ['shape'], ['output'], value=zero),
        ],
        'filled',
        [value('images', image), *(value(name, shape) for name, shape in further)],
        [value('output', output, TensorProto.FLOAT16)],
        [
            helper.make_tensor('filled', TensorProto.INT64, [len(filled)], filled),
            helper.make_tensor('black', TensorProto.FLOAT, [], [0]),
        ],
    )
    path = folder / 'model.onnx'
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    onnx.save(model, path)
    return path


def options_for(path, **values):
    parameters = ParameterValues.from_values({'engine_path': str(path), **DETECT, **values})
    return parameters.pipeline_options()


@pytest.mark.parametrize(
    'shapes',
    [
        {'image': (1, 3, 9000, 32767)},
        {'image': (1, 3, 60000, 60000)},
        {'image': (1, 3, 2**62, 8)},
        {'image': (1, 3, 8, 40000)},
        {'image': (64, 3, 1100, 1100)},
        {'image': (65, 3, 8, 8)},
        {'image': (100_000, 3, 8, 8)},
        {'image': (1, 3, 8, 8), 'output': (1, 6, 50_000_000)},
        {'image': (1, 3, 8, 8), 'further': [('pixel_mask', (1, 100_000, 100_000))]},
    ],
    ids=lambda shapes: '-'.join(f'{key}{value}' for key, value in shapes.items()),
)
def test_huge_declared_shape_is_refused(tmp_path, shapes, golden_messages):
    path = write_model(tmp_path, **shapes)
    options = options_for(path)
    tracemalloc.start()
    try:
        with golden_messages.raises(EngineError):
            open_pipeline(str(path), options)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**26


@pytest.mark.parametrize(
    ('image', 'further'),
    [
        ((1, 3, 60_000_000, 'width'), ()),
        ((1, 3, 'height', 'width'), [('pixel_mask', (1, 60_000_000, 'width'))]),
    ],
)
def test_huge_shape_from_a_parameter_and_the_model_is_refused(
    tmp_path, image, further, golden_messages
):
    path = write_model(tmp_path, image, further=further)
    values = {'model.input_size': [32767, 2048], 'model.decoder': '', 'model.class_names': []}
    with golden_messages.raises(EngineError):
        open_pipeline(str(path), options_for(path, **values))


def test_open_batch_of_huge_images_is_refused(tmp_path, golden_messages):
    path = write_model(tmp_path, ('n', 3, 4096, 4096), ('n', 6, 'anchors'))
    with golden_messages.raises(EngineError):
        OnnxRuntimePipeline(read_model_file(path), options_for(path), open_batch=8)


def test_batch_of_64_images_is_accepted(tmp_path):
    path = write_model(tmp_path, (64, 3, 8, 8), (64, 6, 'anchors'), filled=(64, 6, 4))
    with closing(open_pipeline(str(path), options_for(path))) as pipeline:
        assert pipeline.batch == 64


@pytest.mark.parametrize('decoder', ['dense', ''])
def test_output_that_becomes_huge_in_the_trial_run_is_refused(tmp_path, decoder, golden_messages):
    path = write_model(tmp_path, (1, 3, 8, 8), filled=(1, 6, 34_000_000))
    options = options_for(path, **{'model.decoder': decoder})
    with golden_messages.raises(EngineError):
        open_warm_pipeline(str(path), options, open_pipeline)
