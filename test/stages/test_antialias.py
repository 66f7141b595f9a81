# SPDX-License-Identifier: Apache-2.0
"""Preprocessing with antialiasing equals PIL, on the host and in the kernel.

Hugging Face trains and runs its detectors with PIL's bilinear resize. Colours come from bgr_image,
which test_encodings.py compares with the definitions of the encodings.
"""

import sys

import numpy as np
import pytest
from PIL import Image
from PIL import __version__ as pillow_version

from support.fuzz.frame_corpus import frame_cases
from support.gpu.host_kernels import HostLetterbox, needs_compiler
from support.oracles.reference_images import (
    ENCODINGS,
    SIZES,
    YUV,
    fits,
    frame_of,
    noise_frame,
    placed,
    random_frame,
)
from trt_perception.errors import EngineError
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor

PILLOW = int(pillow_version.split('.')[0])
NETWORK = (160, 128)
LEVELS = {'scale': 1.0, 'antialias': True}
# Aliases of encodings are left out, because test_encodings.py tests them.
FORMATS = sorted({*ENCODINGS.values()})
MODES = ['letterbox', 'letterbox_top_left', 'stretch']
# Source sizes that shrink to 1/2, 1/3, 1/4 and other scales, on one axis or on both. In some, the
# other axis grows.
SHRINKING = [(320, 256), (480, 384), (640, 512), (640, 128), (160, 512), (1001, 777), (91, 703)]


def pil_levels(frame, size_wh, mode, pad_value=114):
    """Return PIL's network input, uint8 (height, width, 3), RGB."""
    size, left, top = placed((frame.width, frame.height), size_wh, mode)
    if mode == 'letterbox_top_left':
        left = top = 0
    picture = Image.new('RGB', size_wh, (pad_value,) * 3)
    source = Image.fromarray(np.ascontiguousarray(frame_to_bgr(frame)[..., ::-1]))
    resized = source.resize(size, Image.Resampling.BILINEAR)
    if PILLOW >= 13:  # PIL 13 chooses the first axis by size, which changes the rounding
        narrow = source.resize((size[0], frame.height), Image.Resampling.BILINEAR)
        stepwise = narrow.resize(size, Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(resized, int) - np.asarray(stepwise, int)).max() <= 1
        resized = stepwise
    picture.paste(resized, (left, top))
    return np.asarray(picture)


def triangle(levels, size_wh):
    """Resize by the definition of the triangle filter, in float64 without rounding."""
    for axis, target in ((1, size_wh[0]), (0, size_wh[1])):
        source = levels.shape[axis]
        scale = source / target
        middle = (np.arange(target)[:, None] + 0.5) * scale
        away = np.abs(np.arange(source)[None, :] + 0.5 - middle) / max(scale, 1)
        weights = np.maximum(0, 1 - away)
        weights /= weights.sum(axis=1, keepdims=True)
        levels = np.moveaxis(np.tensordot(weights, levels, (1, axis)), 0, axis)
    return levels


def frames(encoding, mode='stretch', make=random_frame):
    """Yield noise images: all SIZES that the encoding allows, and two of the SHRINKING sizes.

    Each encoding and resize mode gets other SHRINKING sizes, so that together they cover all.
    """
    rng = np.random.default_rng(5)
    start = FORMATS.index(encoding) + 2 * MODES.index(mode)
    shrinking = [SHRINKING[(start + step) % len(SHRINKING)] for step in (0, 1)]
    for index, (width, height) in enumerate([*SIZES, *shrinking]):
        if fits(encoding, width, height):
            padding, big_endian = (0, 1, 32)[index % 3], bool(index % 2)
            yield make(rng, encoding, width, height, padding, big_endian)


@pytest.mark.parametrize('encoding', FORMATS)
@pytest.mark.parametrize('mode', MODES)
def test_host_preprocessing_equals_pil(encoding, mode):
    preprocess = HostPreprocessor(Preprocessing(NETWORK, mode, **LEVELS))
    for frame in frames(encoding, mode):
        tensor, _ = preprocess(frame)
        found = tensor[0].transpose(1, 2, 0)
        np.testing.assert_array_equal(found, pil_levels(frame, NETWORK, mode))


@pytest.mark.parametrize('encoding', FORMATS)
@pytest.mark.parametrize('round_pixels', [True, False])
def test_host_differs_from_the_definition_by_at_most_about_one_level(encoding, round_pixels):
    # When rounding, PIL rounds to bytes between its two passes. The conversion from YUV to bytes
    # adds its own error.
    limit = 0.7 * (ENCODINGS[encoding] in YUV) + (1.0 if round_pixels else 1e-4)
    preprocess = HostPreprocessor(
        Preprocessing(NETWORK, 'stretch', **LEVELS, round_pixels=round_pixels)
    )
    for frame, levels in frames(encoding, make=noise_frame):
        tensor, _ = preprocess(frame)
        off = np.abs(tensor[0].transpose(1, 2, 0) - triangle(levels, NETWORK))
        assert off.max() <= limit + 1e-9


def test_shrinking_noise_without_antialiasing_differs():
    frame = random_frame(np.random.default_rng(1), 'bgr8', 640, 512)
    plain, _ = HostPreprocessor(Preprocessing(NETWORK, scale=1.0))(frame)
    assert np.abs(plain[0].transpose(1, 2, 0) - pil_levels(frame, NETWORK, 'stretch')).max() > 37


def test_fourth_channel_has_no_effect():
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (99, 101, 4), np.uint8)
    tensors = []
    for alpha in (0, 255):
        pixels[..., 3] = alpha
        frame = frame_of(pixels.tobytes(), 'rgba8', 101, 99, 404)
        tensors.append(HostPreprocessor(Preprocessing(NETWORK, **LEVELS))(frame)[0].copy())
    np.testing.assert_array_equal(*tensors)


def test_missing_pillow_is_reported_when_the_model_opens(monkeypatch, golden_messages):
    monkeypatch.setitem(sys.modules, 'PIL', None)
    HostPreprocessor(Preprocessing(NETWORK))
    with golden_messages.raises(EngineError):
        HostPreprocessor(Preprocessing(NETWORK, antialias=True))


@pytest.fixture(scope='module', params=MODES)
def kernel(request):
    preprocessing = Preprocessing(NETWORK, request.param, **LEVELS)
    return preprocessing, HostLetterbox(preprocessing)


@needs_compiler
@pytest.mark.parametrize('encoding', FORMATS)
def test_kernel_preprocessing_equals_pil(kernel, encoding):
    preprocessing, letterbox = kernel
    for frame in frames(encoding, preprocessing.resize):
        found = letterbox(frame)[0].transpose(1, 2, 0)
        np.testing.assert_array_equal(found, pil_levels(frame, NETWORK, preprocessing.resize))


@needs_compiler
@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('round_pixels', [True, False])
def test_kernel_gives_the_input_of_the_host_for_the_corpus(antialias, round_pixels):
    preprocessing = Preprocessing(
        (96, 64), scale=1.0, antialias=antialias, round_pixels=round_pixels
    )
    letterbox, host = HostLetterbox(preprocessing), HostPreprocessor(preprocessing)
    for case in frame_cases(600):
        if not case.faults:
            expected, _ = host(case.frame())
            # Without rounding, Pillow's weights are float64, but the kernel's have 22 bits.
            allowed = 0.01 if antialias and not round_pixels else 0
            assert np.abs(letterbox(case.frame()) - expected).max() <= allowed, case.name


@needs_compiler
@pytest.mark.parametrize(
    'facts',
    [
        {'color_order': 'bgr', 'pad_value': 0},
        {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)},
        {'scale': 1.0, 'pad_value': 255, 'resize': 'stretch'},
        {'mean': (0.4, 0.5, 0.6), 'pad_value': None, 'resize': 'letterbox_top_left'},
    ],
)
def test_kernel_normalises_like_the_host(facts):
    preprocessing = Preprocessing((101, 79), **facts, antialias=True)
    frame = random_frame(np.random.default_rng(3), 'rgb8', 300, 211, 5)
    expected, _ = HostPreprocessor(preprocessing)(frame)
    np.testing.assert_array_equal(HostLetterbox(preprocessing)(frame), expected)
