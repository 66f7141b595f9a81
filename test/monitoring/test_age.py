"""Tests of the age of output. It is known only if image stamps come from the node's clock."""

import pytest

from trt_perception.monitoring.age import AgeOfOutput
from trt_perception.monitoring.percentiles import percentiles

S = 10**9
NOW = 1_700_000_000 * S
SIMULATED = 120 * S


def age_and_problem(stamps_and_clocks, seconds=2.0):
    """Add images within `seconds`. Return the percentiles of their age, and the clock problem."""
    age = AgeOfOutput()
    last = len(stamps_and_clocks) - 1
    for i, (stamp_ns, clock_ns) in enumerate(stamps_and_clocks):
        age.add_stamp(stamp_ns, clock_ns, 50.0 + seconds * i / max(1, last))
    return percentiles(age.ages_ms()), age.clock_problem(50.0 + seconds)


def test_age_is_unknown_before_the_first_image():
    assert age_and_problem([]) == (None, '')


def test_ages_are_in_milliseconds():
    ages = [(NOW - i * 10**6, NOW) for i in range(101)]
    assert age_and_problem(ages) == ((50.0, 99.0), '')


@pytest.mark.parametrize('offset_ns', [S, 0, -S // 10, -599 * S])
def test_age_within_ten_minutes_is_not_a_clock_problem(offset_ns):
    percentiles, note = age_and_problem([(NOW + offset_ns, NOW)] * 3)
    assert percentiles == pytest.approx((-offset_ns * 1e-6,) * 2)
    assert note == ''


def test_image_without_a_stamp_has_no_age_and_no_clock_problem():
    assert age_and_problem([(0, NOW)] * 3) == (None, '')
    assert age_and_problem([(0, 0)] * 3) == (None, '')
    assert age_and_problem([(NOW, NOW), (0, NOW)])[0] == (0.0, 0.0)
    assert age_and_problem([(5, NOW)] * 9 + [(0, NOW)]) == (None, '')


@pytest.mark.parametrize(
    ('stamp_ns', 'clock_ns'),
    [
        (NOW, 0),  # use_sim_time without a publisher of /clock
        (SIMULATED, 0),
        (NOW, SIMULATED),  # a real camera in a simulation
        (SIMULATED, NOW),  # a simulated camera, or a camera whose clock starts at zero
        (-5 * S, NOW),
        (NOW + 5 * S, NOW),
        (NOW - 3 * 86400 * S, NOW),  # a recording
        (NOW - 5400 * S, NOW),
        (NOW - 5 * 3600 * S, NOW),
    ],
)
def test_stamps_of_another_clock_have_no_age_and_a_clock_problem(
    stamp_ns, clock_ns, golden_messages
):
    percentiles, note = age_and_problem([(stamp_ns, clock_ns)] * 3)
    assert percentiles is None
    assert note
    golden_messages.add(note)
    # An earlier known age is not reported either.
    percentiles, note = age_and_problem([(NOW, NOW), *[(stamp_ns, clock_ns)] * 3])
    assert percentiles is None


def test_single_wrong_stamp_is_not_reported():
    assert age_and_problem([(NOW, NOW), (5, NOW)], seconds=0.1)[1] == ''
    percentiles, note = age_and_problem([(5, NOW)] * 9 + [(NOW, NOW)])
    assert percentiles == (0.0, 0.0)
    assert note == ''


def test_clock_that_starts_late_is_not_reported():
    age = AgeOfOutput()
    age.add_stamp(SIMULATED, 0, 1.0)
    assert age.clock_problem(1.4) == ''
    age.add_stamp(SIMULATED, SIMULATED, 1.5)
    assert age.clock_problem(9.0) == ''
    assert percentiles(age.ages_ms()) == (0.0, 0.0)


def test_ages_include_only_the_last_images():
    age = AgeOfOutput(window=2)
    for milliseconds in (500, 10, 20):
        age.add_stamp(NOW - milliseconds * 10**6, NOW, 0.0)
    assert percentiles(age.ages_ms()) == pytest.approx((15.0, 19.9))


def test_images_without_a_stamp_replace_earlier_ages():
    assert age_and_problem([(NOW - 30 * 10**6, NOW), *[(0, NOW)] * 512]) == (None, '')
