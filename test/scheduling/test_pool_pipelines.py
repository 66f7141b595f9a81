# SPDX-License-Identifier: Apache-2.0
"""Tests of several pipelines, as on several GPUs: each has its own cameras and worker."""

import threading

import pytest

from support.scheduling.fake_pipeline import CAMERA, FakePipeline, Recorder, worker_threads
from support.waiting import DEADLINE_S, wait_until

pytestmark = [
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


def two(**options):
    return [FakePipeline(automatic=False, **options) for _ in range(2)]


def submit_to_all(run, index):
    """Submit a message of each camera."""
    for camera in range(len(run.cameras)):
        run.submit(camera * CAMERA + index)


def test_each_camera_is_served_by_its_pipeline():
    pipelines = two(batch=2)
    with Recorder(*pipelines, cameras=4) as run:
        assert sorted(t.name for t in worker_threads()) == ['detector_0', 'detector_1']
        assert run.pool.is_alive
        for index in range(10):
            submit_to_all(run, index)
            while run.counts()[4]:
                for pipeline in pipelines:
                    pipeline.finish(*pipeline.flying())
    for which, pipeline in enumerate(pipelines):
        numbers = [number for batch in pipeline.batches for number in batch]
        assert {number // CAMERA for number in numbers} == {which, which + 2}
    for camera in range(4):
        assert run.published_of(camera) == [camera * CAMERA + index for index in range(10)]
    assert [part.frames for part in run.pool.pipeline_statistics()] == [20, 20]
    assert not run.pool.is_alive


def test_statistics_say_which_pipeline_opens_its_model_again():
    first, second = FakePipeline(), FakePipeline()
    with Recorder(first, second, cameras=2) as run:
        second.opening_reason = 'the first image is large'
        statistics = run.pool.pipeline_statistics()
        assert [part.opening_reason for part in statistics] == ['', 'the first image is large']


def test_no_worker_runs_if_one_cannot_start(monkeypatch, golden_messages):
    run = Recorder(*two(), cameras=2)
    start = threading.Thread.start
    started = []

    def refuse(thread):
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with golden_messages.raises(RuntimeError):
        run.pool.start()
    assert len(started) == 1
    assert not worker_threads()
    run.submit(0)
    assert run.counts() == (1, 0, {'inactive': 1}, 0, 0)
    monkeypatch.undo()
    for pipeline in run.pipelines:
        pipeline.automatic = True
    with run:
        submit_to_all(run, 1)
        assert run.settled() == (3, 2, {'inactive': 1}, 0)


def test_stop_finishes_frames_in_flight_of_all_pipelines():
    pipelines = two(batch=2)
    with Recorder(*pipelines, cameras=4) as run:
        for camera in range(2):
            run.submit(camera * CAMERA)
            wait_until(lambda camera=camera: pipelines[camera].flying())
        submit_to_all(run, 1)
        stopper = threading.Thread(target=run.pool.stop)
        stopper.start()
        wait_until(lambda: not run.pool._state.is_running)
        pipelines[1].finish(CAMERA)
        wait_until(lambda: run.published == [CAMERA])
        assert stopper.is_alive()
        pipelines[0].finish(0)
        stopper.join(DEADLINE_S)
        assert not stopper.is_alive()
        assert run.counts() == (6, 2, {'inactive': 4}, 0, 0)
    assert not worker_threads()


def test_pool_uses_only_the_slots_that_the_pipeline_allows():
    pipeline = FakePipeline(depth=3, automatic=False)
    pipeline.max_in_flight = 1
    with Recorder(pipeline) as run:

        def submit_two_more(number):
            if number == 0:
                run.submit(1)
                run.submit(2)
                pipeline.finish(0)

        # The worker waits in `collect`, because it must not start another batch.
        pipeline.on_collect = submit_two_more
        run.submit(0)
        wait_until(lambda: pipeline.flying() == [2])
        pipeline.finish(2)
        assert run.settled() == (3, 2, {'replaced': 1}, 0)
        assert pipeline.batches == [[0], [2]]

        pipeline.max_in_flight = 2
        run.submit_into_slots(3, 4)
        assert pipeline.flying() == [3, 4]
