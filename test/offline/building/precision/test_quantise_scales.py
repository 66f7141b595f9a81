# SPDX-License-Identifier: Apache-2.0
"""Tests of the scales of tensors whose values are 0, nearly 0, too large or not finite."""

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_quantise import session

from support.models import small_detectors
from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import (
    SMALL_PREPROCESSING,
    TARGETS,
    converted_and_built,
    nodes_that_read,
    scales,
    with_branch,
    with_branches,
)
from trt_perception.errors import EngineError
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.precision.quantise import quantise


@pytest.fixture(scope='module')
def images():
    return select_images(CALIBRATION_IMAGES, 8)


@pytest.fixture
def bright(tmp_path):
    """Return images without pixels below 100 of 255."""
    for number in range(8):
        small = np.random.default_rng(number).integers(100, 256, (6, 8, 3)).astype(np.uint8)
        picture = cv2.resize(small, (96, 80), interpolation=cv2.INTER_NEAREST)
        assert cv2.imwrite(str(tmp_path / f'{number}.png'), picture)
    return select_images(tmp_path)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_layers_of_inactive_data_stay_in_float(bright, target):
    """A later image may activate these layers, and then a guessed scale would be wrong."""
    model, tensor = with_branch(('Neg', None), ('Add', 0.35), ('Relu', None))
    done = quantise(model, CalibrationImages(bright, SMALL_PREPROCESSING), target=target)
    (name,) = nodes_that_read(model, tensor)
    assert tensor in done.report.kept[name]
    assert 'always 0 on these images' in done.report.kept[name]
    assert any(name in text and tensor in text for text in done.report.warnings)
    assert done.report.quantised == done.report.layers - len(done.report.kept)
    converted_and_built(done.model, target)
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
def test_data_too_small_for_a_scale_stay_in_float(images, target):
    factors = (0.0, 1e-45, 1e-40, 1e-30, 1e-12, 5e-6)
    model, tensors = with_branches([[('Mul', factor)] for factor in factors])
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target)
    for tensor in tensors:
        (name,) = nodes_that_read(model, tensor)
        assert tensor in done.report.kept[name]
    converted_and_built(done.model, target)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_data_that_are_just_large_enough_are_quantised(images, target):
    factors = (1e-5, 1e-4, 1e-2)
    model, tensors = with_branches([[('Mul', factor)] for factor in factors])
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target)
    strong = converted_and_built(done.model, target)
    stored = {t.name: numpy_helper.to_array(t) for t in strong.graph.initializer}
    made = {name: node for node in strong.graph.node for name in node.output}
    most = {'int8': 127.5, 'fp8': 448}[target]
    for tensor, factor in zip(tensors, factors, strict=True):
        (name,) = nodes_that_read(model, tensor)
        assert name not in done.report.kept
        # The scale in FP16 covers the whole range of the data, so no value is clipped.
        reader = next(node for node in strong.graph.node if node.name == name)
        scale = float(stored[made[reader.input[0]].input[1]])
        assert scale * most >= factor * 0.99


@pytest.mark.engine_build
@pytest.mark.parametrize('factor', [1e5, 1e30])
def test_data_beyond_fp16_give_a_warning(images, factor):
    model, tensor = with_branch(('Mul', factor))
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))
    (told,) = [text for text in done.report.warnings if '65504' in text]
    assert tensor in told
    assert '--keep-fp32' in told
    converted_and_built(done.model, 'int8')


def test_data_too_large_for_a_scale_stay_in_float(images):
    net = small_detectors.Net()
    x = net.node('Mul', ['images', net.constant(3.4e38)])
    small = net.conv(net.node('Mul', ['images', net.constant(2.0)]), 3, 8)
    large = net.node('Clip', [net.conv(x, 3, 8, silu=False)])
    weights = net.weights[-2]
    tiny = numpy_helper.to_array(weights) * np.float32(1e-4)
    weights.CopyFrom(numpy_helper.from_array(tiny, weights.name))
    model = net.model([net.conv(net.node('Add', [large, small]), 8, 8, silu=False)])
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))
    (name,) = nodes_that_read(model, x)
    assert 'too large for a scale' in done.report.kept[name]
    for scale in scales(done.model):
        assert np.isfinite(scale).all()


def test_model_of_zeros_is_refused_with_a_remedy(images, golden_messages):
    net = small_detectors.Net()
    x = net.node('Mul', ['images', net.constant(0.0)])
    model = net.model([net.conv(net.conv(x, 3, 8, silu=False), 8, 8, silu=False)])
    with golden_messages.raises(EngineError) as error:
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))
    assert x in str(error.value)


def test_cache_keeps_ranges_of_0(images, tmp_path):
    model, tensor = with_branch(('Mul', 0.0))
    first, second = (
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), cache_dir=tmp_path)
        for _ in range(2)
    )
    assert second.report.cache.startswith('reused')
    assert second.report.kept == first.report.kept
    assert second.model == first.model
    assert nodes_that_read(model, tensor)[0] in first.report.kept
