# SPDX-License-Identifier: Apache-2.0
"""Tests that bytes of each encoding become a Frame or an ImageError with a reason."""

import array

import numpy as np
import pytest

from support.oracles.reference_images import BYTES_PER_PIXEL, ENCODINGS, byte_rows, fits, row_bytes
from support.properties import given, settings, st
from trt_perception.errors import ImageError, TrtPerceptionError
from trt_perception.images.frame import (
    MAX_FRAME_BYTES,
    MAX_SIDE,
    PIXEL_FORMATS,
    Frame,
    frame_from_bgr,
)


def view(data=bytes(12), width=2, height=2, step=6, encoding='bgr8', **more):
    return Frame.view(data, width=width, height=height, step=step, encoding=encoding, **more)


def test_supported_encodings_equal_the_expected_list():
    assert {name: entry.name for name, entry in PIXEL_FORMATS.items()} == ENCODINGS


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_number_of_byte_rows_and_image_height_are_inverse(encoding):
    for height in (4, 6, 480, MAX_SIDE - 1):
        assert PIXEL_FORMATS[encoding].byte_row_count(height) == byte_rows(encoding, height)
        assert PIXEL_FORMATS[encoding].image_height(byte_rows(encoding, height)) == height


def test_table_of_pixel_formats_cannot_be_changed():
    with pytest.raises(TypeError):
        PIXEL_FORMATS['mine'] = PIXEL_FORMATS['bgr8']


@pytest.mark.parametrize('padding', [0, 1, 5, 64])
@pytest.mark.parametrize('size_wh', [(4, 4), (6, 8), (640, 480)])
def test_every_encoding_is_accepted_with_any_stride(padding, size_wh):
    width, height = size_wh
    for encoding in ENCODINGS:
        used = row_bytes(encoding, width)
        rows = np.arange(byte_rows(encoding, height) * (used + padding)).astype(np.uint8)
        frame = view(rows, width, height, used + padding, encoding)
        assert (frame.width, frame.height, frame.step) == (width, height, used + padding)
        assert frame.format.name == ENCODINGS[encoding]
        plane = frame.plane()
        assert plane.shape == (byte_rows(encoding, height), used), encoding
        assert np.array_equal(plane, rows.reshape(-1, used + padding)[:, :used]), encoding
        assert np.shares_memory(plane, rows), encoding


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_smallest_image_of_each_encoding_is_accepted(encoding):
    side = next(side for side in (1, 2, 3) if fits(encoding, side, side))
    size = byte_rows(encoding, side) * row_bytes(encoding, side)
    frame = view(bytes(size), side, side, row_bytes(encoding, side), encoding)
    assert frame.data.size == size
    if side > 1:
        with pytest.raises(ImageError):
            view(bytes(64), side - 1, side - 1, row_bytes(encoding, side - 1), encoding)


def test_image_side_above_the_limit_is_refused(golden_messages):
    assert view(bytes(32767), 32767, 1, 32767, 'mono8').width == 32767
    assert view(bytes(32767), 1, 32767, 1, 'mono8').height == 32767
    for width, height in ((32768, 1), (1, 32768)):
        with golden_messages.raises(ImageError):
            view(bytes(32768), width, height, width, 'mono8')


OWNERS = {
    'bytes': bytes,
    'bytearray': bytearray,
    'array.array': lambda raw: array.array('B', raw),
    'memoryview': memoryview,
    'read-only memoryview': lambda raw: memoryview(bytearray(raw)).toreadonly(),
    'ndarray': lambda raw: np.array(list(raw), np.uint8),
    'ndarray of rows': lambda raw: np.array(list(raw), np.uint8).reshape(2, 6),
    'array.array of 16 bits': lambda raw: array.array('H', raw),
}


@pytest.mark.parametrize('make', OWNERS.values(), ids=OWNERS.keys())
def test_all_buffer_types_are_viewed_without_a_copy(make):
    owner = make(bytes(range(12)))
    frame = view(owner)
    assert frame.data.tolist() == list(range(12))
    assert np.shares_memory(frame.data, np.frombuffer(owner, np.uint8))


def test_view_shows_changes_of_its_buffer_and_stays_read_only():
    owner = array.array('B', bytes(12))
    frame = view(owner)
    owner[7] = 99
    assert frame.data[7] == 99
    assert not view(bytes(12)).data.flags.writeable


def test_frame_keeps_the_byte_order():
    assert view(bytes(2), 1, 1, 2, 'mono16', big_endian=True).big_endian
    assert not view(bytes(2), 1, 1, 2, 'mono16').big_endian


# Each fault with the expected reason. The golden file has the messages.
REFUSED = {
    'no encoding': ({'encoding': ''}, 'unknown_encoding'),
    'unknown encoding': ({'encoding': '32FC1'}, 'unknown_encoding'),
    'encoding in capital letters': ({'encoding': 'BGR8'}, 'unknown_encoding'),
    'no bytes': ({'data': b''}, 'bad_length'),
    'no width': ({'width': 0}, 'bad_size'),
    'no height': ({'height': 0}, 'bad_size'),
    'negative width': ({'width': -2}, 'bad_size'),
    'negative height': ({'height': -2}, 'bad_size'),
    'too wide': ({'width': MAX_SIDE + 1, 'step': 10**6}, 'bad_size'),
    'too high': ({'height': 2**32 - 1}, 'bad_size'),
    'step 0': ({'step': 0}, 'bad_step'),
    'negative step': ({'step': -6}, 'bad_step'),
    'step one too small': ({'step': 5}, 'bad_step'),
    'one byte too few': ({'data': bytes(11)}, 'bad_length'),
    'one byte too many': ({'data': bytes(13)}, 'bad_length'),
    'last row without its padding': ({'data': bytes(14), 'step': 8}, 'bad_length'),
    'huge step': ({'step': 2**32 - 1}, 'bad_length'),
    'nv12 without chroma': ({'data': bytes(4), 'step': 2, 'encoding': 'nv12'}, 'bad_length'),
    'mono16 counts two bytes': ({'step': 3, 'encoding': 'mono16'}, 'bad_step'),
    'bayer without neighbours': (
        {'data': bytes(8), 'width': 4, 'step': 4, 'encoding': 'bayer_rggb8'},
        'bad_size',
    ),
}


@pytest.mark.parametrize(('change', 'reason'), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_image_is_refused_with_its_reason(change, reason, golden_messages):
    with golden_messages.raises(ImageError) as caught:
        view(**change)
    assert caught.value.reason == reason
    assert isinstance(caught.value, TrtPerceptionError)


def test_image_above_the_byte_limit_is_refused(golden_messages):
    data = np.zeros(MAX_FRAME_BYTES + 1, np.uint8)  # never written, so the pages need no memory
    assert view(data[:MAX_FRAME_BYTES], 2, 1, MAX_FRAME_BYTES).step == MAX_FRAME_BYTES
    with golden_messages.raises(ImageError) as caught:
        view(data, 2, 1, MAX_FRAME_BYTES + 1)
    assert caught.value.reason == 'too_large'


@pytest.mark.parametrize(
    ('encodings', 'size_wh'),
    [
        (['uyvy', 'yuyv', 'yuv422', 'yuv422_yuy2'], (3, 2)),
        (['uyvy', 'yuyv', 'yuv422', 'yuv422_yuy2'], (1, 1)),
        (['nv12', 'nv21'], (3, 2)),
        (['nv12', 'nv21'], (2, 3)),
        (['nv12', 'nv21'], (1, 1)),
    ],
)
def test_odd_sizes_are_refused_if_pixels_share_chroma(encodings, size_wh, golden_messages):
    width, height = size_wh
    for encoding in encodings:
        step = row_bytes(encoding, width)
        data = bytes(step * byte_rows(encoding, height))
        with golden_messages.raises(ImageError) as caught:
            view(data, width, height, step, encoding)
        assert caught.value.reason == 'odd_size'


@pytest.mark.parametrize('encoding', ['uyvy', 'yuyv', 'yuv422', 'yuv422_yuy2'])
def test_packed_yuv_accepts_odd_heights(encoding):
    assert view(bytes(12), 2, 3, 4, encoding).height == 3


REASONS = {'unknown_encoding', 'bad_size', 'odd_size', 'bad_step', 'bad_length'}
integers = st.one_of(st.integers(-2, 9), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63))


@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=200),
    integers,
    integers,
    integers,
    st.one_of(st.sampled_from(sorted(ENCODINGS)), st.text(max_size=12)),
    st.booleans(),
)
def test_arbitrary_descriptions_are_valid_or_refused(data, width, height, step, encoding, big):
    reason = ''
    try:
        frame = view(data, width, height, step, encoding, big_endian=big)
    except ImageError as error:
        reason = error.reason
    if reason:
        assert reason in REASONS
        return
    assert fits(encoding, width, height)
    assert len(data) == step * byte_rows(encoding, height)
    assert frame.plane().shape == (byte_rows(encoding, height), row_bytes(encoding, width))


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(ENCODINGS)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 20),
    st.integers(-1, 1),
)
def test_only_the_exact_number_of_bytes_is_accepted(encoding, width, height, padding, error):
    step = row_bytes(encoding, width) + padding
    data = bytes(max(0, step * byte_rows(encoding, height) + error))
    if error == 0 and fits(encoding, width, height):
        assert view(data, width, height, step, encoding).data.size == len(data)
    else:
        with pytest.raises(ImageError):
            view(data, width, height, step, encoding)


def test_encodings_have_the_expected_bytes_per_pixel():
    for name, entry in PIXEL_FORMATS.items():
        assert entry.bytes_per_pixel == BYTES_PER_PIXEL.get(ENCODINGS[name], 1)


def test_frame_from_bgr_has_the_size_and_pixels_of_the_image():
    bgr = np.random.default_rng(7).integers(0, 256, (6, 8, 3), np.uint8)

    frame = frame_from_bgr(bgr[:, 1:6])

    assert (frame.width, frame.height, frame.step) == (5, 6, 15)
    assert frame.format is PIXEL_FORMATS['bgr8']
    assert (frame.data.reshape(6, 5, 3) == bgr[:, 1:6]).all()


def test_frame_from_contiguous_bgr_does_not_copy_the_pixels():
    bgr = np.zeros((6, 8, 3), np.uint8)

    assert np.shares_memory(frame_from_bgr(bgr).data, bgr)
