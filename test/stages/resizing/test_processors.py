# SPDX-License-Identifier: Apache-2.0
"""Preprocessing gives the input of the exporters' own processors.

test/data/exports/record_processors.py wrote processors.npz: values of the input tensors of
transformers, torchvision, Ultralytics and timm, and the files of transformers' image processors.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.gpu.host_kernels import HostLetterbox, needs_compiler
from support.oracles.reference_images import levels_off, recorded_noise
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.image_processor import read_image_processor
from trt_perception.stages.host_preprocess import HostPreprocessor

EXPORTS = Path(__file__).parents[2] / 'data' / 'exports'
with np.load(EXPORTS / 'processors.npz') as content:
    RECORDED = dict(content)
CONFIGS = json.loads(str(RECORDED['configs']))
SIZES = ['517x333', '1920x1080', '333x517']
STEP = 499  # as in record_processors.py

TORCHVISION = {'resize': 'center_crop', 'shorter_side': 256, 'pad_value': 0, 'antialias': True}
FLOATS = {**TORCHVISION, 'antialias': False, 'round_pixels': False}
BICUBIC = {'filter': 'bicubic'}
#: Fields of Preprocessing for processors that have no file.
FIELDS = {
    'torchvision': TORCHVISION,
    'torchvision_bicubic': {**TORCHVISION, **BICUBIC, 'shorter_side': 246},
    'torchvision_padded': {**TORCHVISION, 'shorter_side': 201},
    'tensor_bilinear': TORCHVISION,
    'tensor_bicubic': {**TORCHVISION, **BICUBIC},
    'floats_bilinear': FLOATS,
    'floats_bicubic': {**FLOATS, **BICUBIC},
    'floats_bicubic_antialias': {**TORCHVISION, **BICUBIC, 'round_pixels': False},
    'ultralytics': {**TORCHVISION, 'shorter_side': None},
    'timm': {**TORCHVISION, **BICUBIC, 'shorter_side': 248},
}
NAMES = [*FIELDS, *CONFIGS]


def preprocessing_of(name, size=SIZES[-1]):
    _, height, width = RECORDED[f'{name} {size} shape'].tolist()
    if name in FIELDS:
        return Preprocessing((width, height), **FIELDS[name])
    info = read_image_processor(CONFIGS[name], '')
    # YOLOS' files have no size, because it follows from the image.
    usual = Preprocessing(info.input_size or (width, height), **info.preprocessing)
    derived = usual.size_for(tuple(map(int, size.split('x'))))
    assert (derived, info.problems) == ((width, height), {})
    return replace(usual, input_size=derived)


def difference(tensor, name, size, preprocessing):
    return levels_off(tensor, RECORDED[f'{name} {size}'], STEP, preprocessing)


@pytest.mark.parametrize('name', NAMES)
def test_host_gives_the_input_of_the_processor(name):
    preprocessing = preprocessing_of(name)
    is_bicubic = preprocessing.filter == 'bicubic'
    wrong = {'filter': 'bilinear' if is_bicubic else 'bicubic'}
    others = [wrong, {'antialias': not preprocessing.antialias}]
    if preprocessing.resize == 'center_crop':
        # One pixel more on the shorter side moves the crop by about half a pixel.
        others.append({'shorter_side': (preprocessing.shorter_side or 224) + 1})
    else:
        others.append({'resize': 'letterbox'})
    allowed = 3 if is_bicubic else 1
    for size in SIZES:
        preprocessing = preprocessing_of(name, size)
        frame = recorded_noise(size, RECORDED)
        tensor, _ = HostPreprocessor(preprocessing)(frame)
        assert difference(tensor, name, size, preprocessing) <= allowed + 1e-3, size
    for values in others:
        tensor, _ = HostPreprocessor(replace(preprocessing, **values))(frame)
        assert difference(tensor, name, size, preprocessing) > 5, values


def test_derived_size_is_that_of_the_processor():
    rows = RECORDED['derived sizes']
    assert rows[0, 5:].tolist() == [924, 518]
    for *image_wh, width, height, multiple, derived_width, derived_height in rows.tolist():
        found = Preprocessing((width, height), size_multiple=multiple).size_for(tuple(image_wh))
        # transformers cannot resize to a side of 0.
        assert found == (derived_width or multiple, derived_height or multiple), image_wh


@pytest.mark.parametrize('name', ['torchvision', 'mobilenet_v2', 'dinov2'])
def test_other_rounding_of_the_crop_differs(name):
    # The longer side has 455 pixels, and 231 are too many.
    right = preprocessing_of(name)
    rounding = 'down' if right.crop_rounding == 'half_even' else 'half_even'
    frame = recorded_noise('1920x1080', RECORDED)
    tensor, _ = HostPreprocessor(replace(right, crop_rounding=rounding))(frame)
    assert difference(tensor, name, '1920x1080', right) > 30


@needs_compiler
@pytest.mark.parametrize('name', ['torchvision_padded', 'floats_bicubic', 'convnext', 'dpt'])
def test_kernel_gives_the_input_of_the_processor(name):
    preprocessing = preprocessing_of(name)
    kernel = HostLetterbox(preprocessing)
    for size in SIZES:
        off = difference(kernel(recorded_noise(size, RECORDED)), name, size, preprocessing)
        assert off <= (3 if preprocessing.filter == 'bicubic' else 1) + 1e-3, size
