# SPDX-License-Identifier: Apache-2.0
"""Test which messages are joined, how long detections wait, and what is kept."""

import itertools
import random

import pytest

from trt_perception.boxes_3d.pairing import MAX_KEPT, Pairing, RecentMessages

MS = 1_000_000


def pairing(*depth_ms, others=()):
    made = Pairing(33 * MS, 100 * MS, others)
    for stamp in depth_ms:
        made.depth.add(stamp * MS, 1, stamp)
    return made


def joined(made, stamp_ms, now_ms=0, **options):
    """Add detections, and return their depth, or 'waits'."""
    made.add_detections(stamp_ms * MS, stamp_ms, 0, **options)
    pair = made.pop(now_ms * MS)
    return 'waits' if pair is None else pair.depth


@pytest.mark.parametrize(
    ('depth_ms', 'expected'),
    [
        ((), 'waits'),
        ((1000,), 1000),
        ((990, 1010, 1040), 1010),
        ((1030,), 1030),
        ((1034,), None),  # a later stamp has come, so no nearer one will come
        ((985,), 'waits'),  # the next depth image may be nearer
        ((951, 984), 984),  # the next one is expected at 1017
        ((947, 980), 'waits'),  # the next one is expected at 1013
        ((900, 933), 'waits'),
        ((0, 960), 'waits'),  # after a gap, but too far away: the next one may fit
        ((1000, 1000), 1000),
        ((5000,), None),  # another clock
    ],
)
def test_nearest_stamp_within_the_tolerance_is_joined_as_soon_as_it_is_certain(depth_ms, expected):
    assert joined(pairing(*depth_ms), 1000) == expected


@pytest.mark.parametrize(('depth_ms', 'expected'), [((), None), ((985,), 985), ((960,), None)])
def test_detections_wait_until_their_time_is_over(depth_ms, expected):
    made = pairing(*depth_ms)
    assert joined(made, 1000, now_ms=99) == 'waits'
    assert made.next_time_ns() == 100 * MS
    pair = made.pop(100 * MS)
    assert (pair.detections, pair.depth) == (1000, expected)
    assert pair.depth_offset_ns == (None if not depth_ms else (depth_ms[0] - 1000) * MS)
    assert made.next_time_ns() is None


def test_detections_without_objects_do_not_wait():
    assert joined(pairing(), 1000, needs_depth=False) is None


def test_mask_of_the_same_stamp_is_awaited():
    made = pairing(1000, others=('masks',))
    made.add_other('masks', 999 * MS, 1, 'of another image')
    assert joined(made, 1000, needs=('masks',)) == 'waits'
    made.add_other('masks', 1000 * MS, 1, 'mask')
    pair = made.pop(0)
    assert (pair.others, pair.missing) == ({'masks': 'mask'}, ())


def test_missing_mask_is_awaited_no_longer_than_depth():
    made = pairing(1000, others=('masks',))
    assert joined(made, 1000, 99, needs=('masks',)) == 'waits'
    pair = made.pop(100 * MS)
    assert (pair.depth, pair.others, pair.missing) == (1000, {}, ('masks',))


def test_of_too_many_waiting_detections_the_oldest_is_replaced():
    made = pairing()
    for stamp in range(MAX_KEPT + 2):
        made.add_detections(stamp, stamp, 0)
    assert made.replaced == 2
    assert len(made) == MAX_KEPT
    assert made.pop(made.next_time_ns()).detections == 2


def test_late_detections_are_replaced_if_newer_ones_wait():
    made = pairing(0, 50, 100, 150)
    for stamp in (0, 50, 100):
        made.add_detections(stamp * MS, stamp, stamp * MS)
    # The caller was busy. Detections wait at most 100 ms, and may be 100 ms late.
    pair = made.pop(280 * MS)
    assert (pair.detections, pair.depth, made.replaced) == (100, 100, 2)
    made.add_detections(150 * MS, 150, 150 * MS)
    assert made.pop(10**6 * MS).detections == 150
    assert made.replaced == 2


def test_kept_messages_are_bounded_by_count_and_bytes():
    recent = RecentMessages(max_bytes=100)
    for stamp in range(100):
        recent.add(stamp, 1, stamp)
    assert len(recent) == MAX_KEPT
    recent.add(100, 90, 'large')
    assert len(recent) == 11
    recent.add(101, 1000, 'larger than allowed')
    assert len(recent) == 1
    assert recent.nearest(0) == (101, 'larger than allowed')


def test_each_detection_leaves_once_and_in_order_whatever_the_stamps_are():
    choose = random.Random(3)
    for _ in range(200):
        made = Pairing(33 * MS, 100 * MS, ('masks',))
        left, added, now = [], itertools.count(), 0
        for _ in range(100):
            now += choose.randrange(20 * MS)
            stamp = choose.choice([0, now, choose.randrange(-(2**62), 2**62), now - 40 * MS])
            what = choose.random()
            if what < 0.4:
                needs = ('masks',) if choose.random() < 0.5 else ()
                made.add_detections(stamp, next(added), now, needs=needs)
            elif what < 0.8:
                made.depth.add(stamp, choose.randrange(2**28), None)
            else:
                made.add_other('masks', stamp, 1, None)
            left += iter(lambda now=now, made=made: made.pop(now), None)
            assert len(made) <= MAX_KEPT
            assert made.next_time_ns() is None or made.next_time_ns() > now
        left += iter(lambda now=now, made=made: made.pop(now + 100 * MS), None)
        assert [pair.detections for pair in left] == list(range(next(added)))
