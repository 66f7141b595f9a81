# SPDX-License-Identifier: Apache-2.0
"""MoGe-2: the input, and metres from points without shift and scale.

test/data/exports/record_moge.py wrote moge.npz with the family's own code.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.oracles.map_outputs import check_bilinear_map
from support.oracles.reference_images import recorded_noise
from trt_perception.errors import TrtPerceptionError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor

with np.load(Path(__file__).parents[2] / 'data' / 'exports' / 'moge.npz') as content:
    RECORDED = dict(content)
SIZES = ['517x333', '1920x1080', '333x517']
# As in record_moge.py
PIXEL_STEP, STEP, NETWORK, FOV_X = 13, 3, (70, 42), 60.0
GRID = NETWORK[::-1]
SHAPES = {
    'points': (1, *GRID, 3),
    'normal': (1, *GRID, 3),
    'mask': (1, *GRID),
    'metric_scale': (1,),
}


def spec_of(*without):
    model = ModelInfo(
        'x.onnx',
        (TensorSpec('image', (1, 3, *GRID), 'float32'),),
        tuple(
            TensorSpec(name, shape, 'float32')
            for name, shape in SHAPES.items()
            if name not in without
        ),
    )
    return resolve_model_spec(model, None, ModelOverrides())


def decoded(size, **values):
    """Return the depth at the network's resolution. Arguments are those of `result_of`."""
    return result_of(size, **values).depth(NETWORK)


def result_of(size, *, focal_length=None, **outputs):
    """Return the result for the recorded outputs, or for others.

    Args:
        size: width and height of the image, such as ``517x333``.
        focal_length: in network pixels.
        outputs: arrays that replace recorded outputs.
    """
    spec = spec_of('normal')
    letterbox = Letterbox.fit(tuple(map(int, size.split('x'))), NETWORK, 'stretch')
    arrays = [
        np.asarray(outputs.get(name, RECORDED.get(f'{size} {name}')), np.float32)
        for name in ('points', 'mask', 'metric_scale')
    ]
    shares = focal_length and tuple(focal_length / side for side in NETWORK)
    thresholds = [Thresholds(normalised_focal_lengths=shares)]
    (found,) = decode(arrays, spec, [letterbox], thresholds, DecodingLimits())
    assert found.is_metric
    return found


def share_of_range_off(depth, recorded):
    """Return the largest difference of valid pixels, as a share of the range of depth."""
    depth, known = depth.reshape(-1)[::STEP], np.isfinite(recorded)
    np.testing.assert_array_equal(np.isfinite(depth), known)
    return np.abs(depth - recorded)[known].max() / np.ptp(recorded[known])


@pytest.mark.parametrize('without', [(), ('normal',)])
def test_export_is_recognised_by_its_outputs(without):
    spec = spec_of(*without)
    assert (spec.task, spec.decoder) == (Depth(), PRESETS['moge'].decoder)


def test_other_outputs_are_not_taken_for_moge():
    with pytest.raises(TrtPerceptionError):
        spec_of('metric_scale')


def test_input_is_that_of_the_encoder():
    preprocessing = spec_of().preprocessing

    def levels_off(size, **values):
        tensor, _ = HostPreprocessor(replace(preprocessing, **values))(
            recorded_noise(size, RECORDED)
        )
        return 255 * np.abs(tensor.reshape(-1)[::PIXEL_STEP] - RECORDED[f'{size} pixels']).max()

    for size in SIZES:
        assert levels_off(size) <= 1.001, size
    for values in ({'filter': 'bicubic'}, {'antialias': False}, {'resize': 'letterbox'}):
        assert levels_off('333x517', **values) > 5, values


@pytest.mark.parametrize('size', SIZES)
def test_depth_is_that_of_infer(size):
    recorded = RECORDED[f'{size} depth']
    known = recorded[np.isfinite(recorded)]
    assert 0.1 < np.isinf(recorded).mean() < 0.4
    assert known.max() >= 2 * known.min() > 0
    assert share_of_range_off(decoded(size), recorded) < 1e-4


@pytest.mark.parametrize('size', SIZES)
def test_depth_for_a_known_focal_length_is_that_of_infer(size):
    focal_length = NETWORK[0] / 2 / math.tan(math.radians(FOV_X / 2))
    recorded = RECORDED[f'{size} known depth']
    assert share_of_range_off(decoded(size, focal_length=focal_length), recorded) < 1e-4
    assert share_of_range_off(decoded(size, focal_length=1.1 * focal_length), recorded) > 1e-2


@pytest.mark.parametrize('size', SIZES)
def test_depth_is_resized_bilinearly_to_the_image(size):
    check_bilinear_map(result_of(size), decoded(size).astype(float))


def camera_points(shift, focal_length=50.0):
    """Return true depths and the points of a camera, without the shift: each (1, rows, ...)."""
    v, u = np.mgrid[: GRID[0], : GRID[1]] + 0.5
    true = 2 + np.sin(u / 9) * np.cos(v / 7)
    x, y = (u - GRID[1] / 2) * true / focal_length, (v - GRID[0] / 2) * true / focal_length
    return true, np.stack([x, y, true - shift], axis=-1)[None]


@pytest.mark.parametrize('shift', [-3, -0.4, 0, 0.5, 0.9])
def test_shift_and_scale_of_a_camera_are_recovered(shift):
    true, points = camera_points(shift)
    depth = decoded('517x333', points=points, mask=np.ones((1, *GRID)), metric_scale=[3])
    np.testing.assert_allclose(depth, 3 * true, rtol=2e-3)


@pytest.mark.parametrize('wrong', [1e3, math.nan, math.inf])
def test_masked_points_are_unknown_and_do_not_take_part(wrong):
    true, points = camera_points(0.5)
    mask = np.ones((1, *GRID))
    mask[:, 10:20, 30:60] = 0.5
    points[mask == 0.5] = wrong
    depth = decoded('517x333', points=points, mask=mask, metric_scale=[1])
    known = mask[0] > 0.5
    np.testing.assert_array_equal(np.isfinite(depth), known)
    np.testing.assert_allclose(depth[known], true[known], rtol=2e-3)
    if wrong == 1e3:
        mask[:] = 1
        depth = decoded('517x333', points=points, mask=mask, metric_scale=[1])
        assert np.abs(depth - true)[known].max() > 0.05


def test_too_few_valid_points_have_no_shift():
    _, points = camera_points(0.5)
    mask = np.zeros((1, *GRID))
    mask[0, 0, 11] = 1  # a column that is not among the 64 columns of the fit
    depth = decoded('517x333', points=points, mask=mask, metric_scale=[2])
    assert np.isfinite(depth).sum() == 1
    assert depth[0, 11] == pytest.approx(2 * points[0, 0, 11, 2])


def test_points_behind_the_camera_are_unknown():
    true, points = camera_points(0.5)
    points[0, 5, 11] = 0, 0, -9
    depth = decoded('517x333', points=points, mask=np.ones((1, *GRID)), metric_scale=[1])
    assert np.isnan(depth[5, 11])
    assert np.isnan(depth).sum() == 1
    np.testing.assert_allclose(depth[6:], true[6:], rtol=2e-3)
