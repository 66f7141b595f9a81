# SPDX-License-Identifier: Apache-2.0
"""Test the outlines of masks, with OpenCV's filled polygons as the reference."""

import cv2
import numpy as np
import pytest

from trt_perception.images.outlines import mask_outlines

SIZE_WH = (64, 48)


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


@pytest.mark.parametrize('seed', range(5))
def test_filled_outlines_are_the_masks(seed):
    numbers = scattered_masks(seed)
    outlines = mask_outlines(Numbers(numbers), boxes_of(numbers, 4), SIZE_WH)
    assert len(outlines) == 4
    assert max(map(len, outlines)) > 1
    for number, lines in enumerate(outlines, 1):
        filled = np.zeros(SIZE_WH[::-1], np.uint8)
        places = [(line - 0.5).astype(np.int32) for line in lines]
        assert all(np.array_equal(line % 1, np.full_like(line, 0.5)) for line in lines)
        cv2.fillPoly(filled, places, 1)  # fills even-odd, so holes stay empty
        assert np.array_equal(filled > 0, numbers == number)


def test_masks_without_pixels_have_no_outline():
    numbers = np.zeros(SIZE_WH[::-1], np.uint16)
    numbers[10, 20] = 2
    boxes = np.array([[0, 0, 5, 5], [19.5, 9.5, 21.5, 11.5], [3, 3, 3, 9]], np.float32)
    first, second, third = mask_outlines(Numbers(numbers), boxes, SIZE_WH)
    assert (first, third) == ([], [])
    assert [line.tolist() for line in second] == [[[20.5, 10.5]]]
    assert mask_outlines(Numbers(numbers), np.empty((0, 4), np.float32), SIZE_WH) == []
