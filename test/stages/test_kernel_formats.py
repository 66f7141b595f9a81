# SPDX-License-Identifier: Apache-2.0
"""The kernels handle each pixel format. pixels.cuh reads a format without a case as Bayer.

The tests need no GPU: they read the source of the kernels and the format numbers.
"""

import re
from pathlib import Path

import trt_perception
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.stages.frame_header import FORMAT_NUMBERS

KERNELS = Path(trt_perception.__file__).parent / 'stages' / 'kernels'
PIXELS = (KERNELS / 'pixels.cuh').read_text(encoding='utf-8')
# `pixel_at` has no case for these patterns. It reads them as 8-bit Bayer samples.
BAYER = {'bayer_rggb8', 'bayer_bggr8', 'bayer_gbrg8', 'bayer_grbg8'}


def body(function):
    """Return the text of one function of pixels.cuh."""
    return re.search(
        rf'^__device__ [^\n]*\b{function}\(.*?\n}}', PIXELS, re.MULTILINE | re.DOTALL
    )[0]


def formats(pattern, text):
    return [name.lower() for name in re.findall(pattern, text)]


def test_each_format_has_a_case_or_is_an_8_bit_bayer_pattern():
    cases = formats(r'case FORMAT_(\w+):', body('pixel_at'))
    assert len(cases) == len(set(cases))
    assert {*cases, *BAYER} == {known.name for known in PIXEL_FORMATS.values()}
    assert not BAYER & {*cases}


def test_is_bayer_accepts_exactly_the_bayer_patterns():
    first, last = formats(r'frame->format [<>]= FORMAT_(\w+)', body('is_bayer'))
    between = range(FORMAT_NUMBERS[first], FORMAT_NUMBERS[last] + 1)
    assert {name for name, number in FORMAT_NUMBERS.items() if number in between} == BAYER


def test_red_pixels_are_where_the_pattern_has_them():
    # A pattern's name has its 2 x 2 pixels row by row. No function needs to name rggb, because
    # its first pixel is red.
    for function, shifted in (('column_of_red', 1), ('row_of_red', 2)):
        named = formats(r'== FORMAT_(\w+)', body(function))
        red = {name: name.removeprefix('bayer_').index('r') for name in BAYER}
        assert set(named) == {name for name, place in red.items() if place & shifted}


def test_kernels_use_only_existing_formats():
    named = {
        name
        for file in KERNELS.iterdir()
        for name in formats(r'\bFORMAT_(\w+)', file.read_text(encoding='utf-8'))
    }
    assert named <= set(FORMAT_NUMBERS)
