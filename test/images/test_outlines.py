# SPDX-License-Identifier: Apache-2.0
"""Test the outlines of masks, with OpenCV's contours and filled polygons as the reference."""

import math

import cv2
import numpy as np
import pytest

from trt_perception.images.outlines import mask_outlines

SIZE_WH = (64, 48)
# In pixels on which a mask is traced.
MAX_DISTANCE = 3


class Numbers:
    """Masks that are given as an image of their numbers."""

    def __init__(self, numbers):
        self._numbers = numbers

    def number(self, out):
        out[:] = self._numbers


def boxes_of(numbers, count):
    """Return the tight box of each mask: float32 (count, 4)."""
    boxes = np.zeros((count, 4), np.float32)
    for index in range(count):
        rows, columns = np.nonzero(numbers == index + 1)
        if rows.size:
            boxes[index] = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return boxes


def scattered_masks(seed):
    """Return numbers of four masks that have several parts and holes, and cover each other."""
    rng = np.random.default_rng(seed)
    noise = cv2.GaussianBlur(rng.random((4, *SIZE_WH[::-1])).transpose(1, 2, 0), (0, 0), 2)
    numbers = np.zeros(SIZE_WH[::-1], np.uint16)
    for index in range(4, 0, -1):
        numbers[noise[..., index - 1] > 0.52] = index
    return numbers


def edge_distance(mask):
    """Return the distance of each pixel to the contour that OpenCV finds, in pixels."""
    lines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    off_edge = np.ones(mask.shape, np.uint8)
    for line in lines:
        off_edge[line[:, 0, 1], line[:, 0, 0]] = 0
    return cv2.distanceTransform(off_edge, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)


def greatest_distance(lines, mask, *, corners_only=False):
    """Return the greatest distance in pixels of a closed line's points to the mask's edge."""
    distances = edge_distance(mask)
    greatest = 0.0
    for line in lines:
        points = line - 0.5
        if not corners_only:
            shares = np.linspace(0, 1, 200)[:, None, None]
            points = ((1 - shares) * points + shares * np.roll(points, -1, axis=0)).reshape(-1, 2)
        columns, rows = np.rint(points).astype(int).T
        greatest = max(greatest, distances[rows, columns].max())
    return greatest


def filled(lines, shape):
    out = np.zeros(shape, np.uint8)
    cv2.fillPoly(out, [(line - 0.5).astype(np.int32) for line in lines], 1)  # holes stay empty
    return out > 0


@pytest.mark.parametrize('seed', range(5))
def test_filled_outlines_differ_from_the_masks_only_near_their_edges(seed):
    numbers = scattered_masks(seed)
    outlines = mask_outlines(Numbers(numbers), boxes_of(numbers, 4), SIZE_WH)
    assert len(outlines) == 4
    assert max(map(len, outlines)) > 1
    for number, lines in enumerate(outlines, 1):
        mask = numbers == number
        assert greatest_distance(lines, mask) <= MAX_DISTANCE
        is_different = filled(lines, mask.shape) != mask
        assert edge_distance(mask)[is_different].max() <= MAX_DISTANCE


def drawn_mask(size_wh, kind):
    """Return a mask that reaches all sides of its box: bool (height, width)."""
    width, height = size_wh
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(1).random((height, width))
    radius = np.hypot((rows + 0.5) / height - 0.5, (columns + 0.5) / width - 0.5)
    return {
        'ellipse': radius < 0.5,
        'ring': (radius < 0.5) & (radius > 0.25),
        'noisy edge': radius + 0.2 * noise < 0.5,
        'noise': noise > 0.5,
        'dots': (rows % 2 == 0) & (columns % 2 == 0),
        'squares': (rows // 2 + columns // 2) % 2 == 0,
        'comb': ((rows % 4 < 2) & (columns < width - 2)) | (columns < 2),
        'full': rows >= 0,
    }[kind]


def scene(count, size_wh, kind):
    """Return `count` masks next to each other, their boxes, and the size of the image."""
    columns = math.ceil(math.sqrt(count))
    width, height = size_wh
    numbers = np.zeros((columns * height, columns * width), np.uint16)
    boxes = np.zeros((count, 4), np.float32)
    mask = drawn_mask(size_wh, kind)
    for index in range(count):
        left, top = index % columns * width, index // columns * height
        boxes[index] = left, top, left + width, top + height
        numbers[top : top + height, left : left + width][mask] = index + 1
    return numbers, boxes, numbers.shape[::-1]


@pytest.mark.parametrize('kind', ['ellipse', 'ring', 'full'])
@pytest.mark.parametrize(
    ('count', 'size_wh', 'step'),
    [
        (1, (256, 256), 1),
        (1, (257, 256), 2),
        (1, (1000, 1000), 4),
        (1, (16, 4000), 1),
        (32, (256, 256), 1),
        (128, (256, 256), 2),
    ],
)
def test_outlines_lie_near_the_edges_of_large_masks(count, size_wh, step, kind):
    numbers, boxes, image_wh = scene(count, size_wh, kind)
    outlines = mask_outlines(Numbers(numbers), boxes, image_wh)
    assert all(len(lines) == (2 if kind == 'ring' else 1) for lines in outlines)
    for index in (0, count - 1):
        mask = numbers == index + 1
        assert greatest_distance(outlines[index], mask) <= MAX_DISTANCE * step
        is_different = filled(outlines[index], mask.shape) != mask
        assert np.count_nonzero(is_different) < 0.1 * np.count_nonzero(mask) + 4


@pytest.mark.parametrize('kind', ['noisy edge', 'noise', 'dots', 'squares', 'comb', 'ellipse'])
@pytest.mark.parametrize(
    ('count', 'size_wh'), [(1, (1000, 600)), (10, (300, 300)), (300, (96, 72)), (1024, (60, 40))]
)
def test_points_of_outlines_never_exceed_the_limits(count, size_wh, kind):
    numbers, boxes, image_wh = scene(count, size_wh, kind)
    outlines = mask_outlines(Numbers(numbers), boxes, image_wh)
    points = [sum(map(len, lines)) for lines in outlines]
    assert len(points) == count
    assert max(points) <= 512
    assert sum(points) <= 32_768
    step = math.ceil(math.sqrt(size_wh[0] * size_wh[1] / min(65_536, 2**21 // count)))
    mask = numbers == 1
    distance = greatest_distance(outlines[0], mask, corners_only=True)
    assert distance <= MAX_DISTANCE * step
    if kind in ('noisy edge', 'ellipse'):
        assert all(points)


def test_masks_with_lower_scores_have_no_outlines_once_too_many_lines_are_found():
    numbers, boxes, image_wh = scene(40, (100, 100), 'squares')
    outlines = mask_outlines(Numbers(numbers), boxes, image_wh)
    mask = numbers[:100, :100] == 1
    traced, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    count = math.ceil(16_384 / len(traced))
    assert 10 < count < 20
    # No hole has a share of the points, so only the line around the mask remains.
    assert [len(lines) for lines in outlines] == [1] * count + [0] * (40 - count)


def test_specks_are_left_out():
    numbers = np.zeros(SIZE_WH[::-1], np.uint16)
    numbers[10:40, 10:50] = 1
    specks = np.random.default_rng(1).random(numbers.shape) < 0.05
    numbers[specks] = 1 - numbers[specks]
    (lines,) = mask_outlines(Numbers(numbers), np.array([[0, 0, 64, 48]], np.float32), SIZE_WH)
    longest = max(lines, key=len)
    expected = np.zeros(numbers.shape, bool)
    expected[10:40, 10:50] = True
    assert greatest_distance([longest], expected) <= MAX_DISTANCE
    assert len(lines) < 5


def test_masks_of_no_pixels_or_one_pixel_have_no_outline():
    numbers = np.zeros(SIZE_WH[::-1], np.uint16)
    numbers[10, 20] = 2
    numbers[30:33, 30:33] = 3
    boxes = np.array(
        [[0, 0, 5, 5], [19.5, 9.5, 21.5, 11.5], [29.5, 29.5, 33, 33], [3, 3, 3, 9]], np.float32
    )
    first, second, third, fourth = mask_outlines(Numbers(numbers), boxes, SIZE_WH)
    assert (first, second, fourth) == ([], [], [])
    assert len(third) == 1
    assert greatest_distance(third, numbers == 3) <= 1
    assert mask_outlines(Numbers(numbers), np.empty((0, 4), np.float32), SIZE_WH) == []
