"""Rates: right, or not told."""

import pytest

from support.properties import given, settings, st
from trt_perception.monitoring.rates import EvenRate


def rate_of(times_s, looks_s):
    """Return what is told after looks at events that came at these times."""
    rate = EvenRate()
    for look_s in looks_s:
        seen = [time_s for time_s in times_s if time_s <= look_s]
        rate.update(len(seen), seen[-1] if seen else 0.0)
    return rate.hz()


def every(period_s, begin_s, end_s):
    return [begin_s + i * period_s for i in range(int((end_s - begin_s) / period_s) + 1)]


HALVES = every(0.5, 0.5, 4.0)
LONGER = every(0.5, 0.5, 6.0)


@pytest.mark.parametrize('hz', [1, 2, 6.5, 30, 1000])
@pytest.mark.parametrize('begin_s', [0.0, 0.3, 0.49, 1.1])
def test_the_time_before_the_first_event_does_not_count(hz, begin_s):
    assert rate_of(every(1 / hz, begin_s, 6.0), LONGER) == pytest.approx(hz)


@pytest.mark.parametrize(
    'times_s',
    [
        [],
        [1.0],
        [1.0, 2.0, 3.0],  # two intervals are too few
        every(1 / 30, 3.4, 4.0),  # too short
        every(1 / 30, 0.0, 1.0) + every(1 / 30, 3.3, 4.0),  # a pause
        every(1 / 20, 0.0, 2.4) + every(1 / 20, 3.75, 4.0),  # of which one look sees the end
        every(1 / 30, 0.0, 3.3) + every(1 / 10, 3.4, 4.0),  # slower since a moment
        [0.9, 0.91, 0.92, 1.9, 1.91, 1.92, 3.4, 3.41],  # bursts
    ],
)
def test_what_is_not_even_has_no_rate(times_s):
    assert rate_of(times_s, HALVES) is None


def test_after_a_pause_and_after_a_change_it_is_the_new_one():
    pause = every(1 / 30, 0.0, 1.0) + every(1 / 30, 2.2, 4.0)
    assert rate_of(pause, HALVES) == pytest.approx(30)
    slower = every(1 / 30, 0.0, 1.6) + every(1 / 10, 1.7, 4.0)
    assert rate_of(slower, HALVES) == pytest.approx(10)


def test_a_look_at_every_event():
    times_s = every(1 / 30, 0.0, 4.0)
    # Events that waited for each other: the intervals are of 3 and 63 ms.
    shaken = [time_s + 0.03 * (i % 2) for i, time_s in enumerate(times_s)]
    assert rate_of(shaken, shaken) == pytest.approx(30, rel=0.04)


def test_it_can_begin_anew():
    rate = EvenRate()
    for count in range(1, 10):
        rate.update(count, float(count))
    assert rate.hz() == pytest.approx(1)
    rate.reset()
    assert rate.hz() is None


@settings(deadline=None, max_examples=200)
@given(
    st.floats(0.7, 200),
    st.floats(0, 3),
    st.lists(st.floats(0.05, 1.5), min_size=1, max_size=12),
)
def test_an_even_rate_is_told_exactly_or_not_at_all(hz, begin_s, pauses_s):
    looks_s, now_s = [], 0.0
    for pause_s in pauses_s:
        now_s += pause_s
        looks_s.append(now_s)
    told = rate_of(every(1 / hz, begin_s, max(begin_s, now_s)), looks_s)
    assert told is None or told == pytest.approx(hz, rel=1e-6)
