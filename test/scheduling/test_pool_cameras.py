# SPDX-License-Identifier: Apache-2.0
"""Tests of several cameras on one pipeline: each has its own settings, counts and errors."""

import threading

import pytest

from support.scheduling.fake_pipeline import CAMERA, FakePipeline, Recorder, worker_threads
from support.waiting import DEADLINE_S, wait_until
from trt_perception.model.thresholds import Thresholds

pytestmark = [
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


def number(camera, index=0):
    return camera * CAMERA + index


def busy(pipeline, **options):
    """Return a recorder with several cameras, whose only slot contains message 0 of camera 0."""
    run = Recorder(pipeline, **options)
    run.pool.start()
    run.submit_into_slots(0)
    return run


@pytest.fixture
def pipeline():
    return FakePipeline(batch=3, automatic=False)


def finish_all(run):
    """Finish all frames in flight."""

    def settled():
        for pipeline in run.pipelines:
            pipeline.finish(*pipeline.flying())
        return run.counts()[4] == 0

    wait_until(settled)


def test_batch_has_one_frame_of_each_least_recently_served_camera(pipeline):
    run = busy(pipeline, cameras=5)
    for camera in (0, 4, 3, 2, 1):
        run.submit(number(camera, 1))
        run.submit(number(camera, 2))
    finish_all(run)
    run.pool.stop()
    batches = [[n // CAMERA for n in batch] for batch in pipeline.batches]
    # The first camera was served. The other cameras follow in the order of their messages.
    assert batches == [[0], [4, 3, 2], [1, 0]]
    assert sorted(run.published) == sorted([0, *(number(camera, 2) for camera in range(5))])
    for camera in range(1, 5):
        assert run.counts(camera) == (2, 1, {'replaced': 1}, 0, 0)
    (of_pipeline,) = run.pool.pipeline_statistics()
    assert (of_pipeline.frames, of_pipeline.batches) == (6, 3)
    assert of_pipeline.compute.p50_ms == pytest.approx(1.0)


def test_each_frame_has_the_thresholds_of_its_camera(pipeline):
    run = busy(pipeline, cameras=3)
    for camera in range(3):
        run.cameras[camera].thresholds = Thresholds(0.1 * (camera + 1), 0.5)
        run.submit(number(camera, 1))
    finish_all(run)
    run.pool.stop()
    for camera in range(3):
        assert pipeline.thresholds[number(camera, 1)] is run.cameras[camera].thresholds


def test_messages_are_dropped_while_their_camera_is_disabled(pipeline):
    run = busy(pipeline, cameras=2)
    run.submit(number(1))
    run.cameras[0].enabled = run.cameras[1].enabled = False
    run.submit(number(1, 1))
    assert run.counts(1) == (2, 0, {'disabled': 1}, 0, 1)
    finish_all(run)
    # The frame in the slot is published; the waiting message is dropped.
    assert run.published == [0]
    assert run.counts(0) == (1, 1, {}, 0, 0)
    assert run.counts(1) == (2, 0, {'disabled': 2}, 0, 0)
    run.cameras[1].enabled = True
    run.submit(number(1, 2))
    finish_all(run)
    run.pool.stop()
    assert run.published == [0, number(1, 2)]


def test_messages_above_the_rate_of_a_camera_are_dropped():
    now = [0.0]
    with Recorder(FakePipeline(), cameras=2, clock=lambda: now[0]) as run:
        run.cameras[1].max_rate_hz = 10.0
        for index in range(40):
            now[0] = 0.05 * index  # 20 Hz
            for camera in range(2):
                run.submit(number(camera, index))
                run.settled()
        run.cameras[1].max_rate_hz = 0.0
        run.submit(number(1, 40))
        run.settled()
    assert run.counts(0) == (40, 40, {}, 0, 0)
    assert run.counts(1) == (41, 21, {'rate_limit': 20}, 0, 0)


def test_waiting_messages_are_enqueued_before_a_result_is_published(pipeline):
    seen = []
    run = Recorder(pipeline, cameras=3)
    # While a result is published, the slot contains the messages that waited before it.
    run.on_publish = lambda _: seen.append(pipeline.flying())
    with run:
        run.submit_into_slots(number(0))
        run.submit(number(1))
        pipeline.finish(number(0))
        wait_until(lambda: run.published == [number(0)])
        assert seen == [[number(1)]]
        finish_all(run)


def test_free_slot_is_filled_between_two_results():
    pipeline = FakePipeline(depth=2, batch=2, automatic=False)
    run = Recorder(pipeline, cameras=3, batch_max_delay_s=DEADLINE_S)
    flying = []

    def publish(number_):
        flying.append(pipeline.flying())
        if number_ == number(0):
            run.submit(number(2))
            run.submit(number(1, 1))

    run.on_publish = publish
    with run:
        run.submit(number(0))
        run.submit(number(1))
        wait_until(lambda: pipeline.flying() == [number(0), number(1)])
        pipeline.finish(number(0), number(1))
        wait_until(lambda: len(flying) == 2)
        assert flying == [[], sorted([number(2), number(1, 1)])]
        finish_all(run)


def test_batch_waits_at_most_the_maximum_delay():
    pipeline = FakePipeline(batch=3)
    with Recorder(pipeline, cameras=3, batch_max_delay_s=1000.0) as run:
        for camera in range(3):
            assert pipeline.batches == []
            run.submit(number(camera))
        wait_until(lambda: len(run.published) == 3)
        run.cameras[2].enabled = False  # a batch of two is full now
        for camera in range(2):
            run.submit(number(camera, 1))
        wait_until(lambda: len(run.published) == 5)
        run.submit(number(0, 2))
    # The stop did not wait for the maximum delay.
    assert run.counts() == (6, 5, {'inactive': 1}, 0, 0)
    assert [len(batch) for batch in pipeline.batches] == [3, 2]
    with Recorder(pipeline, cameras=3, batch_max_delay_s=0.02) as run:
        run.submit(number(0))
        wait_until(lambda: run.published == [number(0)])


def test_each_camera_has_its_own_counts_and_times():
    with Recorder(FakePipeline(), cameras=3) as run:
        for index in range(5):
            run.submit(number(2, index))
            run.settled()
    assert [run.counts(camera)[0] for camera in range(3)] == [0, 0, 5]
    assert run.pool.statistics()[0].latency == {}
    assert len(run.pool.statistics()[2].times) == 5


def test_submit_does_not_wait_for_any_camera():
    pipeline = FakePipeline(batch=2)
    gate, entered = threading.Event(), threading.Event()

    def hold(_):
        entered.set()
        assert gate.wait(DEADLINE_S)

    run = Recorder(pipeline, cameras=2)
    run.on_publish = hold
    with run:
        run.submit(number(0))
        assert entered.wait(DEADLINE_S)
        for index in range(3):
            run.submit(number(1, index))  # must return at once; otherwise the test hangs
        assert run.counts(1) == (3, 0, {'replaced': 2}, 0, 1)
        gate.set()
        run.settled()
    assert not worker_threads()
