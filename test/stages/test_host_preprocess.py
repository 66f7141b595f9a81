# SPDX-License-Identifier: Apache-2.0
"""HostPreprocessor matches float64 references, which use no OpenCV and no package geometry.

OpenCV resizes bytes to bytes. The tests allow 0.85 levels from exact bilinear interpolation; 0.82
was measured. A tensor is therefore within 1/255 of the exact letterbox of the bytes. Without
rounding, positions are in float32, as in torch: up to 0.01 levels for these sizes. The conversion
from YUV to bytes adds its own error (test_encodings.py).
"""

import numpy as np
import onnxruntime
import pytest

from support.oracles.reference_images import (
    ENCODINGS,
    SIZES,
    YUV,
    fits,
    frame_of,
    network_levels,
    noise_frame,
    random_frame,
    resized,
    tensor_from_levels,
)
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.host_preprocess import HostPreprocessor

CONVERSION = 0.70  # levels; YUV only
RESIZING = 0.85  # levels


def tolerance(encoding, round_pixels=True):
    """Return the allowed difference between two tensors, in levels of 8 bits."""
    resizing = RESIZING if round_pixels else 0.01
    return resizing + (CONVERSION if ENCODINGS[encoding] in YUV else 0)


def test_oracle_agrees_with_the_onnx_operator():
    import onnx
    from onnx import TensorProto, helper

    rng = np.random.default_rng(3)
    resize = helper.make_node(
        'Resize',
        ['x', '', '', 'sizes'],
        ['y'],
        mode='linear',
        coordinate_transformation_mode='half_pixel',
    )
    # Half-pixel positions outside the image use the edge, as in map_coordinates' mode 'nearest'.
    graph = helper.make_graph(
        [resize],
        'resize',
        [
            helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 3, 'h', 'w']),
            helper.make_tensor_value_info('sizes', TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, [1, 3, 'H', 'W'])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )
    for source, target in [((53, 37), (640, 447)), ((640, 480), (100, 75)), ((1, 5), (7, 35))]:
        levels = rng.integers(0, 256, (source[1], source[0], 3)).astype(np.float64)
        sizes = np.array([1, 3, target[1], target[0]])
        planes = levels.transpose(2, 0, 1)[None].astype(np.float32)
        (result,) = session.run(None, {'x': planes, 'sizes': sizes})
        # The operator computes positions in float32: an error of 2**-15 pixels times 255 levels.
        assert np.abs(result[0].transpose(1, 2, 0) - resized(levels, target)).max() < 0.02


PLAIN = {'input_size': (160, 160)}
# Preprocessing sections of a manifest. The test runs each with several encodings.
PREPROCESSINGS = {
    'plain': PLAIN,
    'stretch': {**PLAIN, 'resize': 'stretch'},
    'bgr': {**PLAIN, 'color_order': 'bgr'},
    'black padding': {**PLAIN, 'pad_value': 0},
    'white padding': {**PLAIN, 'pad_value': 255},
    'levels': {**PLAIN, 'scale': 1.0},
    'ImageNet': {**PLAIN, 'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)},
    'BGR levels minus mean': {
        **PLAIN,
        'color_order': 'bgr',
        'scale': 1.0,
        'mean': (103.53, 116.28, 123.675),
        'std': (57.375, 57.12, 58.395),
    },
    'one mean': {**PLAIN, 'mean': (0.0, 0.5, 0.0)},
    'wide input': {'input_size': (320, 176)},
    'odd input': {'input_size': (161, 99)},
    'not rounded': {**PLAIN, 'round_pixels': False, 'std': (0.229, 0.224, 0.225)},
    'high input, stretch': {'input_size': (96, 320), 'resize': 'stretch'},
    'one pixel': {'input_size': (1, 1)},
}


def assert_tensor(tensor, levels, facts, encoding):
    """Compare a tensor, in levels, with the exact letterbox of the levels."""
    mode, pad = facts.get('resize', 'letterbox'), facts.get('pad_value', 114)
    picture = network_levels(levels, facts['input_size'], mode, pad)
    numbers = {key: facts[key] for key in ('color_order', 'scale', 'mean', 'std') if key in facts}
    expected = tensor_from_levels(picture, **numbers)
    assert tensor.shape == expected.shape
    step = facts.get('scale', 1 / 255) / np.array(facts.get('std', (1, 1, 1)))[None, :, None, None]
    off = np.abs(tensor - expected) / step
    assert off.max() <= tolerance(encoding, facts.get('round_pixels', True)) + 1e-3


@pytest.mark.parametrize('facts', PREPROCESSINGS.values(), ids=PREPROCESSINGS.keys())
def test_each_preprocessing_matches_the_oracle(facts):
    rng = np.random.default_rng(4)
    preprocess = HostPreprocessor(Preprocessing(**facts))
    for encoding, size in [
        ('bgr8', (300, 200)),
        ('rgb8', (200, 300)),
        ('mono8', (61, 47)),
        ('rgba8', (320, 320)),
        ('bayer_grbg8', (101, 75)),
        ('nv12', (128, 72)),
    ]:
        frame, levels = noise_frame(rng, encoding, *size, padding=6)
        tensor, letterbox = preprocess(frame)
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        mode = facts.get('resize', 'letterbox')
        assert letterbox == Letterbox.fit(size, facts['input_size'], mode)
        assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize('encoding', sorted({*ENCODINGS.values()}))
@pytest.mark.parametrize('mode', ['letterbox', 'stretch'])
@pytest.mark.parametrize('round_pixels', [True, False])
def test_each_encoding_and_size_matches_the_oracle(encoding, mode, round_pixels):
    rng = np.random.default_rng(5)
    facts = {'input_size': (128, 96), 'resize': mode, 'round_pixels': round_pixels}
    for index, (width, height) in enumerate(SIZES):
        if fits(encoding, width, height):
            padding, big_endian = (0, 1, 32)[index % 3], bool(index % 2)
            frame, levels = noise_frame(rng, encoding, width, height, padding, big_endian)
            tensor, _ = HostPreprocessor(Preprocessing(**facts))(frame)
            assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize('encoding', ['bgr8', 'rgba8', 'mono16', 'bayer_rggb8', 'yuyv', 'nv21'])
def test_camera_sized_frame_matches_the_oracle(encoding):
    width, height = (1919, 1079) if fits(encoding, 1919, 1079) else (1920, 1080)
    frame, levels = noise_frame(np.random.default_rng(6), encoding, width, height, padding=7)
    facts = {'input_size': (640, 640)}
    tensor, _ = HostPreprocessor(Preprocessing(**facts))(frame)
    assert_tensor(tensor, levels, facts, encoding)


@pytest.mark.parametrize(
    'facts',
    [PREPROCESSINGS['plain'], PREPROCESSINGS['ImageNet'], PREPROCESSINGS['BGR levels minus mean']],
)
def test_half_precision_rounds_the_single_precision_tensor(facts):
    rng = np.random.default_rng(7)
    single = HostPreprocessor(Preprocessing(**facts))
    half = HostPreprocessor(Preprocessing(**facts, dtype='float16'))
    for encoding in ('bgr8', 'mono8', 'uyvy'):
        frame, levels = noise_frame(rng, encoding, 90, 70)
        exact, result = single(frame)[0], half(frame)[0]
        assert result.dtype == np.float16
        assert np.array_equal(result, exact.astype(np.float16))
        assert_tensor(result.astype(np.float64), levels, facts, encoding)


def test_uint8_input_is_always_rounded():
    frame = random_frame(np.random.default_rng(11), 'bgr8', 53, 37)
    facts = {'input_size': (64, 48), 'scale': 1.0, 'dtype': 'uint8'}
    expected, _ = HostPreprocessor(Preprocessing(**facts))(frame)
    found, _ = HostPreprocessor(Preprocessing(**facts, round_pixels=False))(frame)
    np.testing.assert_array_equal(found, expected)


def test_flat_image_stays_flat_with_exact_padding():
    for value in (0, 1, 114, 254, 255):
        data = bytes([value]) * (33 * 21 * 3)
        facts = {'input_size': (64, 64), 'scale': 1.0, 'pad_value': 77}
        tensor, letterbox = HostPreprocessor(Preprocessing(**facts))(
            frame_of(data, 'bgr8', 33, 21, 99)
        )
        assert letterbox.resized_wh == (64, 41)
        assert (tensor[0, :, 11:52] == value).all()
        assert (tensor[0, :, :11] == 77).all()
        assert (tensor[0, :, 52:] == 77).all()  # 12 rows of padding: an odd row is below


def test_reused_preprocessor_equals_a_new_one():
    rng = np.random.default_rng(8)
    encodings = list(ENCODINGS)
    for facts in (
        {'input_size': (96, 96)},
        {'input_size': (96, 64), 'dtype': 'float16', 'mean': (0.5, 0.0, 0.5)},
        {'input_size': (96, 64), 'resize': 'stretch', 'color_order': 'bgr'},
    ):
        preprocess = HostPreprocessor(Preprocessing(**facts))
        # With few sizes, the previous frame's canvas is often reused and often replaced.
        for _ in range(120):
            encoding = encodings[rng.integers(len(encodings))]
            width, height = [(40, 30), (30, 40), (96, 64), (200, 6), (6, 200)][rng.integers(5)]
            frame = random_frame(rng, encoding, width, height, int(rng.integers(4)))
            tensor, letterbox = preprocess(frame)
            fresh, fresh_letterbox = HostPreprocessor(Preprocessing(**facts))(frame)
            assert np.array_equal(tensor, fresh)
            assert letterbox == fresh_letterbox


def test_tensor_is_reused_and_the_frame_is_unchanged():
    preprocess = HostPreprocessor(Preprocessing(input_size=(32, 32)))
    data = np.random.default_rng(9).integers(0, 256, 40 * 30 * 3, np.uint8)
    before = data.copy()
    data.flags.writeable = False
    frame = frame_of(data, 'rgb8', 40, 30, 120)
    first, second = preprocess(frame)[0], preprocess(frame)[0]
    assert np.shares_memory(first, second)
    assert np.array_equal(data, before)
