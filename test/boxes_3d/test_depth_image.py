# SPDX-License-Identifier: Apache-2.0
"""Test the readers of depth images against files of Pillow and the formula of the transport."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from trt_perception.boxes_3d.depth_image import (
    DepthImage,
    read_compressed_depth,
    read_depth,
    wrong_unit_error,
)
from trt_perception.errors import ImageError

VALUES = np.arange(0, 48 * 64 * 3, 3, dtype=np.uint16).reshape(48, 64)
EVERYTHING = slice(None), slice(None)


def png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, 'png')
    return file.getvalue()


def compressed(values, scale=0.0, offset=0.0):
    return np.frombuffer(struct.pack('<iff', 0, scale, offset) + png(values), np.uint8)


def raw(values, padding=0):
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    return np.pad(rows, ((0, 0), (0, padding))).reshape(-1)


@pytest.mark.parametrize('big_endian', [False, True])
@pytest.mark.parametrize('padding', [0, 4, 3])
@pytest.mark.parametrize(
    ('encoding', 'kind', 'unit_m'), [('16UC1', 'u2', 0.001), ('32FC1', 'f4', 1)]
)
def test_raw_depth_has_its_values_in_metres(encoding, kind, unit_m, padding, big_endian):
    values = VALUES.astype('<>'[big_endian] + kind)
    step = 64 * values.itemsize + padding
    depth = read_depth(encoding, (64, 48), step, raw(values, padding), big_endian=big_endian)
    np.testing.assert_allclose(depth.metres(*EVERYTHING), VALUES * unit_m, rtol=1e-6)
    assert depth.size_wh == (64, 48)


def test_unit_of_the_user_replaces_that_of_the_encoding():
    depth = read_depth('16UC1', (64, 48), 128, raw(VALUES), unit_m=0.00025)
    np.testing.assert_allclose(depth.metres(*EVERYTHING), VALUES / 4000, rtol=1e-6)


@pytest.mark.parametrize('image_format', ['16UC1; compressedDepth png', '16UC1; compressedDepth'])
def test_compressed_depth_of_16_bits_equals_the_original(image_format):
    depth = read_compressed_depth(image_format, compressed(VALUES))
    np.testing.assert_allclose(depth.metres(*EVERYTHING), VALUES * 0.001, rtol=1e-6)


def test_inverse_depth_equals_the_original_within_a_step_of_the_quantisation():
    """The encoder of compressed_depth_image_transport, with its defaults."""
    original = np.linspace(0.3, 9.9, 48 * 64, dtype=np.float32).reshape(48, 64)
    original[:4] = np.nan
    quantisation, farthest = 100.0, 10.0
    scale = quantisation * (quantisation + 1)
    offset = 1 - scale / farthest
    coded = np.where(np.isnan(original), 0, scale / original + offset).astype(np.uint16)
    depth = read_compressed_depth('32FC1; compressedDepth png', compressed(coded, scale, offset))
    found = depth.metres(*EVERYTHING)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(original))
    step = original**2 / scale  # the derivative of the depth by the coded value
    assert (abs(found - original)[4:] <= 1.05 * step[4:]).all()


def refused(golden_messages, read, *arguments):
    with pytest.raises(ImageError) as caught:
        read(*arguments)
    golden_messages.add(caught.value)
    return caught.value.reason


def test_invalid_images_are_refused(golden_messages):
    data = raw(VALUES)
    assert refused(golden_messages, read_depth, 'bgr8', (64, 48), 192, data) == 'unknown_encoding'
    assert refused(golden_messages, read_depth, '16UC1', (0, 48), 128, data) == 'bad_size'
    assert refused(golden_messages, read_depth, '16UC1', (2**31, 2**31), 128, data) == 'bad_size'
    assert refused(golden_messages, read_depth, '32FC1', (64, 48), 128, data) == 'bad_step'
    assert refused(golden_messages, read_depth, '16UC1', (64, 49), 128, data) == 'bad_length'


def test_invalid_compressed_images_are_refused(golden_messages):
    good, of_floats = '16UC1; compressedDepth png', '32FC1; compressedDepth png'
    data = compressed(VALUES)
    huge = bytearray(data)
    huge[28:36] = struct.pack('>II', 10000, 10000)
    huge[41:45] = struct.pack('>I', zlib.crc32(huge[24:41]))
    cases = [
        ('16UC1; compressedDepth rvl', data, 'unknown_encoding'),
        ('16UC1; png compressed', data, 'unknown_encoding'),
        ('8UC1; compressedDepth png', data, 'unknown_encoding'),
        ('', data, 'unknown_encoding'),
        (good, data[:11], 'not_decodable'),
        (good, data[12:], 'not_decodable'),
        (good, data[:-60], 'not_decodable'),
        (good, compressed((VALUES % 256).astype(np.uint8)), 'not_decodable'),
        (good, np.frombuffer(huge, np.uint8), 'bad_size'),
        (of_floats, compressed(VALUES, np.nan, 1), 'not_decodable'),
    ]
    assert [
        refused(golden_messages, read_compressed_depth, image_format, file)
        for image_format, file, _ in cases
    ] == [reason for *_, reason in cases]


def test_unlikely_units_are_mistakes_unless_the_user_says_the_unit(golden_messages):
    metres = np.linspace(0, 6, 48 * 64).reshape(48, 64)
    cases = {
        '16UC1': DepthImage(metres.round().astype(np.uint16), 0.001),
        '32FC1': DepthImage((1000 * metres).astype(np.float32), 1.0),
    }
    for encoding, depth in cases.items():
        mistake = wrong_unit_error(depth, encoding, 0.0)
        assert mistake.reason == 'depth_unit'
        golden_messages.add(mistake)
        assert wrong_unit_error(depth, encoding, 1.0) is None


@pytest.mark.parametrize('scale', [1.0, 0.0])
def test_likely_units_are_no_mistakes(scale):
    metres = scale * np.linspace(0, 6, 48 * 64).reshape(48, 64)
    for encoding, values in (('16UC1', 1000 * metres), ('32FC1', metres)):
        kind = {'16UC1': np.uint16, '32FC1': np.float32}[encoding]
        assert wrong_unit_error(DepthImage(values.astype(kind), 1.0), encoding, 0.0) is None


def test_sky_of_a_depth_model_is_no_mistake():
    values = np.full((48, 64), 200, np.float32)
    values[36:] = 8
    assert wrong_unit_error(DepthImage(values, 1.0), '32FC1', 0.0) is None
