"""Tensors that are 0, nearly 0, too large or no numbers: what becomes of their scales."""

import json
import sys
import types

import cv2
import numpy as np
import onnx
import pytest
import small_detectors
import tensorrt_rtx_build
from detector_models import KNOWN
from detector_models import report_of
from detector_models import run
from detector_models import write_images
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx import helper
from onnx import numpy_helper
from test_quantise import SCENES
from test_quantise import SMALL
from test_quantise import session

from trt_perception.building.graph.quantise_check import check_quantised
from trt_perception.building.precision import quantise_modelopt
from trt_perception.building.precision.calibration_images import select_images
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.quantise import quantise
from trt_perception.building.precision.quantise_modelopt import quantise_with_modelopt
from trt_perception.errors import EngineError

TARGETS = ('int8', 'fp8')
Q, DQ = 'QuantizeLinear', 'DequantizeLinear'


@pytest.fixture(scope='module')
def images():
    return select_images(SCENES, 8)


def scales(model):
    """Return all scales of a model, as they are stored."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [stored[n.input[1]] for n in model.graph.node if n.op_type in (Q, DQ)]


def built(model, target):
    """Convert for a strongly typed engine, and let TensorRT-RTX build it."""
    done = convert_precision(model, target, strongly_typed=True).model
    onnx.checker.check_model(done, full_check=True)
    for scale in scales(done):
        assert np.isfinite(scale).all()
        assert (scale > 0).all()
    assert tensorrt_rtx_build.build(done.SerializeToString(), ['89']) > 0
    return done


def with_branch(*operations):
    """Return a model with a branch behind nodes of the input, and the tensor it convolves."""
    net = small_detectors.Net()
    x = net.backbone()
    side = 'images'
    for kind, value in operations:
        side = net.node(kind, [side, net.constant(value)] if value is not None else [side])
    branch = net.conv(net.conv(side, 3, 32, stride=2), 32, 32, stride=2)
    x = net.node('Add', [x, branch])
    return net.model([net.conv(net.conv(x, 32, 32), 32, 8, silu=False)]), side


def readers(model, tensor):
    return [node.name for node in model.graph.node if tensor in node.input]


def with_channels(values, *, layer=3):
    """Return a model of which a convolution has channels of small or large weights."""
    model, *_ = small_detectors.anchor_free()
    node = [node for node in model.graph.node if node.op_type == 'Conv'][layer]
    (tensor,) = (t for t in model.graph.initializer if t.name == node.input[1])
    weights = numpy_helper.to_array(tensor).copy()
    for channel, value in enumerate(values):
        weights[channel] = np.sign(weights[channel]) * np.float32(value)
    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    return model, node


# --- data ----------------------------------------------------------------------------------------


@pytest.fixture
def bright(tmp_path):
    """Images that are nowhere darker than 100 of 255."""
    for number in range(8):
        small = np.random.default_rng(number).integers(100, 256, (6, 8, 3)).astype(np.uint8)
        picture = cv2.resize(small, (96, 80), interpolation=cv2.INTER_NEAREST)
        assert cv2.imwrite(str(tmp_path / f'{number}.png'), picture)
    return select_images(tmp_path)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_what_no_image_reaches_stays_in_float(bright, target):
    """And computes what it did when the camera shows it, which no guessed scale could."""
    model, tensor = with_branch(('Neg', None), ('Add', 0.35), ('Relu', None))
    done = quantise(model, SMALL, bright, target=target)
    (name,) = readers(model, tensor)
    assert tensor in done.report.kept[name]
    assert 'always 0 on these images' in done.report.kept[name]
    assert any(name in text and tensor in text for text in done.report.warnings)
    assert done.report.quantised == done.report.layers - len(done.report.kept)
    built(done.model, target)
    dark = np.zeros((1, 3, 64, 64), np.float32)
    node = next(node for node in done.model.graph.node if node.name == name)
    exact, found = (
        session(outputs(m, [node.output[0]])).run(None, {'images': dark})[0]
        for m in (model, done.model)
    )
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    assert np.abs(exact).max() > 0.1


def outputs(model, names):
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    del copied.graph.output[:]
    for name in names:
        copied.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return copied


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('factor', [0.0, 1e-45, 1e-40, 1e-30, 1e-12, 5e-6])
def test_data_too_small_for_a_scale_stay_in_float(images, factor, target):
    model, tensor = with_branch(('Mul', factor))
    done = quantise(model, SMALL, images, target=target)
    (name,) = readers(model, tensor)
    assert tensor in done.report.kept[name]
    built(done.model, target)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('factor', [1e-5, 1e-4, 1e-2])
def test_data_that_are_just_large_enough_are_quantised(images, factor, target):
    model, tensor = with_branch(('Mul', factor))
    done = quantise(model, SMALL, images, target=target)
    assert readers(model, tensor)[0] not in done.report.kept
    strong = built(done.model, target)
    # The scale in FP16 reaches as far as the data do: none is cut.
    scale = min(float(value.max()) for value in scales(strong))
    most = {'int8': 127.5, 'fp8': 448}[target]
    assert scale * most >= factor * 0.99


@pytest.mark.engine_build
@pytest.mark.parametrize('factor', [1e5, 1e30])
def test_data_beyond_fp16_are_told(images, factor):
    model, tensor = with_branch(('Mul', factor))
    done = quantise(model, SMALL, images)
    (told,) = [text for text in done.report.warnings if '65504' in text]
    assert tensor in told
    assert '--keep-fp32' in told
    built(done.model, 'int8')


def test_data_without_a_range_in_fp32_stay_in_float(images):
    net = small_detectors.Net()
    x = net.node('Mul', ['images', net.constant(3.4e38)])
    small = net.conv(net.node('Mul', ['images', net.constant(2.0)]), 3, 8)
    large = net.node('Clip', [net.conv(x, 3, 8, silu=False)])
    weights = net.weights[-2]
    tiny = numpy_helper.to_array(weights) * np.float32(1e-4)
    weights.CopyFrom(numpy_helper.from_array(tiny, weights.name))
    model = net.model([net.conv(net.node('Add', [large, small]), 8, 8, silu=False)])
    done = quantise(model, SMALL, images)
    (name,) = readers(model, x)
    assert 'too much for a scale' in done.report.kept[name]
    for scale in scales(done.model):
        assert np.isfinite(scale).all()


def test_a_model_of_zeros_is_refused_with_what_to_check(images):
    net = small_detectors.Net()
    x = net.node('Mul', ['images', net.constant(0.0)])
    model = net.model([net.conv(net.conv(x, 3, 8, silu=False), 8, 8, silu=False)])
    with pytest.raises(EngineError, match='no layer can be quantised') as error:
        quantise(model, SMALL, images)
    assert x in str(error.value)
    assert '--scale' in str(error.value)


def test_the_cache_knows_that_a_tensor_was_0(images, tmp_path):
    model, tensor = with_branch(('Mul', 0.0))
    first, second = (quantise(model, SMALL, images, cache_dir=tmp_path) for _ in range(2))
    assert second.report.cache.startswith('reused')
    assert second.report.kept == first.report.kept
    assert second.model == first.model
    assert readers(model, tensor)[0] in first.report.kept


@pytest.mark.parametrize('value', [1e39, 1e308, 10**400, float('inf'), float('nan'), -1e-45])
def test_a_range_that_is_no_float32_is_damage(images, tmp_path, value):
    model, _ = with_branch(('Mul', 1.0))
    exact = quantise(model, SMALL, images, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert content
    path.write_text(json.dumps(dict.fromkeys(content, value)))
    done = quantise(model, SMALL, images, cache_dir=tmp_path)
    assert 'is damaged' in done.report.cache
    assert done.model == exact.model


# --- weights -------------------------------------------------------------------------------------

SMALL_WEIGHTS = (0.0, 1e-45, 1e-39, 1e-30, 1e-12, 1e-7, 1e-6, 3e-5, 5e-4)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_channels_that_are_0_or_nearly_are_quantised(images, target):
    model, node = with_channels(SMALL_WEIGHTS)
    done = quantise(model, SMALL, images, target=target)
    assert node.name not in done.report.kept
    strong = built(done.model, target)
    (exact,) = (t for t in model.graph.initializer if t.name == node.input[1])
    made = {name: n for n in strong.graph.node for name in n.output}
    widening = made[next(n for n in strong.graph.node if n.name == node.name).input[1]]
    stored = {t.name: numpy_helper.to_array(t) for t in strong.graph.initializer}
    scale = stored[widening.input[1]].astype(np.float64).reshape(-1, 1, 1, 1)
    found = stored[widening.input[0]].astype(np.float64) * scale
    error = np.abs(found - numpy_helper.to_array(exact)).max(axis=(1, 2, 3))
    # Half a level, or of FP8's 3 bits, and as much again where it is rounded anew; but at least
    # half of FP16's step near 0.
    level = {'int8': 1 / 127, 'fp8': 1 / 16}[target]
    for channel, value in enumerate(SMALL_WEIGHTS):
        assert error[channel] <= max(value * level, 2**-25) * 1.02, value


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_weights_of_nothing_but_zeros_are_quantised(images, target):
    model, node = with_channels([0.0] * 32)
    done = quantise(model, SMALL, images, target=target)
    assert node.name not in done.report.kept
    built(done.model, target)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_named(images, value):
    """Also behind the last tensor whose range is taken."""
    for layer in (0, 3, 4):
        model, node = with_channels([1.0, value], layer=layer)
        with pytest.raises(EngineError, match='hold NaN or infinity') as error:
            quantise(model, SMALL, images)
        assert f"weights '{node.input[1]}' of '{node.name}'" in str(error.value)


@pytest.mark.engine_build
@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-46, 3), min_size=1, max_size=32), st.sampled_from(TARGETS))
def test_weights_of_any_size_make_an_engine(images, exponents, target):
    values = [0.0 if power < -45 else 10.0**power for power in exponents]
    model, _ = with_channels(values)
    built(quantise(model, SMALL, images, target=target).model, target)


# --- models that came quantised ------------------------------------------------------------------


def quantised(images, scale, *, of, explicit=False, zero_channel=False):
    """Return a quantised model, one of whose pairs has another scale, and its tensor and reader.

    Args:
        images: to quantise with.
        scale: of float32.
        of: ``data`` or ``weights``; of those, channel 1 gets it.
        explicit: weights are float32 with a pair of nodes, as training tools export them.
        zero_channel: the weights of channel 1 are 0.
    """
    model, node = with_channels([1.0, 0.0 if zero_channel else 0.5])
    done = quantise(model, SMALL, images).model
    made = {name: n for n in done.graph.node for name in n.output}
    reader = next(n for n in done.graph.node if n.name == node.name)
    widening = made[reader.input[0 if of == 'data' else 1]]
    nodes = [widening] + ([made[widening.input[0]]] if of == 'data' else [])
    tensor = made[widening.input[0]].input[0] if of == 'data' else widening.input[0]
    stored = {t.name: numpy_helper.to_array(t) for t in done.graph.initializer}
    value = np.array(stored[widening.input[1]])
    if of == 'data':
        value = np.float32(scale)
    else:
        value[1] = scale
    done.graph.initializer.append(numpy_helper.from_array(np.asarray(value), 'given'))
    if explicit and of == 'weights':
        original = {t.name: t for t in model.graph.initializer}[node.input[1]]
        done.graph.initializer.append(
            numpy_helper.from_array(numpy_helper.to_array(original), 'w')
        )
        pair = helper.make_node(Q, ['w', 'given', widening.input[2]], ['wq'], 'wq', axis=0)
        widening.input[0], tensor = 'wq', 'w'
        done.graph.node.insert(0, pair)
    for one in nodes:
        one.input[1] = 'given'
    return done, tensor, reader.name


@pytest.mark.parametrize('scale', [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize(
    ('of', 'explicit'), [('data', False), ('weights', False), ('weights', True)]
)
def test_a_scale_that_is_no_positive_number_is_refused(images, scale, of, explicit):
    model, tensor, reader = quantised(images, scale, of=of, explicit=explicit)
    with pytest.raises(EngineError) as error:
        convert_precision(model, 'int8', strongly_typed=True)
    said = str(error.value)
    assert f'{"weights" if of == "weights" else "tensor"} {tensor!r}' in said
    assert f'read by {reader!r}' in said
    assert f'the scale {scale:g}' in said
    if of == 'weights':
        assert 'in 1 of 32 channels (1)' in said
    assert 'leave the nodes that read it in float' in said
    assert '--calibration-images' in said


@pytest.mark.engine_build
@pytest.mark.parametrize('explicit', [False, True])
@pytest.mark.parametrize('scale', [0.0, np.nan, np.inf])
def test_a_channel_of_zeros_needs_no_scale(images, scale, explicit):
    model, *_ = quantised(images, scale, of='weights', explicit=explicit, zero_channel=True)
    with pytest.raises(EngineError):
        check_quantised(model)
    strong = built(model, 'int8')
    feed = {'images': np.random.default_rng(0).random((1, 3, 64, 64), np.float32)}
    assert np.isfinite(session(strong).run(None, feed)[0]).all()


@pytest.mark.engine_build
@pytest.mark.parametrize(
    ('of', 'explicit'), [('data', False), ('weights', False), ('weights', True)]
)
@pytest.mark.parametrize('scale', [1e-42, 1e-12, 3e-8, 1e-7, 5e-6])
def test_a_scale_that_fp16_does_not_hold_is_raised(images, scale, of, explicit):
    model, *_ = quantised(images, scale, of=of, explicit=explicit)
    before = model.SerializeToString()
    strong = built(model, 'int8')
    assert model.SerializeToString() == before
    least = min(float(value.min()) for value in scales(strong))
    assert least / np.float32(scale) >= 1 or scale >= 2**-17
    assert least == np.ceil(np.float64(np.float32(scale)) * 2**24) / 2**24


def test_scales_that_fit_no_weights_are_left_to_whoever_checks_shapes(images):
    from trt_perception.building.precision.quantise_scales import fit_scales

    model, *_ = quantised(images, 1e-12, of='weights')
    (scale,) = (t for t in model.graph.initializer if t.name == 'given')
    before = model.SerializeToString()
    for value in (np.full(7, 1e-12), np.full((2, 16), 1e-12), np.zeros(0), np.full(1, 1e-12)):
        scale.CopyFrom(numpy_helper.from_array(value.astype(np.float32), 'given'))
        fit_scales(model)
        same = model.SerializeToString()
        fit_scales(model)
        assert model.SerializeToString() == same
        model.ParseFromString(before)
        (scale,) = (t for t in model.graph.initializer if t.name == 'given')


# --- other tools ---------------------------------------------------------------------------------


@pytest.mark.engine_build
def test_modelopts_scales_of_0_leave_their_layers_in_float(images, monkeypatch):
    model, tensor = with_branch(('Mul', 1.0))
    (name,) = readers(model, tensor)

    def quantize(**arguments):
        done = quantise(onnx.load(arguments['onnx_path']), SMALL, images).model
        done.graph.initializer.append(numpy_helper.from_array(np.float32(0), 'nothing'))
        for node in done.graph.node:
            if node.op_type == Q and node.input[0] == tensor:
                node.input[1] = 'nothing'
                widening = next(n for n in done.graph.node if node.output[0] in n.input)
                widening.input[1] = 'nothing'
        onnx.save(done, arguments['output_path'])

    tool = types.SimpleNamespace(quantize=quantize)
    monkeypatch.setattr(quantise_modelopt, '_modelopt', lambda _: tool)
    done, warnings = quantise_with_modelopt(model, SMALL, images, progress=lambda *_: None)
    assert any(name in text and tensor in text for text in warnings)
    layer = next(node for node in done.graph.node if node.name == name)
    stored = {t.name: t.data_type for t in done.graph.initializer}
    assert layer.input[0] == tensor
    assert stored[layer.input[1]] == TensorProto.FLOAT
    assert sum(node.op_type == DQ for node in done.graph.node) > 4
    built(done, 'int8')
    assert 'modelopt' not in sys.modules


# --- all of it -----------------------------------------------------------------------------------


@pytest.mark.engine_build
@pytest.mark.parametrize('precision', TARGETS)
def test_an_engine_of_it_is_built(tmp_path, monkeypatch, precision):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    model, node = with_channels([1e-9, 0.0])
    onnx.save(model, tmp_path / 'net.onnx')
    pictures = write_images(tmp_path / 'images')
    names = [f'class {number}' for number in range(5)]
    given = ('--onnx', tmp_path / 'net.onnx', *KNOWN[:3], *names, '--json', tmp_path / 'r.json')
    given += ('--precision', precision, '--calibration-images', pictures)
    assert run(*given, '--compute-capabilities', '8.9') == 0
    told = report_of(tmp_path / 'r.json')
    assert node.name not in told['optimization']['calibration']['kept']
