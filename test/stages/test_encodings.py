# SPDX-License-Identifier: Apache-2.0
"""Each encoding is converted to the colours of its definition. The oracles use no OpenCV.

The tests allow OpenCV these measured differences from exact arithmetic:

    packed, mono8, mono16, Bayer    exact
    YUV                             at most 0.70 levels (0.6905 over all Y, U and V)

The GPU kernels must copy two properties of OpenCV: a Y below 16 counts as 16, and the outermost
pixels of a Bayer image repeat their inner neighbour.
"""

import itertools

import numpy as np
import pytest

from support.oracles.reference_images import (
    ENCODINGS,
    SIZES,
    TWO_PLANES,
    YUV,
    byte_rows,
    fits,
    frame_of,
    noise,
    noise_frame,
    rgb_levels,
)
from trt_perception.images.frame_pixels import frame_to_bgr

CONVERSION = 0.70  # levels; YUV only


def test_each_encoding_is_tested():
    assert all(any(fits(encoding, *size) for size in SIZES) for encoding in ENCODINGS)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_each_encoding_gives_the_colours_of_its_definition(encoding):
    for padding, big_endian in itertools.product((0, 1, 13), (False, True)):
        rng = np.random.default_rng(1)
        for width, height in SIZES:
            is_repeated = width * height > 10_000 and padding != 13
            if is_repeated or not fits(encoding, width, height):
                continue
            frame, levels = noise_frame(rng, encoding, width, height, padding, big_endian)
            image = frame_to_bgr(frame)
            assert image.shape == (height, width, 3)
            assert image.dtype == np.uint8
            assert image.flags.c_contiguous
            off = np.abs(image[..., ::-1] - levels).max()
            limit = CONVERSION if ENCODINGS[encoding] in YUV else 0
            assert off <= limit, (width, height, padding, big_endian)


@pytest.mark.parametrize('encoding', YUV)
def test_all_yuv_colours_are_within_the_tolerance(encoding):
    # All Y with every fifth U and V, including both ends.
    chroma = np.array([*range(0, 256, 5), 128, 255], np.uint8)
    u, v = (grid.ravel() for grid in np.meshgrid(chroma, chroma))
    y = np.arange(256, dtype=np.uint8)[:, None]
    if encoding in TWO_PLANES:
        height, width = 512, 2 * len(u)
        data = np.empty((byte_rows(encoding, height), width), np.uint8)
        data[:height] = np.repeat(y, 2, axis=0)
        data[height:, 0::2], data[height:, 1::2] = (u, v) if encoding == 'nv12' else (v, u)
        step = width
    else:
        height, width = 256, 2 * len(u)
        data = np.empty((height, 4 * len(u)), np.uint8)
        luma, first = (1, 0) if encoding == 'uyvy' else (0, 1)
        data[:, luma::2] = y
        data[:, first::4], data[:, first + 2 :: 4] = u, v
        step = 2 * width
    description = encoding, width, height, step
    image = frame_to_bgr(frame_of(data.ravel(), *description))
    assert np.abs(image[..., ::-1] - rgb_levels(data, *description)).max() <= CONVERSION


@pytest.mark.parametrize(
    ('yuv', 'rgb'),
    [  # ITU-R BT.601: the corners of the colour cube, rounded to 8-bit Y'CbCr
        ((16, 128, 128), (0, 0, 0)),
        ((235, 128, 128), (255, 255, 255)),
        ((82, 90, 240), (255, 0, 0)),
        ((145, 54, 34), (0, 255, 0)),
        ((41, 240, 110), (0, 0, 255)),
        ((210, 16, 146), (255, 255, 0)),
        ((170, 166, 16), (0, 255, 255)),
        ((107, 202, 222), (255, 0, 255)),
    ],
)
def test_yuv_corner_colours_are_converted(yuv, rgb):
    y, u, v = yuv
    for encoding, data in {
        'uyvy': [u, y, v, y] * 2,
        'yuyv': [y, u, y, v] * 2,
        'nv12': [y] * 4 + [u, v],
        'nv21': [y] * 4 + [v, u],
    }.items():
        step = 4 if encoding in ('uyvy', 'yuyv') else 2
        image = frame_to_bgr(frame_of(bytes(data), encoding, 2, 2, step))
        # The 8-bit Y'CbCr values are rounded, which changes the colours by up to two levels.
        assert np.abs(image[..., ::-1].astype(int) - rgb).max() <= 2


@pytest.mark.parametrize('order', ['<u2', '>u2'])
def test_mono16_is_divided_by_257_and_rounded(order):
    values = np.arange(65536)
    data = values.astype(order).tobytes()
    image = frame_to_bgr(frame_of(data, 'mono16', 256, 256, 512, order == '>u2'))
    # 257 is odd, so no value lies halfway between two results.
    assert np.array_equal(image.reshape(-1, 3), np.rint(values / 257)[:, None].repeat(3, axis=1))


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_image_of_one_colour_has_one_channel(pattern):
    for color in 'rgb':
        tile = [255 * (place == color) for place in pattern]
        mosaic = np.tile(np.array(tile, np.uint8).reshape(2, 2), (4, 5))
        image = frame_to_bgr(frame_of(mosaic.ravel(), f'bayer_{pattern}8', 10, 8, 10))
        assert (image == [255 * (color == channel) for channel in 'bgr']).all()


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_images_of_many_widths_have_the_expected_colours(pattern):
    rng = np.random.default_rng(2)
    encoding = f'bayer_{pattern}8'
    for width in [*range(3, 70), 127, 128, 129, 641]:
        height = 3 + width % 4
        frame, levels = noise_frame(rng, encoding, width, height)
        assert np.array_equal(frame_to_bgr(frame)[..., ::-1], levels), width


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_read_only_frames_are_accepted(encoding):
    data, step = noise(np.random.default_rng(10), encoding, 12, 10, 3)
    frozen, writable = (frame_of(raw, encoding, 12, 10, step) for raw in (data.tobytes(), data))
    assert np.array_equal(frame_to_bgr(frozen), frame_to_bgr(writable))


def test_converted_image_is_a_copy():
    data = np.zeros(12, np.uint8)
    frame_to_bgr(frame_of(data, 'bgr8', 2, 2, 6))[...] = 9
    assert not data.any()
