"""Tests of rates, which are either correct or unknown."""

import pytest

from support.properties import given, settings, st
from trt_perception.monitoring.rates import EvenRate


def rate_of(times_s, updates_s):
    """Return the rate of events at `times_s` in Hz, updated at `updates_s`; None if unknown."""
    rate = EvenRate()
    for update_s in updates_s:
        seen = [time_s for time_s in times_s if time_s <= update_s]
        rate.update(len(seen), seen[-1] if seen else 0.0)
    return rate.hz()


def every(period_s, begin_s, end_s):
    return [begin_s + i * period_s for i in range(int((end_s - begin_s) / period_s) + 1)]


HALVES = every(0.5, 0.5, 4.0)
LONGER = every(0.5, 0.5, 6.0)


@pytest.mark.parametrize('hz', [1, 2, 6.5, 30, 1000])
@pytest.mark.parametrize('begin_s', [0.0, 0.3, 0.49, 1.1])
def test_time_before_the_first_event_does_not_affect_the_rate(hz, begin_s):
    assert rate_of(every(1 / hz, begin_s, 6.0), LONGER) == pytest.approx(hz)


@pytest.mark.parametrize(
    'times_s',
    [
        [],
        [1.0],
        [1.0, 2.0, 3.0],  # two intervals are too few
        every(1 / 30, 3.4, 4.0),  # events for only 0.6 s
        every(1 / 30, 0.0, 1.0) + every(1 / 30, 3.3, 4.0),  # a pause
        every(1 / 20, 0.0, 2.4)
        + every(1 / 20, 3.75, 4.0),  # only one update covers the end of the pause
        every(1 / 30, 0.0, 3.3) + every(1 / 10, 3.4, 4.0),  # slower for the last 0.6 s
        [0.9, 0.91, 0.92, 1.9, 1.91, 1.92, 3.4, 3.41],  # bursts
    ],
)
def test_irregular_events_have_no_rate(times_s):
    assert rate_of(times_s, HALVES) is None


def test_rate_after_a_pause_or_a_change_is_the_new_rate():
    pause = every(1 / 30, 0.0, 1.0) + every(1 / 30, 2.2, 4.0)
    assert rate_of(pause, HALVES) == pytest.approx(30)
    slower = every(1 / 30, 0.0, 1.6) + every(1 / 10, 1.7, 4.0)
    assert rate_of(slower, HALVES) == pytest.approx(10)


def test_rate_is_correct_if_updated_at_every_event():
    times_s = every(1 / 30, 0.0, 4.0)
    # Delayed events: the intervals alternate between 3 ms and 63 ms.
    delayed = [time_s + 0.03 * (i % 2) for i, time_s in enumerate(times_s)]
    assert rate_of(delayed, delayed) == pytest.approx(30, rel=0.04)


def test_reset_makes_the_rate_unknown():
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
def test_regular_events_have_the_exact_rate_or_none(hz, begin_s, pauses_s):
    updates_s, now_s = [], 0.0
    for pause_s in pauses_s:
        now_s += pause_s
        updates_s.append(now_s)
    rate_hz = rate_of(every(1 / hz, begin_s, max(begin_s, now_s)), updates_s)
    assert rate_hz is None or rate_hz == pytest.approx(hz, rel=1e-6)
