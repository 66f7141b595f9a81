# SPDX-License-Identifier: Apache-2.0
"""Tests of the order of cameras and of the rate limit."""

import random

import pytest

from support.properties import given, settings, st
from trt_perception.scheduling.scheduler import RateLimit, Scheduler


def taken(scheduler, *offers):
    """Put (camera, item) pairs at intervals of a second, and return the next batch."""
    for now, (camera, item) in enumerate(offers):
        scheduler.put(camera, item, now)
    return scheduler.next_batch()


def test_newest_message_replaces_the_waiting_message_of_its_camera():
    scheduler = Scheduler(4)
    assert scheduler.put(0, 'a', 0.0) is None
    assert scheduler.put(1, 'b', 0.1) is None
    assert scheduler.put(0, 'c', 0.2) == 'a'
    assert set(scheduler.waiting_cameras) == {0, 1}
    assert scheduler.next_batch() == ['b', 'c']
    assert not scheduler.waiting_cameras
    assert scheduler.put(0, 'd', 0.3) is None


def test_least_recently_served_camera_is_first_then_the_older_message():
    scheduler = Scheduler(1)
    assert taken(scheduler, (2, 'c'), (0, 'a'), (1, 'b')) == ['c']
    # Camera 2 was served. Of the other cameras, camera 1 has the older message.
    assert taken(scheduler, (2, 'd'), (0, 'e')) == ['b']
    assert taken(scheduler, (1, 'f')) == ['e']
    assert scheduler.next_batch() == ['d']
    assert scheduler.next_batch() == ['f']


def test_batch_has_one_message_of_each_camera():
    scheduler = Scheduler(3)
    assert taken(scheduler, (0, 'a'), (0, 'b'), (0, 'c')) == ['c']
    assert taken(scheduler, *((camera, camera) for camera in (4, 3, 0, 2, 1))) == [4, 3, 2]
    assert scheduler.next_batch() == [1, 0]


def test_camera_that_is_served_rarely_comes_first():
    """A camera with 5 Hz is always served before a camera with 60 Hz."""
    scheduler = Scheduler(1)
    taken(scheduler, (1, 'slow'))
    for number in range(100):
        assert taken(scheduler, (0, number)) == [number]
    assert taken(scheduler, (0, 'fast'), (1, 'slow')) == ['slow']


def test_removed_message_is_in_no_batch():
    scheduler = Scheduler(2)
    scheduler.put(0, 'a', 0.0)
    scheduler.put(1, 'b', 0.0)
    assert scheduler.remove(0) == 'a'
    assert scheduler.remove(0) is None
    assert scheduler.next_batch() == ['b']


def test_wait_for_a_full_batch_ends_after_the_maximum_delay():
    scheduler = Scheduler(3, max_delay_s=1.0)
    scheduler.put(0, 'a', 10.0)
    assert scheduler.next_batch_wait_s(10.25, 8) == 0.75
    # A newer message does not restart the delay, or a fast camera would wait for ever.
    scheduler.put(0, 'b', 10.5)
    scheduler.put(1, 'c', 10.5)
    assert scheduler.next_batch_wait_s(10.5, 8) == 0.5
    assert scheduler.next_batch_wait_s(10.5, 2) <= 0, 'no other camera is enabled'
    assert scheduler.next_batch_wait_s(11.0, 8) <= 0
    scheduler.put(2, 'd', 10.5)
    assert scheduler.next_batch_wait_s(10.5, 8) <= 0, 'the batch is full'
    scheduler.next_batch()
    scheduler.put(0, 'e', 11.0)
    assert scheduler.next_batch_wait_s(11.0, 8) == 1.0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.randoms(use_true_random=False))
def test_waiting_camera_misses_at_most_one_round_of_batches(cameras, batch, rng):
    """Between two batches, a random number of cameras has a new message."""
    scheduler = Scheduler(batch)
    passed = dict.fromkeys(range(cameras), 0)
    for step in range(40):
        for camera in rng.choices(range(cameras), k=rng.randint(1, 2 * cameras)):
            scheduler.put(camera, camera, step)
        waiting = set(scheduler.waiting_cameras)
        chosen = scheduler.next_batch()
        assert len(set(chosen)) == len(chosen) == min(batch, len(waiting))
        for camera in waiting:
            passed[camera] = 0 if camera in chosen else passed[camera] + 1
        assert max(passed.values()) <= -(-cameras // batch)


# Rate limit


def passes(rate_hz, times):
    """Return the times whose messages are allowed."""
    limit = RateLimit()
    return [when for when in times if limit.allows(when, rate_hz)]


@pytest.mark.parametrize('late', [0.0, 0.2, 0.49])
@pytest.mark.parametrize('rate_hz', [0.5, 5.0, 29.97, 30.0])
def test_camera_at_or_below_the_rate_loses_no_message(rate_hz, late):
    rng = random.Random(1)
    for camera_hz in (rate_hz, 0.9 * rate_hz, 0.1 * rate_hz):
        times = [(number + late * rng.random()) / camera_hz for number in range(2000)]
        assert passes(rate_hz, times) == times


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.09, 0.1, 0.11, 0.3, 2.0]), max_size=200),
)
def test_rate_is_limited_on_average_and_in_bursts(gaps):
    times = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    through = passes(10.0, times)
    for first in range(len(through)):
        for last in range(first + 1, len(through)):
            # n messages take at least n - 1.5 periods, so two messages are half a period apart.
            assert through[last] - through[first] >= (last - first - 0.5) * 0.1 - 1e-9


@pytest.mark.parametrize(('camera_hz', 'rate_hz'), [(60, 25), (30, 29), (100, 1), (1000, 30)])
def test_messages_of_a_faster_camera_are_allowed_at_nearly_the_rate(camera_hz, rate_hz):
    times = [number / camera_hz for number in range(camera_hz * 20)]
    assert 0.95 * rate_hz * 20 <= len(passes(rate_hz, times)) <= rate_hz * 20 + 2


def test_new_rate_applies_at_once():
    limit = RateLimit()
    assert limit.allows(0.0, 0.01)
    assert not limit.allows(1.0, 0.01)
    assert limit.allows(1.0, 10.0), 'the limit waits for the end of the old period'


def test_new_rate_applies_at_once_after_an_early_message():
    limit = RateLimit()
    assert limit.allows(0.0, 0.01)
    assert limit.allows(50.0, 0.01), 'half a period early'
    # The next message is allowed at the latest one period of the new rate later.
    assert [t for t in (50.0, 50.05, 50.1, 50.2) if limit.allows(t, 10.0)] == [50.1, 50.2]
