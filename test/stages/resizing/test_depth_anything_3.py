# SPDX-License-Identifier: Apache-2.0
"""Depth Anything 3: metres from the focal length, and the sky.

test/data/exports/record_depth_anything_3.py wrote depth_anything_3.npz with the family's own code.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.oracles.map_outputs import check_bilinear_map
from support.oracles.reference_images import recorded_noise
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoder import Sky
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import HostPreprocessor

with np.load(Path(__file__).parents[2] / 'data' / 'exports' / 'depth_anything_3.npz') as content:
    RECORDED = dict(content)
SIZES = ['517x333', '1920x1080', '333x517']
# As in record_depth_anything_3.py
PIXEL_STEP, STEP, NETWORK, FOCAL_LENGTHS = 13, 7, (98, 56), (900.0, 840.0)
SHAPE = (1, 1, *NETWORK[::-1])


def spec_of(batch=1):
    model = ModelInfo(
        'x.onnx',
        (TensorSpec('image', (batch, 3, *NETWORK[::-1]), 'float32'),),
        tuple(TensorSpec(name, (batch, *SHAPE[1:]), 'float32') for name in ('depth', 'sky')),
    )
    return resolve_model_spec(model, None, ModelOverrides())


def decoded(size, thresholds, **outputs):
    """Return the result for the recorded outputs, or for others."""
    letterbox = Letterbox.fit(tuple(map(int, size.split('x'))), NETWORK, 'stretch')
    arrays = [
        outputs.get(name, RECORDED[f'{size} {name}']).astype(np.float32)
        for name in ('depth', 'sky')
    ]
    (found,) = decode(arrays, spec_of(), [letterbox], [thresholds], DecodingLimits())
    return found


def test_export_is_recognised_by_its_outputs():
    spec = spec_of()
    assert (spec.task, spec.decoder) == (Depth(), PRESETS['depth_anything_3'].decoder)


@pytest.mark.parametrize('size', SIZES)
def test_input_is_that_of_the_exporter(size):
    def levels_off(**values):
        preprocessing = replace(spec_of().preprocessing, **values)
        tensor, _ = HostPreprocessor(preprocessing)(recorded_noise(size, RECORDED))
        off = np.abs(tensor.reshape(-1)[::PIXEL_STEP] - RECORDED[f'{size} pixels'])
        return 255 * 0.224 * off.max()

    assert levels_off() <= 1.01
    for values in ({'filter': 'bicubic'}, {'antialias': False}, {'resize': 'letterbox'}):
        assert levels_off(**values) > 5, values


@pytest.mark.parametrize('size', SIZES)
def test_metres_are_those_of_the_familys_own_code(size):
    width, height = map(int, size.split('x'))
    shares = FOCAL_LENGTHS[0] / width, FOCAL_LENGTHS[1] / height
    sky = Sky(threshold=1000)
    found = decoded(size, Thresholds(normalised_focal_lengths=shares, sky=sky))
    assert found.is_metric
    metres = found.depth(NETWORK).reshape(-1)[::STEP]
    np.testing.assert_allclose(metres, RECORDED[f'{size} metres'], rtol=1e-6)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('shares', [None, (1.5, 2.5)])
def test_depth_and_sky_are_resized_bilinearly_to_the_image(size, shares):
    found = decoded(size, Thresholds(normalised_focal_lengths=shares))
    depth, sky = (RECORDED[f'{size} {name}'][0, 0].astype(float) for name in ('depth', 'sky'))
    assert depth.max() >= 2 * depth.min() > 0
    grid = depth * ((1.5 * 98 + 2.5 * 56) / 2 / 300 if shares else 1)
    grid[sky >= np.float32(0.3)] = 200 if shares else 1e4
    check_bilinear_map(found, grid)


def test_focal_length_in_pixels_replaces_the_calibration():
    mean = (870 / 517 * 98 + 870 / 333 * 56) / 2
    found = decoded('517x333', Thresholds(focal_length_px=870, normalised_focal_lengths=(9, 9)))
    depth, sky = RECORDED['517x333 depth'][0, 0], RECORDED['517x333 sky'][0, 0]
    right = np.where(sky >= np.float32(0.3), 200, depth.astype(np.float32) * mean / 300)
    np.testing.assert_allclose(found.depth(NETWORK), right, rtol=1e-5)


def test_depth_without_focal_length_is_relative_and_larger_when_nearer():
    found = decoded('517x333', Thresholds())
    assert not found.is_metric
    depth, sky = RECORDED['517x333 depth'][0, 0], RECORDED['517x333 sky'][0, 0]
    right = np.where(sky >= np.float32(0.3), 1e-4, 1 / depth.astype(np.float32))
    np.testing.assert_allclose(found.depth(NETWORK), right, rtol=1e-5)


@pytest.mark.parametrize('shares', [None, (1.5, 2.5)])
def test_sky_is_far_or_unknown(shares):
    sky = np.zeros(SHAPE)
    sky[..., :20, :] = 0.5
    usual = Thresholds(normalised_focal_lengths=shares)
    for threshold, depth_m, rows in ((0.5, math.nan, 20), (0.51, math.nan, 0), (0.5, 77.0, 20)):
        thresholds = replace(usual, sky=Sky(threshold, depth_m))
        depth = decoded('517x333', thresholds, sky=sky).depth(NETWORK)
        far = depth[:rows]
        expected = depth_m if shares or math.isnan(depth_m) else 1e-4
        np.testing.assert_array_equal(far, np.full_like(far, expected))
        assert np.isfinite(depth[rows:]).all()


def test_each_image_of_a_batch_has_its_own_focal_length():
    letterbox = Letterbox.fit((517, 333), NETWORK, 'stretch')
    arrays = [np.ones((2, *SHAPE[1:]), np.float32), np.zeros((2, *SHAPE[1:]), np.float32)]
    both = [Thresholds(normalised_focal_lengths=(one, one)) for one in (1, 2)]
    found = decode(arrays, spec_of(2), [letterbox] * 2, both, DecodingLimits())
    assert [one.depth()[0, 0] for one in found] == pytest.approx([77 / 300, 154 / 300])
