# SPDX-License-Identifier: Apache-2.0
"""Tests of the letterbox and its inverse against exact arithmetic."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from support.oracles.reference_images import placed
from support.properties import given, settings, st
from trt_perception.images.letterbox import Letterbox
from trt_perception.stages.host_preprocess import resize

with np.load(Path(__file__).parents[1] / 'data' / 'exports' / 'letterboxes.npz') as content:
    RECORDED_SIZES = dict(content)

sides = st.one_of(st.integers(1, 64), st.integers(1, 4096), st.sampled_from([1, 32767]))
sizes = st.tuples(sides, sides)
modes = st.sampled_from(['letterbox', 'stretch'])


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 4)


# (width, height) of source, network input and resized image; left and top padding
TABLE = [
    ((640, 640), (640, 640), (640, 640), 0, 0),
    ((1920, 1080), (640, 640), (640, 360), 0, 140),
    ((1080, 1920), (640, 640), (360, 640), 140, 0),
    ((640, 480), (640, 640), (640, 480), 0, 80),
    ((320, 240), (640, 640), (640, 480), 0, 80),  # small images grow
    ((640, 479), (640, 640), (640, 479), 0, 80),  # 161 rows of padding: 80 above, 81 below
    ((479, 640), (640, 640), (479, 640), 80, 0),
    ((1919, 1079), (640, 640), (640, 360), 0, 140),  # 359.85 rows round to 360
    ((800, 2), (4, 4), (4, 1), 0, 1),  # 0.01 rows round up to one
    ((2, 800), (4, 4), (1, 4), 1, 0),
    ((4, 1), (2, 2), (2, 1), 0, 0),  # exactly half a pixel rounds up
    ((412, 618), (1, 2), (1, 2), 0, 0),  # although 618 * (1 / 412) is below 1.5
    ((32767, 1), (640, 640), (640, 1), 0, 319),
    ((1, 32767), (640, 640), (1, 640), 319, 0),
    ((1, 1), (1, 1), (1, 1), 0, 0),
    ((1280, 720), (640, 384), (640, 360), 0, 12),  # the network input is not square
]


@pytest.mark.parametrize(('source', 'network', 'resized', 'left', 'top'), TABLE)
def test_letterbox_has_the_expected_size_and_padding(source, network, resized, left, top):
    fitted = Letterbox.fit(source, network, 'letterbox')
    assert fitted == Letterbox(source, network, resized, left, top)


@settings(deadline=None, max_examples=100)
@given(sizes, sizes, modes)
def test_letterbox_agrees_with_exact_arithmetic(source, network, mode):
    fitted = Letterbox.fit(source, network, mode)
    resized, left, top = placed(source, network, mode)
    assert (fitted.resized_wh, fitted.pad_left, fitted.pad_top) == (resized, left, top)


@settings(deadline=None, max_examples=100)
@given(sizes, sizes)
def test_letterbox_fills_one_side_keeps_the_shape_and_is_centred(source, network):
    fitted = Letterbox.fit(source, network, 'letterbox')
    width, height = fitted.resized_wh
    assert width == network[0] or height == network[1]
    assert 1 <= width <= network[0]
    assert 1 <= height <= network[1]
    # Each side differs from the common scale by at most half a pixel, but is at least 1.
    scale = min(Fraction(network[0], source[0]), Fraction(network[1], source[1]))
    for side, resized in zip(source, (width, height), strict=True):
        assert resized == 1 or abs(resized - side * scale) <= Fraction(1, 2)
    # The padding is symmetric. An odd pixel goes to the right or the bottom.
    assert network[0] - width - fitted.pad_left - fitted.pad_left in (0, 1)
    assert network[1] - height - fitted.pad_top - fitted.pad_top in (0, 1)


@given(sizes, sizes)
@settings(deadline=None, max_examples=50)
def test_top_left_letterbox_has_the_same_size_without_leading_padding(source, network):
    centred = Letterbox.fit(source, network, 'letterbox')
    expected = Letterbox(source, network, centred.resized_wh, 0, 0)
    assert Letterbox.fit(source, network, 'letterbox_top_left') == expected


def test_top_left_letterbox_maps_known_boxes():
    fitted = Letterbox.fit((1920, 1080), (640, 640), 'letterbox_top_left')
    assert fitted == Letterbox((1920, 1080), (640, 640), (640, 360), 0, 0)
    boxes = np.float32([[0, 0, 640, 360], [10, 20, 30, 40], [0, 360, 640, 640]])
    expected = [[0, 0, 1920, 1080], [30, 60, 90, 120], [0, 1080, 1920, 1080]]
    assert fitted.to_source(boxes).tolist() == expected


@given(sizes, sizes)
@settings(deadline=None, max_examples=50)
def test_stretch_fills_the_input(source, network):
    assert Letterbox.fit(source, network, 'stretch') == Letterbox(source, network, network, 0, 0)


@settings(deadline=None, max_examples=100)
@given(sizes, sizes, modes, st.data())
def test_to_source_inverts_the_forward_mapping(source, network, mode, data):
    fitted = Letterbox.fit(source, network, mode)
    share = st.fractions(0, 1, max_denominator=1000)
    point = data.draw(st.tuples(share, share, share, share))
    origin = [side * part for side, part in zip(source * 2, point, strict=True)]
    # With half-pixel centres, source coordinate x maps to x * resized / source + padding.
    (width, height), left, top = placed(source, network, mode)
    forward = [
        origin[axis] * Fraction((width, height)[axis % 2], source[axis % 2])
        + (left, top)[axis % 2]
        for axis in range(4)
    ]
    back = fitted.to_source(boxes([float(value) for value in forward]))[0]
    assert back.dtype == np.float32
    # float32 has a relative error of 2**-24, and the ratio scales this error.
    for axis in range(4):
        ratio = source[axis % 2] / (width, height)[axis % 2]
        tolerance = 2**-22 * (network[axis % 2] * ratio + source[axis % 2])
        assert abs(float(back[axis]) - float(origin[axis])) <= tolerance


def test_empty_boxes_keep_their_shape_and_dtype():
    fitted = Letterbox.fit((1920, 1080), (640, 640), 'letterbox')
    mapped = fitted.to_source(boxes())
    assert mapped.shape == (0, 4)
    assert mapped.dtype == np.float32


def test_corners_of_the_image_are_mapped_back_exactly():
    for source, network, resized, left, top in TABLE:
        fitted = Letterbox.fit(source, network, 'letterbox')
        whole = boxes([left, top, left + resized[0], top + resized[1]])
        assert fitted.to_source(whole).tolist() == [[0, 0, *map(float, source)]]


@pytest.mark.parametrize(
    ('box', 'expected'),
    [
        ((0, 0, 640, 640), (0, 0, 1920, 1080)),  # the padding is clipped
        ((-50, 100, 700, 320), (0, 0, 1920, 540)),
        ((-100, -100, -10, -10), (0, 0, 0, 0)),  # completely outside: no area remains
        ((650, 600, 700, 640), (1920, 1080, 1920, 1080)),
        ((160, 230, 320, 320), (480, 270, 960, 540)),  # inside: unchanged by clipping
        ((-3e38, -3e38, 3e38, 3e38), (0, 0, 1920, 1080)),
    ],
)
@pytest.mark.filterwarnings('ignore:overflow')
def test_boxes_are_clipped_to_the_image(box, expected):
    fitted = Letterbox.fit((1920, 1080), (640, 640), 'letterbox')
    assert fitted.to_source(boxes(box))[0].tolist() == list(map(float, expected))


@settings(deadline=None, max_examples=100)
@given(sizes, sizes, modes, st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4))
def test_mapped_boxes_stay_inside_the_image(source, network, mode, box):
    mapped = Letterbox.fit(source, network, mode).to_source(boxes(box))[0]
    assert (mapped >= 0).all()
    assert (mapped <= np.array(source * 2)).all()


def test_to_source_does_not_change_its_argument():
    box = boxes([-5, -5, 700, 700])
    Letterbox.fit((100, 50), (64, 64), 'letterbox').to_source(box)
    assert box.tolist() == [[-5, -5, 700, 700]]


@pytest.mark.parametrize(
    ('every', 'count'),
    [
        *((every, count) for every in (*range(1, 17), 23, 31, 64) for count in (1, 2, 45)),
        *((every, 480) for every in (3, 4, 9)),
    ],
)
@pytest.mark.parametrize('round_pixels', [True, False])
def test_only_sampled_rows_affect_the_resized_image(every, count, round_pixels):
    def resized(image):
        pixels = image[..., None]
        return resize(pixels, (4, count), antialias=False, round_pixels=round_pixels)

    rng = np.random.default_rng(every)
    height = every * count
    letterbox = Letterbox.fit((4 * every, height), (4, count), 'letterbox')
    rows = letterbox.needed_rows
    if every < 3:
        assert rows is None
        return
    read = np.zeros((count, every), bool)
    read[:, rows.first_row : rows.first_row + rows.rows_per_group] = True
    assert (rows.distance, rows.group_count) == (every, count)
    image = rng.integers(0, 256, (height, 4 * every), np.uint8)
    other = rng.integers(0, 256, image.shape, np.uint8)
    mixed = np.where(read.reshape(-1, 1), image, other)
    wanted = resized(image)
    np.testing.assert_array_equal(resized(mixed), wanted)
    # Sampling needs each of these rows.
    for row in np.flatnonzero(read)[[0, -1]]:
        changed = image.copy()
        changed[row] = 255 - changed[row]
        assert (resized(changed) != wanted).any()


def test_row_pattern_is_none_for_irregular_rows():
    for height, size in ((1081, 640), (1080, 600), (1080, 1920), (100, 480)):
        assert Letterbox.fit((1920, height), (640, size), 'stretch').needed_rows is None


# (width, height) of source and network input, shorter side, rounding; resized image, left and top
CROPS = [
    ((1920, 1080), (224, 224), 256, 'half_even', (455, 256), -116, -16),  # round(115.5) is 116
    ((1920, 1080), (224, 224), 256, 'down', (455, 256), -115, -16),
    ((517, 333), (224, 224), 256, 'half_even', (397, 256), -86, -16),  # round(86.5) is 86
    ((517, 333), (224, 224), 256, 'down', (397, 256), -86, -16),
    ((333, 517), (224, 224), 224, 'down', (224, 347), 0, -61),
    ((640, 480), (320, 240), 240, 'half_even', (320, 240), 0, 0),
    ((224, 224), (224, 224), 219, 'down', (219, 219), 2, 2),  # padded: 2 left, 3 right
    ((1080, 1920), (320, 240), 240, 'down', (240, 426), 40, -93),  # padded and cropped
    ((1, 32767), (2, 2), 32767, 'down', (32767, 32767**2), -16382, -((32767**2 - 2) // 2)),
]


@pytest.mark.parametrize(
    ('source', 'network', 'shorter_side', 'rounding', 'resized', 'left', 'top'), CROPS
)
def test_crop_has_the_expected_size_and_offset(
    source, network, shorter_side, rounding, resized, left, top
):
    cropped = Letterbox.crop(source, network, shorter_side, rounding)
    assert cropped == Letterbox(source, network, resized, left, top)


@settings(deadline=None, max_examples=100)
@given(sizes, sizes, st.integers(1, 512), st.sampled_from(['half_even', 'down']))
def test_crop_is_centred_and_shows_a_part_of_the_image(source, network, shorter_side, rounding):
    cropped = Letterbox.crop(source, network, shorter_side, rounding)
    image, visible = cropped.image_xyxy, cropped.visible_xyxy
    assert min(cropped.resized_wh) == shorter_side
    for axis, pad in enumerate((cropped.pad_left, cropped.pad_top)):
        after = network[axis] - cropped.resized_wh[axis] - pad
        assert abs(pad - after) <= 2
        length = image[axis + 2] - image[axis]
        assert length == min(network[axis], cropped.resized_wh[axis])
        assert visible[axis + 2] - visible[axis] == length
        assert 0 <= visible[axis] <= visible[axis + 2] <= cropped.resized_wh[axis]


def test_points_of_a_crop_are_mapped_to_the_source():
    cropped = Letterbox.crop((1920, 1080), (224, 224), 270)  # a quarter of the image
    assert cropped == Letterbox((1920, 1080), (224, 224), (480, 270), -128, -23)
    points = np.array([[0, 0], [112, 112], [224, 224]], np.float32)
    assert cropped.points_to_source(points).tolist() == [[512, 92], [960, 540], [1408, 988]]
    assert cropped.to_source(boxes([-999, -999, 999, 999])).tolist() == [[0, 0, 1920, 1080]]


# Exporters, and how each rounds the resized sides.
ROUNDINGS = {
    'ultralytics': 'half_even',
    'yolox': 'down',
    'libreyolo': 'down',
    'shortest_edge': 'longer_down',
    'max_height_width': 'down',
}


@pytest.mark.parametrize(('exporter', 'rounding'), ROUNDINGS.items())
def test_resized_sides_are_those_of_the_exporter(exporter, rounding):
    # test/data/exports/record_letterboxes.py recorded the sizes from the code of the exporters.
    for *sides, width, height in RECORDED_SIZES[exporter].tolist():
        fitted = Letterbox.fit(tuple(sides[:2]), tuple(sides[2:]), 'letterbox', rounding)
        assert fitted.resized_wh == (width, height), sides
        assert fitted.pad_left == (sides[2] - width) // 2
        assert fitted.pad_top == (sides[3] - height) // 2


@pytest.mark.parametrize('rounding', ['half_even', 'down', 'longer_down'])
@settings(deadline=None, max_examples=100)
@given(sizes, sizes)
def test_every_rounding_stays_within_the_input(rounding, source, network):
    width, height = Letterbox.fit(source, network, 'letterbox', rounding).resized_wh
    scale = min(Fraction(network[0], source[0]), Fraction(network[1], source[1]))
    for side, resized, limit in zip(source, (width, height), network, strict=True):
        assert 1 <= resized <= limit
        assert resized == 1 or -1 - 1e-9 <= resized - side * scale <= Fraction(1, 2)
