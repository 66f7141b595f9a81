"""Who is served next, and what is above a rate."""

import random

import pytest

from support.properties import given, settings, st
from trt_perception.scheduling.scheduler import RateLimit, Scheduler


def taken(scheduler, *offers):
    """Offer (camera, item), each a second after the other, and return the next batch."""
    for now, (camera, item) in enumerate(offers):
        scheduler.put(camera, item, now)
    return scheduler.next_batch()


def test_newest_wins_in_each_mailbox():
    scheduler = Scheduler(4)
    assert scheduler.put(0, 'a', 0.0) is None
    assert scheduler.put(1, 'b', 0.1) is None
    assert scheduler.put(0, 'c', 0.2) == 'a'
    assert set(scheduler.waiting_cameras) == {0, 1}
    assert scheduler.next_batch() == ['b', 'c']
    assert not scheduler.waiting_cameras
    assert scheduler.put(0, 'd', 0.3) is None


def test_the_camera_longest_unserved_is_first_and_of_equals_the_older_message():
    scheduler = Scheduler(1)
    assert taken(scheduler, (2, 'c'), (0, 'a'), (1, 'b')) == ['c']
    # 2 was served; of the others, which never were, 1 has the older message now.
    assert taken(scheduler, (2, 'd'), (0, 'e')) == ['b']
    assert taken(scheduler, (1, 'f')) == ['e']
    assert scheduler.next_batch() == ['d']
    assert scheduler.next_batch() == ['f']


def test_a_batch_has_one_message_of_each_camera():
    scheduler = Scheduler(3)
    assert taken(scheduler, (0, 'a'), (0, 'b'), (0, 'c')) == ['c']
    assert taken(scheduler, *((camera, camera) for camera in (4, 3, 0, 2, 1))) == [4, 3, 2]
    assert scheduler.next_batch() == [1, 0]


def test_one_who_never_waits_in_vain_is_served_first_when_it_comes():
    """A camera of 5 Hz beside one of 60 Hz: the slow one never loses to the fast one."""
    scheduler = Scheduler(1)
    taken(scheduler, (1, 'slow'))
    for number in range(100):
        assert taken(scheduler, (0, number)) == [number]
    assert taken(scheduler, (0, 'fast'), (1, 'slow')) == ['slow']


def test_what_is_withdrawn_is_not_taken():
    scheduler = Scheduler(2)
    scheduler.put(0, 'a', 0.0)
    scheduler.put(1, 'b', 0.0)
    assert scheduler.remove(0) == 'a'
    assert scheduler.remove(0) is None
    assert scheduler.next_batch() == ['b']


def test_how_long_a_batch_may_wait_to_be_filled():
    scheduler = Scheduler(3, max_delay_s=1.0)
    scheduler.put(0, 'a', 10.0)
    assert scheduler.next_batch_wait_s(10.25, 8) == 0.75
    # A newer message does not begin the time anew: the camera would wait for ever.
    scheduler.put(0, 'b', 10.5)
    scheduler.put(1, 'c', 10.5)
    assert scheduler.next_batch_wait_s(10.5, 8) == 0.5
    assert scheduler.next_batch_wait_s(10.5, 2) <= 0, 'nobody else could come'
    assert scheduler.next_batch_wait_s(11.0, 8) <= 0
    scheduler.put(2, 'd', 10.5)
    assert scheduler.next_batch_wait_s(10.5, 8) <= 0, 'it is full'
    scheduler.next_batch()
    scheduler.put(0, 'e', 11.0)
    assert scheduler.next_batch_wait_s(11.0, 8) == 1.0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.randoms(use_true_random=False))
def test_nobody_is_passed_over_more_often_than_the_others_need(cameras, batch, rng):
    """However the messages come: between two batches any number of cameras offers one."""
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


# Rates.


def passes(rate_hz, times):
    """Return those of the times at which a message is let through."""
    limit = RateLimit()
    return [when for when in times if limit.allows(when, rate_hz)]


@pytest.mark.parametrize('late', [0.0, 0.2, 0.49])
@pytest.mark.parametrize('rate_hz', [0.5, 5.0, 29.97, 30.0])
def test_a_camera_of_the_rate_or_less_loses_nothing(rate_hz, late):
    rng = random.Random(1)
    for camera_hz in (rate_hz, 0.9 * rate_hz, 0.1 * rate_hz):
        times = [(number + late * rng.random()) / camera_hz for number in range(2000)]
        assert passes(rate_hz, times) == times


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.09, 0.1, 0.11, 0.3, 2.0]), max_size=200),
)
def test_never_above_the_rate_on_average_nor_in_bursts(gaps):
    times = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    through = passes(10.0, times)
    for first in range(len(through)):
        for last in range(first + 1, len(through)):
            # n messages take n - 1.5 periods at least, so two are half a period apart.
            assert through[last] - through[first] >= (last - first - 0.5) * 0.1 - 1e-9


@pytest.mark.parametrize(('camera_hz', 'rate_hz'), [(60, 25), (30, 29), (100, 1), (1000, 30)])
def test_a_faster_camera_comes_close_to_the_rate(camera_hz, rate_hz):
    times = [number / camera_hz for number in range(camera_hz * 20)]
    assert 0.95 * rate_hz * 20 <= len(passes(rate_hz, times)) <= rate_hz * 20 + 2


def test_a_new_rate_holds_at_once():
    limit = RateLimit()
    assert limit.allows(0.0, 0.01)
    assert not limit.allows(1.0, 0.01)
    assert limit.allows(1.0, 10.0), 'or it would wait for the rest of the old period'


def test_a_new_rate_holds_at_once_after_one_that_came_early():
    limit = RateLimit()
    assert limit.allows(0.0, 0.01)
    assert limit.allows(50.0, 0.01), 'half a period early'
    # Counted from that one: at the latest one period of the new rate after it.
    assert [t for t in (50.0, 50.05, 50.1, 50.2) if limit.allows(t, 10.0)] == [50.1, 50.2]
