# SPDX-License-Identifier: Apache-2.0
"""Tests of the age of output. It is known only if image stamps come from the node's clock."""

import pytest

from trt_perception.monitoring.age import AgeOfOutput
from trt_perception.monitoring.percentiles import percentiles

MS, S = 10**6, 10**9
NOW = 1_700_000_000 * S
SIMULATED = 120 * S
GOOD, NO_STAMP, WRONG = (NOW - 30 * MS, NOW), (0, NOW), (5, NOW)
#: By name of the scene: stamps and times of the node's clock for images that follow every 0.5 s.
SCENES = {
    # The age is known.
    'ages are in milliseconds': [(NOW - i * MS, NOW) for i in range(101)],
    **{
        f'age of {age_ns / S:g} s is possible': [(NOW - age_ns, NOW)]
        for age_ns in (-S, 0, S // 10, 600 * S)
    },
    'ages before the last 512 images are ignored': [(NOW - 500 * MS, NOW)] * 9 + [GOOD] * 512,
    'ages are known again after stamps of another clock': [WRONG] * 9 + [GOOD],
    'clock that starts late is no problem': [(SIMULATED, 0), *[(SIMULATED, SIMULATED)] * 9],
    # The age is unknown.
    'no image has no age and no problem': [],
    'images without a stamp have no age and no problem': [NO_STAMP] * 9,
    'images without a stamp and without a clock are no problem': [(0, 0)] * 9,
    'image without a stamp does not change the age of others': [(NOW, NOW), NO_STAMP],
    'images without a stamp replace earlier ages': [GOOD] + [NO_STAMP] * 512,
    'image without a stamp ends the problem of the clock': [WRONG] * 9 + [NO_STAMP],
    'wrong stamps for less than 0.9 s are not reported': [GOOD, WRONG, WRONG],
    # The stamps are of another clock.
    'stamps of another clock end an earlier known age': [GOOD, WRONG, WRONG, WRONG],
    'use_sim_time without a publisher of /clock is reported': [(NOW, 0)] * 3,
    'simulated camera without a publisher of /clock is reported': [(SIMULATED, 0)] * 3,
    'real camera in a simulation is reported': [(NOW, SIMULATED)] * 3,
    'camera whose clock starts at zero is reported': [(SIMULATED, NOW)] * 3,
    **{
        f'age of {age_ns / S:g} s is reported': [(NOW - age_ns, NOW)] * 3
        for age_ns in (-5 * S, -1001 * MS, 601 * S, 5400 * S, 5 * 3600 * S, 3 * 86400 * S)
    },
}


@pytest.mark.parametrize('scene', SCENES)
def test_each_scene_has_the_recorded_ages_and_clock_problem(scene, golden_messages):
    age, time_s = AgeOfOutput(), 50.0
    for stamp_ns, clock_ns in SCENES[scene]:
        time_s += 0.5
        age.add_stamp(stamp_ns, clock_ns, time_s)
    ages = percentiles(age.ages_ms())
    golden_messages.add(f'{ages.p50_ms:.3f} ms, {ages.p99_ms:.3f} ms' if ages else 'unknown')
    golden_messages.add(age.clock_problem(time_s) or 'no problem')
