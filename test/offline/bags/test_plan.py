# SPDX-License-Identifier: Apache-2.0
"""Tests of spans of time, and of the hash of a bag."""

from types import SimpleNamespace

import pytest

from trt_perception.bags.bag import BagLoss
from trt_perception.errors import ConfigError
from trt_perception.offline.bags.part import MAX_PART_LOSSES
from trt_perception.offline.bags.plan import (
    BagPlan,
    OutputOptions,
    check_times,
    time_span,
    with_inputs,
)

START, END = 1_700_000_000 * 10**9, 1_700_000_100 * 10**9


@pytest.mark.parametrize(
    ('start_s', 'end_s', 'expected'),
    [
        (None, None, (START, END + 1)),
        (10.0, 20.0, (START + 10**10, START + 2 * 10**10)),
        (1_700_000_010.0, 1_700_000_020.0, (START + 10**10, START + 2 * 10**10)),
        (0.0, 1000.0, (START, END + 1)),
        (100.0, None, (END, END + 1)),
        (1.0, 1_800_000_000.0, (START + 10**9, END + 1)),
    ],
)
def test_span_is_relative_or_absolute(start_s, end_s, expected):
    assert time_span('drive', (START, END), start_s, end_s) == expected


@pytest.mark.parametrize(('start_s', 'end_s'), [(101.0, None), (20.0, 20.0), (30.0, 20.0)])
def test_span_without_messages_is_refused(start_s, end_s):
    with pytest.raises(ConfigError):
        time_span('drive', (START, END), start_s, end_s)


def plan(path, span=(0, 1)):
    return BagPlan(str(path), path, OutputOptions(), (), (4, 4), *span)


def test_times_that_rosbag2_cannot_store_are_refused(tmp_path):
    last = 2**63 - 2
    check_times(plan(tmp_path, (last, last + 1)))
    for first in (last + 1, 2**63, 2**64 - 1):
        with pytest.raises(ConfigError):
            check_times(plan(tmp_path, (first, first + 1)))


def inputs(path):
    return with_inputs(plan(path), {}).inputs


@pytest.mark.parametrize(
    'name', ['a.mcap', 'a.MCAP', 'a.db3', 'a.Db3', 'a.mcap.ZSTD', 'a.db3-wal']
)
def test_each_file_that_is_read_belongs_to_the_hash(tmp_path, name):
    (tmp_path / 'a.db3').write_text('before')
    (tmp_path / name).write_text('before')
    before = inputs(tmp_path), inputs(tmp_path / 'a.db3')
    (tmp_path / name).write_text('after!')
    assert inputs(tmp_path) not in before
    if name.startswith('a.db3'):
        assert inputs(tmp_path / 'a.db3') not in before


@pytest.mark.parametrize('count', [0, MAX_PART_LOSSES, MAX_PART_LOSSES + 1, 3000])
def test_damaged_ranges_of_a_part_are_bounded(tmp_path, count):
    (part,) = plan(tmp_path).parts()
    losses = [BagLoss(f'{number}.mcap', None, None, 'cut') for number in range(count)]
    found = part.losses_of(SimpleNamespace(losses=losses))
    assert len(found) == min(count, MAX_PART_LOSSES)
    if count <= MAX_PART_LOSSES:
        assert found == losses
    else:
        assert found[:-1] == losses[: MAX_PART_LOSSES - 1]
        assert str(count - MAX_PART_LOSSES + 1) in found[-1].reason
