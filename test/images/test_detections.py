# SPDX-License-Identifier: Apache-2.0
"""Tests that selected detections keep all their values."""

from dataclasses import fields

import numpy as np
import pytest

from trt_perception.images.detections import Detections, MaskGeometry, Masks


def whole(count):
    """Return detections with all fields. Each value of the i-th object is i."""
    numbers = np.arange(count, dtype=np.float32)
    boxes = np.tile(numbers[:, None], (1, 4))
    geometry = MaskGeometry((9, 9), (1, 1), (0, 0))
    return Detections(
        boxes,
        numbers,
        numbers.astype(np.int32),
        keypoints=np.tile(numbers[:, None, None], (1, 2, 3)),
        oriented=np.tile(numbers[:, None], (1, 5)),
        masks=Masks(boxes, numbers[:, None], np.ones((1, 9, 9), np.float32), geometry),
        ids=numbers.astype(np.int64),
        left_out=5,
    )


def test_selected_detections_keep_all_their_values():
    taken = whole(4).take(np.array([2, 0]))

    for field in fields(taken):
        value = getattr(taken, field.name)
        if field.name == 'masks':
            assert value.coefficients.ravel().tolist() == [2, 0]
        elif field.name == 'numbered':
            assert value is None
        elif field.name == 'left_out':
            assert value == 5
        else:
            assert value.reshape(2, -1)[:, 0].tolist() == [2, 0], field.name


def test_selection_keeps_missing_fields_as_none():
    taken = Detections.empty().take(np.zeros(0, np.bool_))

    assert (len(taken), taken.keypoints, taken.oriented, taken.masks) == (0, None, None, None)


class DrawnMasks:
    """An image of mask numbers, as the GPU makes it."""

    def __init__(self, numbers):
        self._numbers = np.array(numbers, np.uint16)

    def number(self, out):
        out[:] = self._numbers


@pytest.mark.parametrize(
    ('which', 'expected'),
    [
        ([0, 1, 2, 3], [[0, 1, 1], [2, 3, 4]]),
        ([1, 3], [[0, 0, 0], [1, 0, 2]]),
        ([3, 1], [[0, 0, 0], [2, 0, 1]]),
        ([False, True, False, True], [[0, 0, 0], [1, 0, 2]]),
        ([], [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_masks_that_the_gpu_drew_get_the_numbers_of_the_selection(which, expected):
    numbers = np.arange(4, dtype=np.float32)
    found = Detections(
        np.tile(numbers[:, None], (1, 4)),
        numbers,
        numbers.astype(np.int32),
        numbered=DrawnMasks([[0, 1, 1], [2, 3, 4]]),
    )
    chosen = np.array(which, np.int64 if not which else None)
    out = np.full((2, 3), 9, np.uint16)

    found.take(chosen).numbered.number(out)

    assert out.tolist() == expected


def test_ids_of_another_length_are_refused():
    with pytest.raises(ValueError, match='ids'):
        Detections.empty().with_ids(np.array([1]))
