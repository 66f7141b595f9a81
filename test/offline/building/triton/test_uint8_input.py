# SPDX-License-Identifier: Apache-2.0
"""A model with a uint8 input computes the same outputs as the model with floats."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from trt_perception.errors import EngineError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.manifest import Manifest
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.triton.uint8_input import with_uint8_input
from trt_perception.stages.host_preprocess import HostPreprocessor

SIZE = (16, 12)
IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
PIXELS = np.random.default_rng(7).integers(0, 256, (9, 13, 3), np.uint8)
DTYPES = {'float32': TensorProto.FLOAT, 'float16': TensorProto.FLOAT16}


def model_and_manifest(ir_version=9, **values):
    """Return a model that copies its input, once in a branch of If, and the manifest."""
    preprocessing = Preprocessing(SIZE, **values)
    width, height = SIZE
    shape = (1, height, width, 3) if preprocessing.layout == 'nhwc' else (1, 3, height, width)
    kind = DTYPES[preprocessing.dtype]
    copied = helper.make_tensor_value_info('inner', kind, shape)
    branch = helper.make_graph(
        [helper.make_node('Identity', ['images'], ['inner'])], 'branch', [], [copied]
    )
    yes = helper.make_tensor('yes', TensorProto.BOOL, (), [True])
    nodes = [
        helper.make_node('Constant', [], ['condition'], value=yes),
        helper.make_node('If', ['condition'], ['b'], then_branch=branch, else_branch=branch),
        # A name that the conversion would choose.
        helper.make_node('Identity', ['images'], ['images_uint8']),
        helper.make_node('Identity', ['images_uint8'], ['a']),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, shape) for name in 'ab']
    image = helper.make_tensor_value_info('images', kind, shape)
    graph = helper.make_graph(nodes, 'copy', [image], outputs)
    opset = [helper.make_opsetid('', 17)]
    manifest = Manifest(
        onnx=FileIdentity('copy.onnx', '0' * 64, 1),
        engine=None,
        inputs=(TensorSpec('images', shape, preprocessing.dtype),),
        outputs=tuple(TensorSpec(name, shape, preprocessing.dtype) for name in 'ab'),
        preprocessing=preprocessing,
        decoder=Dense(objectness=False, transposed=False),
        class_names=('x',),
        notes={},
    )
    return helper.make_model(graph, opset_imports=opset, ir_version=ir_version), manifest


def input_and_outputs(model, manifest):
    """Return the outputs for an image with the preprocessing of the manifest."""
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    tensor, _ = HostPreprocessor(manifest.preprocessing)(frame_from_bgr(PIXELS))
    assert [each.name for each in session.get_inputs()] == [manifest.inputs[0].name]
    return tensor, session.run(None, {manifest.inputs[0].name: tensor})


@pytest.mark.parametrize(
    'values',
    [
        {},
        {'scale': 1.0},
        {'scale': 1.0, 'mean': (1.0, 2.0, 3.0), 'color_order': 'bgr'},
        IMAGENET,
        {**IMAGENET, 'layout': 'nhwc'},
        {**IMAGENET, 'dtype': 'float16'},
        {'scale': 1 / 255, 'pad_value': None},
        {'scale': 1.0, 'mean': (7.0, 7.0, 7.0), 'pad_value': None},
        {'scale': 1 / 255, **IMAGENET, 'resize': 'stretch', 'pad_value': None},
        {'ir_version': 3},
    ],
)
def test_outputs_are_equal_with_a_quarter_of_the_bytes(values):
    model, manifest = model_and_manifest(**values)
    before = model.SerializeToString()
    changed, described = with_uint8_input(model, manifest, 'copy.onnx')
    floats, expected = input_and_outputs(model, manifest)
    pixels, found = input_and_outputs(changed, described)
    assert pixels.dtype == np.uint8
    assert pixels.nbytes * floats.itemsize == floats.nbytes
    np.testing.assert_array_equal(found, expected)
    assert model.SerializeToString() == before


def test_model_with_a_uint8_input_stays_the_same():
    model, manifest = model_and_manifest(scale=1.0)
    changed, described = with_uint8_input(model, manifest, 'copy.onnx')
    assert with_uint8_input(changed, described, 'copy.onnx') == (changed, described)


@pytest.mark.parametrize(
    'values',
    [
        {'round_pixels': False},
        {**IMAGENET, 'pad_value': None},
        {'scale': 1.0, 'mean': (0.5, 0.5, 0.5), 'pad_value': None},
        {'scale': 1.0, 'mean': (300.0, 300.0, 300.0), 'pad_value': None},
    ],
)
def test_input_that_bytes_cannot_represent_is_refused(golden_messages, values):
    model, manifest = model_and_manifest()
    manifest = replace(manifest, preprocessing=replace(manifest.preprocessing, **values))
    with pytest.raises(EngineError) as refused:
        with_uint8_input(model, manifest, 'copy.onnx')
    golden_messages.add(refused.value)
