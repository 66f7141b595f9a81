# SPDX-License-Identifier: Apache-2.0
"""Inputs and depth maps are the same as those of the families' own code.

test/data/exports/record_depth.py wrote depth.npz with Ultralytics' predictor and transformers'
image processors.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trt_perception as tp
from support.oracles.reference_images import recorded_noise
from trt_perception.errors import OutputError
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.decoder import ImageContext
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.recognise import ModelOverrides, recognise
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.stages.host_preprocess import HostPreprocessor

DEPTH_TINY = Path(__file__).parents[3] / 'models' / 'depth_tiny.onnx'
EXPORTS = Path(__file__).parents[2] / 'data' / 'exports'
with np.load(EXPORTS / 'depth.npz') as content:
    RECORDED = dict(content)
FILES = json.loads(str(RECORDED['files']))
SIZES = ['517x333', '1920x1080', '333x517']
PIXEL_STEP, DEPTH_STEP = 97, 1499  # as in record_depth.py
#: The preset of each family, and width and height of its input.
FAMILIES = {
    'depth_ultralytics': ('depth_ultralytics', (96, 64)),
    'depth_anything': ('relative_depth', (70, 42)),
    'depth_anything_metric': ('metric_depth', (70, 42)),
    'dpt': ('relative_depth', (64, 64)),
    'depth_pro': ('depth_pro', (64, 64)),
}


def recognised_family(family):
    """Recognise the exported model of a family by its files. Its sizes are open."""
    files = FILES[family]
    config = json.loads(files.get('config.json', '{}'))
    if config:
        config['preprocessor_config'] = json.loads(files['preprocessor_config.json'])
    batch = -1 if config else 1
    outputs = {
        'depth_ultralytics': {'output0': (1, 1, 64, 96)},
        'depth_pro': {'predicted_depth': (-1, -1, -1), 'field_of_view': (-1,)},
    }.get(family, {'predicted_depth': (-1, -1, -1)})
    model = ModelInfo(
        'x.onnx',
        (TensorSpec('images', (batch, 3, -1, -1), 'float32'),),
        tuple(TensorSpec(name, shape, 'float32') for name, shape in outputs.items()),
        files.get('metadata', {}),
        config,
    )
    return recognise(model, ModelOverrides())


@pytest.mark.parametrize('family', FAMILIES)
def test_exported_model_is_recognised(family):
    preset, network_wh = FAMILIES[family]
    found = recognised_family(family)
    assert (found.task, found.decoder) == (Depth(), PRESETS[preset].decoder)
    assert (found.class_names, found.assumption) == ((), '')
    assert found.preprocessing.input_size == network_wh
    # The usual preprocessing differs at most in mean and standard deviation.
    values = {'mean': found.preprocessing.mean, 'std': found.preprocessing.std}
    usual = Preprocessing(network_wh, **{**PRESETS[preset].preprocessing, **values})
    assert replace(found.preprocessing, pad_value=usual.pad_value) == usual


@pytest.mark.parametrize('family', FAMILIES)
def test_input_is_that_of_the_processor(family):
    preprocessing = recognised_family(family).preprocessing
    is_bicubic = preprocessing.filter == 'bicubic'

    def levels_off(size, values):
        gain, _ = preprocessing.gain_and_bias()
        tensor, _ = HostPreprocessor(replace(preprocessing, **values))(
            recorded_noise(size, RECORDED)
        )
        channel = np.arange(tensor.size)[::PIXEL_STEP] // (tensor.size // 3)
        expected = RECORDED[f'{family} {size} pixels']
        return (np.abs(tensor.reshape(-1)[::PIXEL_STEP] - expected) / gain[channel]).max()

    for size in SIZES:
        assert levels_off(size, {}) <= (3 if is_bicubic else 1) + 1e-3, size
    for values in (
        {'filter': 'bilinear' if is_bicubic else 'bicubic'},
        {'antialias': not preprocessing.antialias},
        {'resize': 'letterbox'},
    ):
        assert levels_off('1920x1080', values) > 5, values


def decoded(family, size, **changes):
    """Return the result for the recorded output, with other attributes of its map if given."""
    preset, network_wh = FAMILIES[family]
    source_wh = tuple(map(int, size.split('x')))
    letterbox = Letterbox.fit(source_wh, network_wh, 'stretch')
    arrays = [
        RECORDED[f'{family} {size} output {index}'][0].astype(np.float32)
        for index in range(len(PRESETS[preset].decoder.outputs(None, Depth())))
    ]
    image = ImageContext(0, network_wh, letterbox, 0, Depth(), None)
    return replace(PRESETS[preset].decoder.decode(arrays, image, None), **changes)


def share_of_range_off(found, family, size):
    """Return the largest difference to the recorded depth, as a share of the depth's range."""
    low, high = RECORDED[f'{family} {size} range']
    difference = found.depth().reshape(-1)[::DEPTH_STEP] - RECORDED[f'{family} {size} depth']
    return np.abs(difference).max() / (high - low)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('family', FAMILIES)
def test_depth_is_that_of_the_familys_own_code(family, size):
    found = decoded(family, size)
    assert found.is_metric == (FAMILIES[family][0] != 'relative_depth')
    assert share_of_range_off(found, family, size) < 1e-4
    for upsampling in {'nearest', 'bilinear', 'bicubic', 'bilinear_aligned'} - {found.upsampling}:
        wrong = decoded(family, size, upsampling=upsampling)
        assert share_of_range_off(wrong, family, size) > 1e-3, upsampling
    cropped = Letterbox.fit(found.letterbox.source_wh, found.letterbox.network_wh, 'letterbox')
    assert share_of_range_off(replace(found, letterbox=cropped), family, size) > 1e-3


def test_inverse_depth_is_resized_before_it_is_inverted():
    found = decoded('depth_pro', '517x333')
    early = DepthMap(1 / found.grid, found.letterbox, found.upsampling, is_metric=True)
    assert share_of_range_off(early, 'depth_pro', '517x333') > 1e-3


def test_inverse_depth_is_limited():
    grid = np.array([[0, 1e-6, 2, 1e9]], np.float32)
    found = DepthMap(grid, Letterbox.fit((4, 1), (4, 1), 'stretch'), 'bilinear', True, True)
    np.testing.assert_allclose(found.depth(), [[1e4, 1e4, 0.5, 1e-4]])


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('family', FAMILIES)
def test_depth_near_values_that_are_not_finite_is_unknown(family, value):
    right, found = decoded(family, '517x333'), decoded(family, '517x333')
    rows, columns = found.grid.shape
    found.grid[rows // 2, columns // 2] = value
    depth = found.depth()
    unknown = np.isnan(depth)
    assert unknown[333 // 2, 517 // 2]
    assert 0 < unknown.mean() < 0.02
    np.testing.assert_array_equal(depth[~unknown], right.depth()[~unknown])


@pytest.mark.parametrize('size', SIZES)
def test_shipped_model_gives_the_depth_of_transformers(size):
    # training/make_depth.py wrote the model and the recording.
    with np.load(EXPORTS / 'depth_tiny.npz') as content:
        recorded = dict(content)
    low, high = recorded[f'{size} range']
    frame = recorded_noise(size, recorded)
    bgr = np.ascontiguousarray(frame.data.reshape(frame.height, frame.width, 3)[..., ::-1])

    def share_off(**parameters):
        with tp.load(DEPTH_TINY, **parameters) as model:
            depth = model(bgr).depth().reshape(-1)[::DEPTH_STEP]
        return np.abs(depth - recorded[f'{size} depth']).max() / (high - low)

    assert high >= 2 * low > 0
    assert share_off() < 0.005
    for wrong in ({'filter': 'bilinear'}, {'antialias': 0}, {'resize': 'letterbox'}):
        assert share_off(**wrong) > 0.02, wrong


@pytest.mark.parametrize('degrees', [0, -10, 180, np.nan, np.inf])
def test_impossible_field_of_view_is_refused(degrees):
    grid = np.ones((4, 6), np.float32)
    image = ImageContext(0, (6, 4), Letterbox.fit((6, 4), (6, 4), 'stretch'), 0, Depth(), None)
    with pytest.raises(OutputError):
        PRESETS['depth_pro'].decoder.decode([grid, np.float32(degrees)], image, None)


@pytest.mark.parametrize('preset', ['depth_ultralytics', 'relative_depth', 'depth_pro'])
def test_empty_map_is_refused(preset):
    shape = (1, 0, 6) if preset == 'depth_ultralytics' else (0, 6)
    image = ImageContext(0, (6, 4), Letterbox.fit((6, 4), (6, 4), 'stretch'), 0, Depth(), None)
    arrays = [np.ones(shape, np.float32), np.float32(50)]
    with pytest.raises(OutputError):
        PRESETS[preset].decoder.decode(arrays, image, None)
