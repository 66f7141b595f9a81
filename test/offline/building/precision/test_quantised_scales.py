# SPDX-License-Identifier: Apache-2.0
"""Tests of scales in models that were quantised in training or by another tool."""

import functools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from test_quantise import session

from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import (
    SMALL_PREPROCESSING,
    Q,
    converted_and_built,
    converted_model,
    scales,
    with_channels,
)
from trt_perception.errors import EngineError
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.offline.building.precision.quantise import quantise
from trt_perception.offline.building.precision.quantise_check import check_quantised


@functools.cache
def quantised_once(second_channel):
    """Return a model, its node under test, and the serialised quantised model."""
    model, node = with_channels([1.0, second_channel])
    images = select_images(CALIBRATION_IMAGES, 8)
    return (
        model,
        node,
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING)).model.SerializeToString(),
    )


def quantised(scale, *, of, explicit=False, zero_channel=False):
    """Return a quantised model with a changed scale, the scaled tensor, and its reader.

    Args:
        scale: the new scale, a float32.
        of: ``data`` or ``weights``. In weights, channel 1 gets the scale.
        explicit: whether weights are float32 with a Q/DQ pair, as training tools export them.
        zero_channel: whether the weights of channel 1 are 0.
    """
    model, node, content = quantised_once(0.0 if zero_channel else 0.5)
    done = onnx.load_model_from_string(content)
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
def test_scale_that_is_not_positive_is_refused(scale, of, explicit, golden_messages):
    model, tensor, reader = quantised(scale, of=of, explicit=explicit)
    with golden_messages.raises(EngineError) as error:
        convert_precision(model, 'int8', strongly_typed=True)
    assert repr(tensor) in str(error.value)
    assert repr(reader) in str(error.value)


@pytest.mark.engine_build
@pytest.mark.parametrize('explicit', [False, True])
@pytest.mark.parametrize('scale', [0.0, np.nan, np.inf])
def test_channel_of_zeros_accepts_any_scale(scale, explicit):
    model, *_ = quantised(scale, of='weights', explicit=explicit, zero_channel=True)
    with pytest.raises(EngineError):
        check_quantised(model)
    strong = converted_and_built(model, 'int8')
    feed = {'images': np.random.default_rng(0).random((1, 3, 64, 64), np.float32)}
    assert np.isfinite(session(strong).run(None, feed)[0]).all()


@pytest.mark.engine_build
@pytest.mark.parametrize(
    ('of', 'explicit'), [('data', False), ('weights', False), ('weights', True)]
)
@pytest.mark.parametrize('scale', [1e-42, 1e-12, 3e-8, 1e-7, 5e-6])
def test_scale_too_small_for_fp16_is_raised(scale, of, explicit):
    model, *_ = quantised(scale, of=of, explicit=explicit)
    before = model.SerializeToString()
    # Only two scales are built, because TensorRT treats all scales alike.
    strong = (converted_and_built if scale in (1e-42, 1e-7) else converted_model)(model, 'int8')
    assert model.SerializeToString() == before
    least = min(float(value.min()) for value in scales(strong))
    assert least / np.float32(scale) >= 1 or scale >= 2**-17
    assert least == np.ceil(np.float64(np.float32(scale)) * 2**24) / 2**24


def test_scales_of_a_wrong_shape_are_not_changed():
    from trt_perception.offline.building.precision.quantise_scales import adjust_scales

    model, *_ = quantised(1e-12, of='weights')
    (scale,) = (t for t in model.graph.initializer if t.name == 'given')
    before = model.SerializeToString()
    for value in (np.full(7, 1e-12), np.full((2, 16), 1e-12), np.zeros(0), np.full(1, 1e-12)):
        scale.CopyFrom(numpy_helper.from_array(value.astype(np.float32), 'given'))
        adjust_scales(model)
        same = model.SerializeToString()
        adjust_scales(model)
        assert model.SerializeToString() == same
        model.ParseFromString(before)
        (scale,) = (t for t in model.graph.initializer if t.name == 'given')
