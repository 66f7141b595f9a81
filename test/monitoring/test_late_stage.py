# SPDX-License-Identifier: Apache-2.0
"""Tests of the choice of the stage that loses images, with simulated and measured numbers."""

import pytest

from trt_perception.monitoring.late_stage import StageLoad, late_stage, mean_delay_s

PERIOD_S = 1 / 30
IDLE = {'transport_s': 0.006, 'intake_s': 0.001, 'worker_share': 0.2, 'model_share': 0.2}


@pytest.mark.parametrize(
    ('change', 'if_lost', 'if_replaced'),
    [
        ({}, '', ''),
        ({'transport_s': 0.028}, 'transport', 'transport'),
        ({'intake_s': 0.028}, 'intake', 'intake'),
        ({'transport_s': 0.028, 'intake_s': 0.02}, 'transport', 'transport'),
        ({'transport_s': 0.02, 'intake_s': 0.028}, 'intake', 'intake'),
        ({'worker_share': 0.7}, '', 'worker'),
        ({'model_share': 0.9}, '', 'model'),
        ({'worker_share': 0.7, 'model_share': 0.6}, '', 'worker'),
        ({'worker_share': 0.6, 'model_share': 0.9}, '', 'model'),
        ({'worker_share': 0.4, 'model_share': 0.3}, '', ''),
        # The intake waits for the interpreter's lock.
        ({'intake_s': 0.028, 'worker_share': 0.7}, 'worker', 'worker'),
        ({'intake_s': 0.028, 'model_share': 0.9}, 'intake', 'model'),
        ({'transport_s': 0.028, 'worker_share': 0.7}, 'transport', 'worker'),
        # A slow camera has more time between two images.
        ({'transport_s': 0.028, 'period_s': 0.1}, '', ''),
    ],
)
def test_late_stage_is_the_cause_of_missing_images(change, if_lost, if_replaced):
    load = StageLoad(**{'period_s': PERIOD_S, **IDLE, **change})
    assert late_stage(load, were_taken=False) == if_lost
    assert late_stage(load, were_taken=True) == if_replaced


@pytest.mark.parametrize('periods', [1.1, 1.4, 2.3, 10.7])
def test_busy_worker_is_the_cause_if_the_intake_takes_images_too_slowly(periods):
    """The middleware keeps only the newest image, and the intake takes it once per cycle."""
    takes_s = [number * periods * PERIOD_S for number in range(1, 101)]
    ages_s = [take_s % PERIOD_S for take_s in takes_s]
    load = StageLoad(PERIOD_S, 0.001, sum(ages_s) / len(ages_s), 0.75, 0.2)
    assert late_stage(load, were_taken=False) == 'worker'


@pytest.mark.parametrize(
    ('total_ns', 'expected_s'),
    [
        (0, 0.0),
        (40_000_000, 0.02),
        (-40_000_000, 0.0),  # the clock of the camera is ahead
        (2 * 1_700_000_000 * 10**9, 0.0),  # a time stamp is missing
    ],
)
def test_mean_delay_is_unknown_without_comparable_time_stamps(total_ns, expected_s):
    assert mean_delay_s(total_ns, 2) == pytest.approx(expected_s)
