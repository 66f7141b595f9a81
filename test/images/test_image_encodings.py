# SPDX-License-Identifier: Apache-2.0
"""Tests of reading the format of compressed images."""

import pytest

from trt_perception.errors import ImageError
from trt_perception.images.encodings import check_has_colors, read_compressed_format


@pytest.mark.parametrize(
    'text', ['', 'jpeg', 'png', 'jpg', 'JPEG', 'image/jpeg', 'bgr8', 'rgb8', 'mono8', 'webp']
)
def test_format_without_a_semicolon_says_nothing(text):
    found = read_compressed_format(text)
    assert (found.encoding, found.is_mosaic, found.is_swapped) == ('', False, False)


COLORS = [f'{order}{bits}' for order in ('rgb', 'bgr', 'rgba', 'bgra') for bits in (8, 16)]


@pytest.mark.parametrize('codec', ['jpeg', 'png'])
@pytest.mark.parametrize('original', [*COLORS, 'uyvy', 'yuv422_yuy2', 'nv21', 'nv12', '8UC3'])
def test_last_word_decides_the_order_of_colours(original, codec):
    for stored in COLORS:
        found = read_compressed_format(f'{original}; {codec} compressed {stored}')
        assert found.is_swapped == stored.startswith('rgb')
        assert read_compressed_format(f'{original};{codec} compressed  {stored} ') == found


@pytest.mark.parametrize('original', COLORS)
@pytest.mark.parametrize('space', ['', ' '])
def test_colour_without_a_last_word_is_stored_as_rgb(original, space):
    assert read_compressed_format(f'{original}; jpeg compressed{space}').is_swapped


@pytest.mark.parametrize(
    'text',
    [
        *('mono8; jpeg compressed ', 'mono16; png compressed ', 'mono8; jpeg compressed mono8'),
        *('mono16; jpeg compressed mono8', 'mono8; jpeg', '8UC1; png compressed ', 'mono8;png'),
        *('yuyv; jpeg compressed mono8', '8UC3; png compressed ', '8UC4; png compressed '),
        *('uyvy; jpeg compressed ', 'bayer_rggb8; jpeg compressed mono8'),
    ],
)
def test_files_without_an_order_of_colours_are_ordinary(text):
    found = read_compressed_format(text)
    assert not found.is_swapped
    assert not found.is_mosaic
    assert found.encoding == text.partition(';')[0]


def refuse(text):
    with pytest.raises(ImageError) as caught:
        read_compressed_format(text)
    assert caught.value.reason == 'unknown_encoding'
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize(
    'text',
    [
        *('16UC1; png compressed ', '16UC1; compressedDepth png', '32FC1; compressedDepth png'),
        *('16UC1; compressedDepth rvl', '32FC1; compressedDepth', '16UC1', '32FC1', '64FC1'),
        *(
            '16UC1; jpeg compressed mono8',
            '32FC1; tiff compressed ',
            'mono16; compressedDepth png',
        ),
        *('16SC1; png compressed ', '32SC1; tiff compressed ', '16UC1; png compressed mono16'),
        *('16UC3; png compressed ', 'compressedDepth'),
    ],
)
def test_depth_is_refused(text, golden_messages):
    golden_messages.add(refuse(text))


@pytest.mark.parametrize(
    'text',
    [
        *('rgb8; jpeg compressed bgr', 'rgb8; jpeg compressed yuv', 'rgb8; jpeg compressed BGR8'),
        *('bgr8; jpeg', 'rgb8; png', 'bgr8; jpeg compressed bgr8 bgr8', 'bgr8;', 'jpeg; bgr8'),
        *(
            'yuv420; jpeg compressed',
            'mono8; jpeg compressed grey',
            'x' * 5000 + '; jpeg compressed',
        ),
        'bgr8; compressed jpeg bgr8',
    ],
)
def test_unknown_words_are_refused(text, golden_messages):
    message = refuse(text)
    assert len(message) < 500
    golden_messages.add(message)


@pytest.mark.parametrize('encoding', ['8UC1', '8UC3', 'mono16', 'bgr16', 'nv24', 'x16UC1'])
def test_other_encodings_are_not_refused_as_depth(encoding):
    check_has_colors(encoding)
