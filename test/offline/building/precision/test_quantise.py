# SPDX-License-Identifier: Apache-2.0
"""Tests of INT8 and FP8 quantisation: quantised layers, accuracy, and builds with TensorRT-RTX."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.building import tensorrt_rtx_build
from support.models import small_detectors
from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import SMALL_PREPROCESSING
from trt_perception.errors import ConfigError, EngineError
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.graph.dequantise import dequantise
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.offline.building.precision.quantise import quantise
from trt_perception.offline.building.precision.quantise_check import check_quantised

ROOT = Path(__file__).resolve().parents[4]
DIGITS_MANIFEST = json.loads((ROOT / 'models/digits.onnx.json').read_bytes())
QDQ = ('QuantizeLinear', 'DequantizeLinear')
METHODS = ('entropy', 'percentile', 'minmax')


@pytest.fixture(scope='module')
def digits():
    return onnx.load(ROOT / 'models/digits.onnx')


@pytest.fixture(scope='module')
def images():
    return select_images(CALIBRATION_IMAGES)


@pytest.fixture(scope='module')
def quantised_digits(digits, images, tmp_path_factory):
    preprocessing = parse_manifest(json.dumps(DIGITS_MANIFEST).encode(), 'digits').preprocessing
    checked, ranges = CalibrationImages(images, preprocessing), tmp_path_factory.mktemp('ranges')
    return {
        target: quantise(digits, checked, method='minmax', target=target, cache_dir=ranges)
        for target in ('int8', 'fp8')
    }


def session(model):
    options = onnxruntime.SessionOptions()
    # ONNX Runtime's optimiser would move FP8 across Transpose, but has no kernel for that.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )


def test_calibration_images_include_no_demo_scene():
    demo = {path.read_bytes() for path in (ROOT / 'demo/scenes').glob('*.jpg')}
    assert len(demo) == 60
    assert not demo & {path.read_bytes() for path in CALIBRATION_IMAGES.glob('*.jpg')}


def test_nine_tenths_of_the_macs_are_quantised(quantised_digits):
    done = quantised_digits['int8']
    assert done.report.macs['int8'] >= 0.9
    assert sum(done.report.macs.values()) == pytest.approx(1)
    assert (done.report.layers, done.report.quantised) == (50, 46)
    # Count again in the graph: a layer is quantised if both operands are dequantised.
    made = {name: node for node in done.model.graph.node for name in node.output}
    layers = [node for node in done.model.graph.node if node.op_type == 'Conv']
    both = [
        node.name
        for node in layers
        if all(
            name in made and made[name].op_type == 'DequantizeLinear' for name in node.input[:2]
        )
    ]
    assert len(layers) == 50
    assert len(both) == 46
    left = {node.name for node in layers} - set(both)
    assert left == set(done.report.kept)
    assert {name.rsplit('/', 2)[1] for name in left} == {'box.2', 'classes.2'}


@pytest.mark.engine_build
@pytest.mark.parametrize(
    ('target', 'capabilities'), [('int8', ['86', '89']), ('fp8', ['89', '120'])]
)
def test_tensorrt_rtx_builds_the_quantised_model(target, capabilities, quantised_digits):
    model = quantised_digits[target].model
    onnx.checker.check_model(model, full_check=True)
    strong = convert_precision(model, target, strongly_typed=True)
    onnx.checker.check_model(strong.model, full_check=True)
    assert strong.report.macs[target] > 0.9
    assert strong.report.macs.get('fp32', 0) == 0
    for variant in (model, strong.model):
        assert tensorrt_rtx_build.size_of_built_plan(variant.SerializeToString(), capabilities) > 0


def test_copies_of_a_shared_bias_replace_no_other_tensor(images):
    # ONNX Runtime's quantiser would name the copies of the bias "b" like the layers' outputs.
    rng = np.random.default_rng(0)
    names = ['images', *(f'b{number}' for number in range(6)), 'output']
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.3, (3, 3, 3, 3)).astype(np.float32), f'w{index}')
        for index in range(len(names) - 1)
    ]
    bias = numpy_helper.from_array(np.ones(3, np.float32), 'b')
    layers = [
        helper.make_node('Conv', [names[index], one.name, 'b'], [names[index + 1]], pads=[1] * 4)
        for index, one in enumerate(weights)
    ]
    shape = [1, 3, 64, 64]
    image, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ('images', 'output')
    )
    graph = helper.make_graph(layers, 'shared', [image], [output], [*weights, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    done = quantise(model, CalibrationImages(images, Preprocessing((64, 64))), target='int8')
    assert done.report.quantised >= 5
    pixels = {'images': rng.random(shape, np.float32)}
    exact, rounded = (session(one).run(None, pixels)[0] for one in (model, done.model))
    assert np.abs(exact - rounded).mean() < 0.05 * np.abs(exact).mean()


@pytest.mark.parametrize(
    'family',
    [small_detectors.anchor_free, small_detectors.anchor_based, small_detectors.transformer],
)
@pytest.mark.parametrize('target', ['int8', 'fp8'])
def test_models_of_other_families_are_quantised(family, target, images):
    model, layers, fixed = family()
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target)
    assert set(done.report.kept) == {*layers, *fixed}
    assert done.report.quantised == done.report.layers - len(done.report.kept)
    image = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)
    exact = session(model).run(None, {'images': image})
    found = session(done.model).run(None, {'images': image})
    for one, other in zip(exact, found, strict=True):
        assert 0 < np.abs(one - other).max() < 0.2 * np.abs(one).max()
    strong = convert_precision(done.model, target, strongly_typed=True).model
    assert tensorrt_rtx_build.size_of_built_plan(strong.SerializeToString(), ['89']) > 0


def test_products_of_two_activations_stay_in_float(images):
    model, *_ = small_detectors.transformer()
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING)).model
    constants = {tensor.name for tensor in model.graph.initializer}
    attention = {
        node.name
        for node in model.graph.node
        if node.op_type == 'MatMul' and node.input[1] not in constants
    }
    assert len(attention) == 2
    made = {name: node for node in done.graph.node for name in node.output}
    for node in done.graph.node:
        if node.name in attention:
            kinds = {made[name].op_type for name in node.input}
            assert kinds != {'DequantizeLinear'}


def test_output_of_a_convolution_is_not_quantised_before_its_activation(quantised_digits):
    graph = quantised_digits['int8'].model.graph
    made = {name: node for node in graph.node for name in node.output}
    read = [node for node in graph.node if node.op_type == 'QuantizeLinear']
    assert read
    for node in read:
        source = made.get(node.input[0])
        # No node may lie between a convolution and its activation.
        assert source is None or source.op_type != 'Conv'


def test_weights_have_a_scale_for_each_output_channel(quantised_digits, digits):
    exact = {t.name: numpy_helper.to_array(t) for t in digits.graph.initializer}
    graph = quantised_digits['int8'].model.graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    checked = 0
    for node in graph.node:
        if node.op_type == 'DequantizeLinear' and node.input[0] in stored:
            weights = exact[node.input[0].removesuffix('_quantized')]
            scale = stored[node.input[1]]
            assert stored[node.input[0]].dtype == np.int8
            assert not stored[node.input[2]].any()
            largest = np.abs(weights).max(axis=(1, 2, 3))
            assert np.allclose(scale, largest / 127.5, rtol=0.005)
            wide = stored[node.input[0]] * scale.reshape(-1, 1, 1, 1)
            assert np.abs(wide - weights).max() <= scale.max() * 0.51
            checked += 1
    assert checked == 46


def test_dequantised_model_computes_like_the_original(quantised_digits, digits):
    int8 = quantised_digits['int8'].model
    plain = dequantise(int8)
    onnx.checker.check_model(plain, full_check=True)
    assert [node.name for node in plain.graph.node] == [
        node.name
        for node in int8.graph.node
        if node.op_type not in ('QuantizeLinear', 'DequantizeLinear')
    ]
    assert len(plain.graph.initializer) < len(int8.graph.initializer)
    image = np.random.default_rng(0).random((1, 3, 480, 640), np.float32)
    exact, found, rounded = (
        session(model).run(None, {'images': image})[0] for model in (digits, plain, int8)
    )
    # The weights stay rounded, but the activations are exact again.
    error = np.abs(found - exact).mean()
    assert 0 < error < np.abs(rounded - exact).mean()
    assert error < 0.01 * np.abs(exact).mean()


def test_keep_float_patterns_keep_more_layers_in_float(digits, golden_messages):
    preprocessing = parse_manifest(json.dumps(DIGITS_MANIFEST).encode(), 'digits').preprocessing
    few = CalibrationImages(select_images(CALIBRATION_IMAGES, 8), preprocessing)
    done = quantise(digits, few, keep_float=['/heads.*'])
    assert len(done.report.kept) == 12
    for reason in sorted(set(done.report.kept.values())):
        golden_messages.add(reason)
    for pattern, error in (
        ('/head.*', ConfigError), ('/stem/stem.0/Sigmoid', ConfigError), ('*', EngineError)
    ):  # fmt: skip
        with golden_messages.raises(error):
            quantise(digits, few, keep_float=[pattern])


def test_quantised_weights_do_not_depend_on_the_batch_size(images):
    model, *_ = small_detectors.raw_maps()
    one = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING)).model
    for setting in ('batch', 4):
        model, *_ = small_detectors.raw_maps()
        entry = model.graph.input[0].type.tensor_type.shape.dim[0]
        if setting == 'batch':
            entry.dim_param = setting
        else:
            entry.dim_value = setting
        for output in model.graph.output:
            output.type.tensor_type.shape.dim[0].dim_param = 'batch'
        other = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING)).model
        if setting == 'batch':
            assert other.graph.input[0].type.tensor_type.shape.dim[0].dim_param == 'batch'
        weights = [sorted(m.graph.initializer, key=lambda t: t.name) for m in (one, other)]
        for ours, theirs in zip(*weights, strict=True):
            assert np.allclose(
                numpy_helper.to_array(ours), numpy_helper.to_array(theirs), rtol=1e-3
            )


def test_unquantisable_models_are_refused(images, golden_messages):
    model, *_ = small_detectors.anchor_free()
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING)).model
    with golden_messages.raises(EngineError):
        quantise(done, CalibrationImages(images, SMALL_PREPROCESSING))
    half = convert_precision(model, 'fp16', strongly_typed=True).model
    with golden_messages.raises(EngineError):
        quantise(half, CalibrationImages(images, SMALL_PREPROCESSING))
    with golden_messages.raises(EngineError):
        quantise(model, CalibrationImages(images, Preprocessing(input_size=(64, 48))))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with golden_messages.raises(EngineError):
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))


def test_overflowing_model_is_refused_with_the_tensor(images, golden_messages):
    net = small_detectors.Net()
    x = net.conv('images', 3, 8, silu=False)
    x = net.node('Div', [x, net.node('Sub', [x, x])])
    x = net.conv(x, 8, 8)
    model = net.model([net.conv(x, 8, 8, silu=False)])
    with pytest.raises(EngineError) as caught:
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))
    golden_messages.add(str(caught.value).replace(str(CALIBRATION_IMAGES), 'IMAGES'))


def changed(model, kind, place, tensor):
    """Return a copy whose first Q or DQ node has another scale or zero point."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    node = next(node for node in copied.graph.node if node.op_type == kind)
    node.input[place] = 'changed'
    copied.graph.initializer.append(numpy_helper.from_array(np.asarray(tensor), 'changed'))
    return copied, node.name


@pytest.mark.parametrize(
    ('kind', 'place', 'tensor'),
    [
        ('QuantizeLinear', 2, np.int8(3)),
        ('QuantizeLinear', 2, np.uint8(128)),
        ('QuantizeLinear', 2, np.uint8(0)),
        ('DequantizeLinear', 2, np.int32(0)),
        ('DequantizeLinear', 2, np.int16(0)),
        ('QuantizeLinear', 1, np.float32(0)),
        ('QuantizeLinear', 1, np.float32(np.nan)),
        ('DequantizeLinear', 1, np.float32(-1)),
    ],
)
def test_scale_or_zero_point_that_tensorrt_refuses_is_refused(
    quantised_digits, kind, place, tensor, golden_messages
):
    model, name = changed(quantised_digits['int8'].model, kind, place, tensor)
    with golden_messages.raises(EngineError) as error:
        check_quantised(model)
    assert name in str(error.value)
    with pytest.raises(EngineError) as of_constant_nodes:
        check_quantised(with_constant_nodes(model))
    assert str(of_constant_nodes.value) == str(error.value)


def with_constant_nodes(model):
    """Return the model with its scales and zero points in Constant nodes."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    names = {name for n in model.graph.node if n.op_type in QDQ for name in n.input[1:]}
    stored = [each for each in model.graph.initializer if each.name in names]
    for tensor in stored:
        copied.graph.initializer.remove(tensor)
        copied.graph.node.insert(0, helper.make_node('Constant', [], [tensor.name], value=tensor))
    return copied


def test_scales_and_zero_points_may_come_from_constant_nodes(quantised_digits):
    model = with_constant_nodes(quantised_digits['int8'].model)
    assert not {n.input[2] for n in model.graph.node if n.op_type in QDQ} & {
        each.name for each in model.graph.initializer
    }
    check_quantised(model)


def test_quantised_biases_are_refused(golden_messages):
    """Such biases are INT32, which TensorRT refuses."""
    nodes = [
        helper.make_node('DequantizeLinear', ['bias', 'scale'], ['b'], name='bias_dq'),
        helper.make_node('Conv', ['images', 'w', 'b'], ['y'], name='conv'),
    ]
    arrays = {'bias': np.zeros(4, np.int32), 'scale': np.float32(0.1)}
    arrays['w'] = np.ones((4, 3, 1, 1), np.float32)
    weights = [numpy_helper.from_array(np.asarray(array), key) for key, array in arrays.items()]
    sides = [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in ('images', 'y')
    ]
    graph = helper.make_graph(nodes, 'biases', sides[:1], sides[1:], weights)
    with golden_messages.raises(EngineError):
        check_quantised(helper.make_model(graph))


def test_missing_zero_points_and_old_opsets_are_refused(quantised_digits, golden_messages):
    model = onnx.ModelProto()
    model.CopyFrom(quantised_digits['int8'].model)
    check_quantised(model)
    for node in model.graph.node:
        if node.op_type == 'QuantizeLinear':
            del node.input[2:]
    with golden_messages.raises(EngineError):
        check_quantised(model)
    half = convert_precision(quantised_digits['int8'].model, 'int8', strongly_typed=True).model
    check_quantised(half)
    half.opset_import[0].version = 18
    with golden_messages.raises(EngineError):
        check_quantised(half)


def test_quantised_model_is_refused_in_other_precisions(quantised_digits, golden_messages):
    model = quantised_digits['int8'].model
    for precision in ('fp32', 'fp16', 'bf16'):
        with golden_messages.raises(EngineError):
            convert_precision(model, precision, strongly_typed=True)
    with golden_messages.raises(EngineError):
        convert_precision(model, 'fp8', strongly_typed=True)
