# SPDX-License-Identifier: Apache-2.0
"""Exports of classifiers and segmenters give the results of their families' own code.

test/data/exports/record_image_tasks.py wrote image_tasks.npz: tiny networks with random weights,
and the results of transformers, torchvision and Ultralytics for three images.
"""

import functools
import json
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from support.models.open_model import open_by_parameters
from support.oracles.reference_images import frame_of
from trt_perception.errors import OutputError
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.map_resize import image_part, resize_map
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.decode import decode

with np.load(Path(__file__).parents[2] / 'data' / 'exports' / 'image_tasks.npz') as content:
    RECORDED = dict(content)
SIZES = [(517, 333), (1920, 1080), (333, 517)]
SMALL = SIZES[::2]
STEP = 211  # as in record_image_tasks.py
NAMES = tuple(f'class {number}' for number in range(9))
NETWORK = (128, 96)  # width and height of the segmenters' inputs

TORCHVISION = {
    'model_color_order': 'rgb',
    'model_scale': 1 / 255,
    'model_mean': (0.485, 0.456, 0.406),
    'model_std': (0.229, 0.224, 0.225),
    'model_antialias': True,
    'model_class_names': NAMES,
}
CROPPED = {
    **TORCHVISION,
    'model_decoder': 'class_logits',
    'model_resize': 'center_crop',
    'model_shorter_side': 73,
    'model_pad_value': 0,
}
STRETCHED = {**TORCHVISION, 'model_resize': 'stretch'}
#: The parameters that each classifier needs, and values that are wrong for it.
CLASSIFIERS = {
    'vit': ({}, {'model_filter': 'bicubic'}, {'model_resize': 'letterbox'}),
    'convnext': ({}, {'model_filter': 'bilinear'}, {'model_shorter_side': 75}),
    'resnet': ({}, {'model_filter': 'bilinear'}, {'model_shorter_side': 75}),
    'mobilenet_v3': (CROPPED, {'model_filter': 'bicubic'}, {'model_shorter_side': 75}),
    'efficientnet': (CROPPED, {'model_filter': 'bicubic'}, {'model_shorter_side': 75}),
    'ultralytics_classify': (
        {'model_input_size': (64, 64)},
        {'model_filter': 'bicubic'},
        {'model_shorter_side': 66},
        {'model_resize': 'stretch'},
    ),
    'ultralytics_classify in 128x96': (
        {'model_input_size': (128, 96)},
        {'model_filter': 'bicubic'},
        {'model_resize': 'letterbox'},
    ),
}
#: The parameters that each segmenter needs.
SEGMENTERS = {
    'segformer': {},
    'upernet': {},
    'deeplabv3': STRETCHED,
    'lraspp': STRETCHED,
    'ultralytics_semantic': {},
}


@functools.cache
def picture(size):
    """Return the frame that record_image_tasks.py gave to the families' own code."""
    width, height = size
    rng = np.random.default_rng(11)
    blocks = rng.integers(20, 236, (8, 12, 3))
    fine = rng.integers(-40, 41, (height, width, 3))
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 12 // width
    rgb = (blocks[rows][:, columns] + fine).clip(0, 255).astype(np.uint8)
    assert zlib.crc32(rgb) == RECORDED[f'crc {width}x{height}']
    return frame_of(rgb.tobytes(), 'rgb8', width, height, 3 * width)


def recorded(family, size, suffix=''):
    name, _, network = family.partition(' in ')
    key = f'{name} {size[0]}x{size[1]}{suffix}'
    return RECORDED[f'{key} in {network}' if network else key]


def results(family, folder, sizes=SIZES, **values):
    """Return the results of an export for images of each size."""
    name = family.partition(' in ')[0]
    path = folder / 'model.onnx'
    path.write_bytes(RECORDED[f'{name} model'].tobytes())
    for file, text in json.loads(str(RECORDED[f'{name} files'])).items():
        (folder / file).write_text(json.dumps(text))
    parameters = ParameterValues(engine_path=str(path), **values)
    with closing(open_by_parameters(parameters)) as pipeline:
        return [detect_one(pipeline, picture(size), Thresholds()).found for size in sizes]


def score_difference(family, folder, **values):
    found = results(family, folder, **values)
    return max(
        np.abs(each.scores - recorded(family, size)).max()
        for each, size in zip(found, SIZES, strict=True)
    )


def equal_shares(family, folder, sizes=SIZES, make_ids=ClassMap.class_ids, **values):
    """Return the share of pixels with the recorded class for each size."""
    found = results(family, folder, sizes, **values)
    return [
        (make_ids(each).ravel()[::STEP] == recorded(family, size)).mean()
        for each, size in zip(found, sizes, strict=True)
    ]


def early_class_ids(found):
    """Return the best class of each cell of the logits, resized afterwards."""
    best = found.grid.argmax(0).astype(np.uint8)
    return resize_map(best, found.letterbox.source_wh, 'nearest')


@pytest.mark.parametrize('family', CLASSIFIERS)
def test_classifier_gives_the_scores_of_its_family(family, tmp_path):
    right, *wrong = CLASSIFIERS[family]
    off = score_difference(family, tmp_path, **right)
    assert off < 0.01
    for size in SIZES:
        second, best = np.sort(recorded(family, size))[-2:]
        assert best > 2 * second  # the scores depend on the image
    for values in wrong:
        wrong_by = score_difference(family, tmp_path, **{**right, **values})
        assert wrong_by > max(0.03, 5 * off), values


@pytest.mark.parametrize('family', SEGMENTERS)
def test_segmenter_gives_the_classes_of_its_family(family, tmp_path):
    """Ultralytics' network returns class ids, so `early_class_ids` does not apply."""
    right = SEGMENTERS[family]
    shares = equal_shares(family, tmp_path, **right)
    assert min(shares) > 0.97
    for values in ({'model_filter': 'bicubic'}, {'model_resize': 'letterbox_top_left'}):
        wrong = equal_shares(family, tmp_path, SMALL, **{**right, **values})
        assert min(wrong) < min(shares) - 0.03, values
    if family != 'ultralytics_semantic':
        early = equal_shares(family, tmp_path, SMALL, early_class_ids, **right)
        assert min(early) < min(shares) - 0.02


def logits_at_samples(logits, size):
    """Return the logits of every STEP-th pixel by bilinear interpolation, float64 (9, n)."""
    width, height = size
    places = np.arange(0, width * height, STEP)
    around = []
    for place, count, cells in (
        (places // width, height, logits.shape[1]),
        (places % width, width, logits.shape[2]),
    ):
        position = np.clip((place + 0.5) * cells / count - 0.5, 0, cells - 1)
        first = position.astype(int)
        around.append((first, np.minimum(first + 1, cells - 1), position - first))
    (top, bottom, down), (left, right, across) = around
    upper = logits[:, top, left] * (1 - across) + logits[:, top, right] * across
    lower = logits[:, bottom, left] * (1 - across) + logits[:, bottom, right] * across
    return upper * (1 - down) + lower * down


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize(
    ('family', 'rows', 'columns'),
    [('segformer', 24, 32), ('upernet', 96, 128), ('deeplabv3', 96, 128), ('lraspp', 96, 128)],
)
def test_classes_of_the_same_logits_are_those_of_the_family(family, rows, columns, size):
    logits = np.random.default_rng(7).standard_normal((9, rows, columns)).astype('f4')
    expected = recorded(family, size, ' post')
    letterbox = Letterbox.fit(size, NETWORK, 'stretch')
    found = ClassMap(logits, letterbox).class_ids().ravel()[::STEP]
    second, best = np.sort(logits_at_samples(logits, size), axis=0)[-2:]
    is_clear = best - second > 1e-4 * np.ptp(logits)
    assert is_clear.mean() > 0.99
    assert (found == expected)[is_clear].all()
    assert (early_class_ids(ClassMap(logits, letterbox)).ravel()[::STEP] == expected).mean() < 0.9
    cropped = Letterbox.fit(size, NETWORK, 'letterbox')
    wrong = [ClassMap(logits, cropped).class_ids()]
    wrong += [
        np.argmax([resize_map(one, size, filter_name) for one in logits], axis=0)
        for filter_name in ('bicubic', 'bilinear_aligned')
    ]
    for ids in wrong:
        assert (ids.ravel()[::STEP] == expected)[is_clear].mean() < 0.9


@pytest.mark.parametrize('size', SIZES)
def test_classes_of_the_same_map_are_those_of_ultralytics(size):
    ids = np.random.default_rng(8).integers(0, 9, (32, 32), np.uint8).repeat(3, 0).repeat(4, 1)
    assert zlib.crc32(ids) == RECORDED['crc ids']
    expected = recorded('ultralytics_semantic', size, ' post')
    for mode in ('letterbox', 'letterbox_top_left', 'stretch'):
        found = ClassMap(ids, Letterbox.fit(size, NETWORK, mode)).class_ids().ravel()[::STEP]
        if mode == 'letterbox':
            assert (found == expected).all()
        else:
            assert (found == expected).mean() < 0.9
    part = image_part(ids.astype(np.float32), Letterbox.fit(size, NETWORK, 'letterbox'), 'nearest')
    for filter_name in ('bilinear', 'bicubic', 'bilinear_aligned'):
        wrong = np.rint(resize_map(part, size, filter_name)).ravel()[::STEP]
        assert (wrong == expected).mean() < 0.9, filter_name


def spec_of(shape, dtype='float32'):
    inputs = (TensorSpec('pixels', (len(INVALID) + 1, 3, 96, 128), 'float32'),)
    outputs = (TensorSpec('output', (len(INVALID) + 1, *shape), dtype),)
    values = {'model.class_names': list(NAMES), 'model.resize': 'stretch'}
    values |= {'model.color_order': 'rgb', 'model.scale': 1.0}
    if len(shape) == 1:
        values |= {'model.decoder': 'class_logits'}
    overrides = ParameterValues.from_values(values).model_overrides()
    return resolve_model_spec(ModelInfo('x.onnx', inputs, outputs), None, overrides)


INVALID = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize('shape', [(9,), (9, 24, 32)])
def test_output_that_is_not_finite_is_an_error_of_its_image(shape, golden_messages):
    outputs = np.zeros((4, *shape), 'f4')
    for number, value in enumerate(INVALID, 1):
        outputs[number].flat[5] = value
    spec = spec_of(shape)
    letterboxes = [Letterbox.fit((517, 333), NETWORK, 'stretch')] * 4
    good, *bad = decode([outputs], spec, letterboxes, [Thresholds()] * 4, DecodingLimits())
    assert not isinstance(good, OutputError)
    assert [error.reason for error in bad] == ['bad_output'] * 3
    golden_messages.add(str(bad[0]))


@pytest.mark.parametrize('dtype', ['uint8', 'int32', 'int64'])
def test_id_without_a_class_name_is_an_error_of_its_image(dtype, golden_messages):
    ids = np.full((4, 96, 128), 8, dtype)
    ids[1, 5, 5], ids[2, 9, 9] = 9, 255
    ids[3, 0, 0] = 0 if dtype == 'uint8' else -1
    letterboxes = [Letterbox.fit((517, 333), NETWORK, 'stretch')] * 4
    spec = spec_of((96, 128), dtype)
    found = decode([ids], spec, letterboxes, [Thresholds()] * 4, DecodingLimits())
    is_bad = [isinstance(each, OutputError) for each in found]
    assert is_bad == [False, True, True, dtype != 'uint8']
    golden_messages.add(str(found[1]))
