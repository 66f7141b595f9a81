# SPDX-License-Identifier: Apache-2.0
"""Tests of the scales of weights that are 0, nearly 0, or not finite."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    read_report,
    run_build_engine,
    write_images,
)
from support.models.digits import CALIBRATION_IMAGES
from support.models.scaled_models import (
    SMALL_PREPROCESSING,
    TARGETS,
    converted_and_built,
    with_channels,
)
from support.properties import given, settings, st
from trt_perception.errors import EngineError
from trt_perception.offline.building.calibration.images import CalibrationImages, select_images
from trt_perception.offline.building.precision.quantise import quantise


@pytest.fixture(scope='module')
def images():
    return select_images(CALIBRATION_IMAGES, 8)


SMALL_WEIGHTS = (0.0, 1e-45, 1e-39, 1e-30, 1e-12, 1e-7, 1e-6, 3e-5, 5e-4)


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_channels_of_zeros_or_tiny_weights_are_quantised(images, target):
    model, node = with_channels(SMALL_WEIGHTS)
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target)
    assert node.name not in done.report.kept
    strong = converted_and_built(done.model, target)
    (exact,) = (t for t in model.graph.initializer if t.name == node.input[1])
    made = {name: n for n in strong.graph.node for name in n.output}
    widening = made[next(n for n in strong.graph.node if n.name == node.name).input[1]]
    stored = {t.name: numpy_helper.to_array(t) for t in strong.graph.initializer}
    scale = stored[widening.input[1]].astype(np.float64).reshape(-1, 1, 1, 1)
    found = stored[widening.input[0]].astype(np.float64) * scale
    error = np.abs(found - numpy_helper.to_array(exact)).max(axis=(1, 2, 3))
    # All weights of a channel have the same magnitude. From 1e-6 on, the first rounding is exact,
    # to 127 in INT8 or 448 in FP8. Then the scale is raised to a multiple of FP16's step, 2**-24,
    # and rounding for this scale changes a weight by at most half a level. This is at most 1/16
    # of the weight in FP8 (3 mantissa bits), and 1/127 in INT8 if the scale is at least 2 steps.
    # With a scale of one step, half a level of INT8 is 2**-25. FP8's levels near 0 are closer.
    relative_limit = {'int8': 1 / 127, 'fp8': 1 / 16}[target]
    for channel, value in enumerate(SMALL_WEIGHTS):
        assert error[channel] <= max(value * relative_limit, 2**-25) * 1.02, value


@pytest.mark.engine_build
@pytest.mark.parametrize('target', TARGETS)
def test_weights_of_zeros_are_quantised(images, target):
    model, node = with_channels([0.0] * 32)
    done = quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target)
    assert node.name not in done.report.kept
    converted_and_built(done.model, target)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_weights_with_nan_or_infinity_are_named(images, value, golden_messages):
    """The error must also name weights of layers after the last calibrated tensor."""
    for layer in (0, 3, 4):
        model, _ = with_channels([1.0, value], layer=layer)
        with golden_messages.raises(EngineError):
            quantise(model, CalibrationImages(images, SMALL_PREPROCESSING))


@pytest.mark.engine_build
@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(-46, 3), min_size=1, max_size=32), st.sampled_from(TARGETS))
def test_weights_of_any_magnitude_build(images, exponents, target):
    values = [0.0 if power < -45 else 10.0**power for power in exponents]
    model, _ = with_channels(values)
    converted_and_built(
        quantise(model, CalibrationImages(images, SMALL_PREPROCESSING), target=target).model,
        target,
    )


@pytest.mark.engine_build
@pytest.mark.parametrize('precision', TARGETS)
def test_model_with_tiny_weights_builds(tmp_path, monkeypatch, precision):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    model, node = with_channels([1e-9, 0.0])
    onnx.save(model, tmp_path / 'net.onnx')
    pictures = write_images(tmp_path / 'images')
    names = [f'class {number}' for number in range(5)]
    given = (
        '--onnx',
        tmp_path / 'net.onnx',
        *DECODER_AND_CLASSES_ARGUMENTS[:3],
        *names,
        '--json',
        tmp_path / 'r.json',
    )
    given += ('--precision', precision, '--calibration-images', pictures)
    assert run_build_engine(*given, '--compute-capabilities', '8.9') == 0
    told = read_report(tmp_path / 'r.json')
    assert node.name not in told['optimization']['calibration']['kept']
