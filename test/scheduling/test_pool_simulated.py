# SPDX-License-Identifier: Apache-2.0
"""Tests of the pool with many cameras on a simulated clock: fairness, age, random schedules.

test/support/scheduling/simulated_cameras.py lists the rules that each run is checked against.
scripts/schedules runs thousands of schedules.
"""

import random
import statistics

import pytest

from support.scheduling.camera_schedules import Schedule, even, random_schedule
from support.scheduling.simulated_cameras import World, share
from trt_perception.monitoring.late_stage import StageLoad, late_stage


def test_random_schedules_keep_the_invariants():
    frames = 0
    for seed in range(40):
        rng = random.Random(seed)
        try:
            world = World(random_schedule(rng, 400)).run()
        except AssertionError as error:
            raise AssertionError(f'seed {seed}: {error}') from error
        frames += sum(map(len, world.published))
    assert frames > 3000


@pytest.mark.parametrize('together', [True, False])
@pytest.mark.parametrize(
    ('cameras', 'rate_hz', 'batch', 'batch_s', 'depth'),
    [
        (4, 20.0, 1, lambda n: 0.04, 1),
        (4, 20.0, 1, lambda n: 0.04, 4),
        (16, 30.0, 8, lambda n: 0.02 + 0.001 * n, 1),
        (16, 30.0, 8, lambda n: 0.02 + 0.001 * n, 4),
        (5, 30.0, 4, lambda n: 0.05, 2),
    ],
)
def test_equal_cameras_are_served_equally_and_in_time(
    cameras, rate_hz, batch, batch_s, depth, together
):
    rng = random.Random(7)
    # In this time, the device can process 520 frames of each camera.
    seconds = 520 * cameras * batch_s(batch) / batch
    sent = [even(rate_hz, seconds, 0.0 if together else rng.random()) for _ in range(cameras)]
    # With one slot, reading and publishing add to the age. With two, they run during compute.
    costs_s = 2e-4 if depth > 1 else 2e-5
    world = World(
        Schedule(sent, batch, depth, batch_s, read_s=costs_s / 2, publish_s=costs_s)
    ).run()
    served = [len(published) for published in world.published]
    assert min(served) >= 500
    assert min(served) < 0.9 * len(sent[0]), 'the device was not overloaded'
    assert min(served) / max(served) >= 0.95
    # The time to read and compute a batch.
    times = [t for counts in world.counts for t in counts.times]
    batch_time_s = statistics.median(t.copy + t.compute for t in times)
    most_s = 1 / rate_hz + depth * batch_time_s
    assert share([age for camera in world.published for _, age in camera], 0.95) <= most_s


@pytest.mark.parametrize('batch', [1, 4])
@pytest.mark.parametrize(
    ('worker_s', 'batch_s', 'depth', 'expected'),
    [(0.001, 0.08, 1, 'model'), (0.02, 0.01, 1, 'worker'), (0.02, 0.01, 3, 'worker')],
)
def test_stage_that_replaces_images_is_known_from_the_counts(
    worker_s, batch_s, depth, batch, expected
):
    sent = [even(30.0, 20, phase) for phase in (0.0, 0.01, 0.02, 0.03)]
    read_s, publish_s = worker_s / 4, worker_s * 3 / 4
    world = World(
        Schedule(sent, batch, depth, lambda n: batch_s, read_s=read_s, publish_s=publish_s)
    ).run()
    assert all(counts.dropped['replaced'] > 50 for counts in world.counts)
    (pipeline,) = world.pool.pipeline_statistics()
    assert pipeline.worker_s == pytest.approx(worker_s * pipeline.frames)
    assert pipeline.model_s == pytest.approx(batch_s * pipeline.batches / depth)
    load = StageLoad(
        1 / 30,
        worker_share=pipeline.worker_s / world.now_s,
        model_share=pipeline.model_s / world.now_s,
    )
    assert late_stage(load, were_taken=True) == expected


@pytest.mark.parametrize('depth', [1, 4])
@pytest.mark.parametrize('seed', range(5))
def test_slow_camera_loses_no_image_to_a_fast_camera(depth, seed):
    rng = random.Random(seed)
    slow = even(5.0, 60, rng.random(), lambda: 0.2 * rng.random())
    fast = even(60.0, 60, rng.random())
    world = World(Schedule([slow, fast], depth=depth, batch_s=lambda n: 0.1)).run()
    assert len(world.published[0]) == len(slow)
    assert len(world.published[1]) > 250


def test_dead_camera_does_not_delay_others():
    sent = [even(10.0, 10, phase) for phase in (0.0, 0.3, 0.6)]
    sent[1] = sent[1][:30]
    world = World(Schedule(sent, batch=3, batch_s=lambda n: 0.02)).run()
    assert [len(published) for published in world.published] == [100, 30, 100]


def test_maximum_delay_fills_batches():
    """Images of eight cameras arrive within 20 ms. With the delay, they form one batch."""
    sent = [even(10.0, 5, 0.02 * camera) for camera in range(8)]
    without = World(Schedule(sent, batch=8, depth=4, batch_s=lambda n: 0.001)).run()
    delayed = World(Schedule(sent, batch=8, depth=4, batch_s=lambda n: 0.001, delay_s=0.02)).run()
    assert len(without.times_s) > 300
    assert len(delayed.times_s) <= 51
    for world in (without, delayed):
        assert [len(published) for published in world.published] == [50] * 8
    assert max(age for camera in delayed.published for _, age in camera) < 0.025
