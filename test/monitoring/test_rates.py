# SPDX-License-Identifier: Apache-2.0
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
#: By name of the scene: times of the events, times of the updates, and the rate in Hz.
SCENES = {
    'no event': ([], HALVES, None),
    'one event': ([1.0], HALVES, None),
    'two intervals are too few': ([1.0, 2.0, 3.0], HALVES, None),
    'events for only 0.6 s': (every(1 / 30, 3.4, 4.0), HALVES, None),
    'pause': (every(1 / 30, 0.0, 1.0) + every(1 / 30, 3.3, 4.0), HALVES, None),
    'only one update covers the end of the pause': (
        every(1 / 20, 0.0, 2.4) + every(1 / 20, 3.75, 4.0),
        HALVES,
        None,
    ),
    'slower for only 0.6 s': (every(1 / 30, 0.0, 3.3) + every(1 / 10, 3.4, 4.0), HALVES, None),
    'bursts': ([0.9, 0.91, 0.92, 1.9, 1.91, 1.92, 3.4, 3.41], HALVES, None),
    'new rate after a pause': (every(1 / 30, 0.0, 1.0) + every(1 / 30, 2.2, 4.0), HALVES, 30),
    'new rate after a change': (every(1 / 30, 0.0, 1.6) + every(1 / 10, 1.7, 4.0), HALVES, 10),
    **{
        f'{hz} Hz, first event after {begin_s} s': (
            every(1 / hz, begin_s, 6.0),
            every(0.5, 0.5, 6.0),
            hz,
        )
        for hz in (1, 2, 6.5, 30, 1000)
        for begin_s in (0.0, 0.3, 0.49, 1.1)
    },
}


@pytest.mark.parametrize(('times_s', 'updates_s', 'hz'), SCENES.values(), ids=SCENES)
def test_rate_of_each_scene_is_correct_or_unknown(times_s, updates_s, hz):
    assert rate_of(times_s, updates_s) == (hz and pytest.approx(hz))


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
