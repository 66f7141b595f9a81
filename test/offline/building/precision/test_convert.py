# SPDX-License-Identifier: Apache-2.0
"""Tests of conversion to FP16 and BF16: converted nodes, kept nodes, and equal results."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.building import tensorrt_rtx_build
from support.models import small_detectors
from trt_perception.errors import ConfigError, EngineError
from trt_perception.offline.building.graph.emulate_rounding import emulate_rounding
from trt_perception.offline.building.graph.graph_index import opset_version
from trt_perception.offline.building.precision.convert import convert_precision

FAMILIES = {
    'anchor_free': small_detectors.anchor_free,
    'anchor_based': small_detectors.anchor_based,
    'transformer': small_detectors.transformer,
    'raw_maps': small_detectors.raw_maps,
}


def outputs_of(model, seed=0, **inputs):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )
    if not inputs:
        shape = session.get_inputs()[0].shape
        inputs = {'images': np.random.default_rng(seed).random(shape, np.float32)}
    return session.run(None, inputs)


def types(model):
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    entries = (*graph.value_info, *graph.output, *graph.input)
    found = {entry.name: entry.type.tensor_type.elem_type for entry in entries}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def result_types(model):
    """Return the type of the first output of each named node."""
    known = types(model)
    return {node.name: known[node.output[0]] for node in model.graph.node}


@pytest.mark.parametrize('family', FAMILIES)
def test_fp16_model_gives_equal_results_within_rounding(family):
    model, layers, _ = FAMILIES[family]()
    done = convert_precision(model, 'fp16', strongly_typed=True)
    onnx.checker.check_model(done.model, full_check=True)
    for exact, half in zip(outputs_of(model), outputs_of(done.model), strict=True):
        assert half.dtype == np.float32
        # FP16 has 11 significant bits. The limit allows for the rounding errors of ten layers.
        assert np.abs(half - exact).max() < 5e-3 * np.abs(exact).max()
        assert np.abs(half - exact).max() > 0
    made = result_types(done.model)
    assert all(made[name] == TensorProto.FLOAT16 for name in layers)
    assert done.report.macs['fp16'] > 0.999 - done.report.macs.get('fp32', 0)
    assert tensorrt_rtx_build.size_of_built_plan(done.model.SerializeToString()) > 0


@pytest.mark.parametrize('family', FAMILIES)
def test_bf16_model_gives_equal_results_within_rounding(family):
    model, layers, _ = FAMILIES[family]()
    done = convert_precision(model, 'bf16', strongly_typed=True)
    onnx.checker.check_model(done.model)
    for exact, half in zip(
        outputs_of(model), outputs_of(emulate_rounding(done.model)), strict=True
    ):
        assert np.abs(half - exact).max() < 5e-2 * np.abs(exact).max()
        assert np.abs(half - exact).max() > 0
    made = result_types(done.model)
    assert all(made[name] == TensorProto.FLOAT for name in layers)
    assert done.report.macs['bf16'] > 0.8
    assert tensorrt_rtx_build.size_of_built_plan(done.model.SerializeToString()) > 0


def test_decoding_of_outputs_stays_in_fp32():
    model, _layers, fixed = small_detectors.anchor_free()
    done = convert_precision(model, 'fp16', strongly_typed=True)
    made = result_types(done.model)
    assert made[fixed[0]] == TensorProto.FLOAT
    softmax = next(node for node in done.model.graph.node if node.op_type == 'Softmax')
    assert made[softmax.name] == TensorProto.FLOAT
    assert done.report.kept[softmax.name] == 'decoding of the outputs'
    # One Cast follows the input, and one Cast follows each of the two output layers.
    assert done.report.casts == 3
    assert sum(node.op_type == 'Cast' for node in done.model.graph.node) == 3


def test_narrow_weights_replace_float32_weights():
    model, layers, _ = small_detectors.raw_maps()
    done = convert_precision(model, 'bf16', strongly_typed=True)
    before = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    after = {tensor.name: tensor for tensor in done.model.graph.initializer}
    assert len(after) == len(before)
    rounded = [name for name in after if name.endswith('_bf16')]
    assert len(rounded) == len(before) - 2 * len(layers)
    for name in rounded:
        exact = before[name.removesuffix('_bf16')].astype(ml_dtypes.bfloat16)
        assert np.array_equal(numpy_helper.to_array(after[name]), exact)


def test_requested_layers_stay_in_fp32(golden_messages):
    model, _layers, _ = small_detectors.anchor_free()
    first = next(node.name for node in model.graph.node if node.op_type == 'Conv')
    done = convert_precision(model, 'fp16', keep_fp32=[first], strongly_typed=True)
    assert result_types(done.model)[first] == TensorProto.FLOAT
    assert done.report.kept[first] == 'requested by the user'
    assert 0 < done.report.macs['fp32'] < 0.2
    with golden_messages.raises(ConfigError):
        convert_precision(model, 'fp16', keep_fp32=['nothing*'], strongly_typed=True)
    with golden_messages.raises(EngineError):
        convert_precision(model, 'fp16', keep_fp32=['*'], strongly_typed=True)


def test_weakly_typed_graph_keeps_its_types_and_reports_fp32_nodes():
    model, layers, fixed = small_detectors.anchor_free()
    done = convert_precision(model, 'fp16', keep_fp32=[layers[0]], strongly_typed=False)
    assert done.model.graph.node == model.graph.node
    assert done.report.kept[layers[0]] == 'requested by the user'
    assert fixed[0] in done.report.kept
    assert done.report.macs == {'fp32': 1.0}


@pytest.mark.parametrize('precision', ['fp32', 'tf32'])
def test_fp32_model_is_not_changed(precision):
    model, *_ = small_detectors.anchor_free()
    done = convert_precision(model, precision, strongly_typed=True)
    assert done.model.graph.node == model.graph.node
    assert done.report.kept == {}
    assert set(done.report.nodes) <= {'fp32', 'other'}


def one_node(kind, constant=None, opset_version=17, **attributes):
    """Return a model with one node between two convolutions."""
    net = small_detectors.Net(opset_version)
    x = net.conv('images', 3, 8, silu=False)
    inputs = [x] if constant is None else [x, *constant(net)]
    x = net.node(kind, inputs, **attributes)
    name = net.last()
    return net.model([net.conv(x, 8, 8, silu=False)]), name


def test_scales_of_resize_stay_float32_while_it_computes_in_fp16():
    model, name = one_node('Resize', lambda net: ['', net.constant([1, 1, 2, 2])], mode='nearest')
    done = convert_precision(model, 'fp16', strongly_typed=True)
    assert result_types(done.model)[name] == TensorProto.FLOAT16
    assert np.abs(outputs_of(done.model)[0] - outputs_of(model)[0]).max() < 0.02
    assert tensorrt_rtx_build.size_of_built_plan(done.model.SerializeToString()) > 0


def test_node_with_a_constant_outside_fp16_stays_in_fp32():
    model, name = one_node('Add', lambda net: [net.constant(np.full((8, 1, 1), 1e6))])
    done = convert_precision(model, 'fp16', strongly_typed=True)
    assert result_types(done.model)[name] == TensorProto.FLOAT
    assert 'exceeds 65504' in done.report.kept[name]
    model, name = one_node('Add', lambda net: [net.constant(np.full((8, 1, 1), 65504.0))])
    assert name not in convert_precision(model, 'fp16', strongly_typed=True).report.kept
    model, name = one_node('Add', lambda net: [net.constant(np.full((8, 1, 1), 1e6))])
    assert name not in convert_precision(model, 'bf16', strongly_typed=True).report.kept


def test_constants_that_become_0_are_reported():
    values = np.array([1e-9, 2e-8, 4e-8, 0, 1e-3, -1e-9, 1e-4, 2e-3], np.float32)
    values = values.reshape(8, 1, 1)
    model, _ = one_node('Add', lambda net: [net.constant(values)])
    notes = convert_precision(model, 'fp16', strongly_typed=True).report.notes
    zeros = int(((values.astype(np.float16) == 0) & (values != 0)).sum())
    assert zeros == 3
    assert len(notes) == 1
    assert notes[0].startswith(f'{zeros} of 8 numbers in')


@pytest.mark.parametrize(
    'values',
    [np.append(np.ones(511), 1e-9), np.repeat([5, 1e-9], 256)],
    ids=['one of many', 'half of the numbers, none of the norm'],
)
def test_zeros_that_change_next_to_nothing_are_not_reported(values):
    values = values.astype(np.float32).reshape(8, 1, 64)
    lost = np.where(values.astype(np.float16) == 0, values, 0)
    assert 0 < np.linalg.norm(lost) < 1e-7 * np.linalg.norm(values)
    model, _ = one_node('Add', lambda net: [net.constant(values)])
    assert convert_precision(model, 'fp16', strongly_typed=True).report.notes == ()


def test_subgraphs_keep_their_types():
    net = small_detectors.Net()
    x = net.conv('images', 3, 8, silu=False)
    branches = [
        helper.make_graph(
            [helper.make_node(kind, [x], [f'{kind}_out'])],
            kind,
            [],
            [helper.make_tensor_value_info(f'{kind}_out', TensorProto.FLOAT, None)],
        )
        for kind in ('Relu', 'Neg')
    ]
    always = net.constant(True, np.bool_)
    x = net.node('If', [always], then_branch=branches[0], else_branch=branches[1])
    model = net.model([net.conv(x, 8, 8, silu=False)])
    done = convert_precision(model, 'fp16', strongly_typed=True)
    assert 'subgraph' in ' '.join(done.report.kept.values())
    assert np.abs(outputs_of(done.model)[0] - outputs_of(model)[0]).max() < 0.02


def test_constant_nodes_and_casts_are_converted():
    net = small_detectors.Net()
    x = net.conv('images', 3, 8, silu=False)
    offset = net.node('Constant', [], value=numpy_helper.from_array(np.float32([0.5])))
    x = net.node('Cast', [net.node('Add', [x, offset])], to=TensorProto.FLOAT)
    model = net.model([net.conv(x, 8, 8, silu=False)])
    done = convert_precision(model, 'fp16', strongly_typed=True)
    assert {'Add', 'Cast'} <= {
        node.op_type
        for node in done.model.graph.node
        if result_types(done.model)[node.name] == TensorProto.FLOAT16
    }
    assert np.abs(outputs_of(done.model)[0] - outputs_of(model)[0]).max() < 0.02


def test_fp16_model_is_neither_converted_again_nor_to_another_type(golden_messages):
    model, *_ = small_detectors.anchor_free()
    half = convert_precision(model, 'fp16', strongly_typed=True).model
    again = convert_precision(half, 'fp16', strongly_typed=True)
    assert again.model == half
    golden_messages.add('\n'.join(again.report.notes))
    for precision in ('fp32', 'bf16', 'int8'):
        with golden_messages.raises(EngineError):
            convert_precision(half, precision, strongly_typed=True)
    with golden_messages.raises(ConfigError):
        convert_precision(half, 'fp16', keep_fp32=['n0'], strongly_typed=True)


def test_int8_needs_a_quantised_model(golden_messages):
    model, *_ = small_detectors.anchor_free()
    with golden_messages.raises(EngineError):
        convert_precision(model, 'int8', strongly_typed=True)


def test_bf16_conversion_upgrades_the_opset():
    model, *_ = small_detectors.anchor_free(opset=17)
    assert opset_version(convert_precision(model, 'bf16', strongly_typed=True).model) == 22
    assert opset_version(convert_precision(model, 'fp16', strongly_typed=True).model) == 17
    assert opset_version(model) == 17
