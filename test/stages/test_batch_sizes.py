# SPDX-License-Identifier: Apache-2.0
"""Tests of which batch sizes a pipeline prepares."""

import pytest

from trt_perception.stages.tensorrt.runtime import batch_sizes


@pytest.mark.parametrize(
    ('ranges', 'max_batch', 'expected'),
    [
        ([], 8, ()),
        ([(1, 1)], 8, (1,)),
        ([(4, 4), (1, 1), (8, 8)], 8, (1, 4, 8)),
        ([(4, 4), (1, 1), (8, 8)], 16, (1, 4, 8)),
        ([(4, 4), (1, 1), (8, 8)], 5, (1, 4, 8)),
        ([(4, 4), (1, 1), (8, 8)], 4, (1, 4)),
        ([(4, 4), (1, 1), (8, 8)], 2, (1, 4)),
        ([(4, 4), (1, 1), (8, 8)], 1, (1,)),
        ([(4, 4)], 1, (4,)),
        ([(1, 8)], 255, (1, 2, 4, 8)),
        ([(1, 6)], 255, (1, 2, 4, 6)),
        ([(1, 6)], 5, (1, 2, 4, 6)),
        ([(1, 6)], 1, (1,)),
        ([(3, 20)], 255, (3, 4, 8, 16, 20)),
        ([(5, 7)], 255, (5, 7)),
        ([(1, 2), (2, 3)], 255, (1, 2, 3)),
        ([(8, 4)], 255, ()),
    ],
)
def test_batch_sizes_follow_the_profiles(ranges, max_batch, expected):
    assert batch_sizes(ranges, max_batch) == expected


def test_each_count_fits_a_batch_less_than_twice_as_large():
    for high in range(1, 40):
        sizes = batch_sizes([(1, high)], 255)
        for count in range(1, high + 1):
            assert min(size for size in sizes if size >= count) < 2 * count
