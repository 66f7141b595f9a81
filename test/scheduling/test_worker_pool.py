# SPDX-License-Identifier: Apache-2.0
"""Tests of the pool: newest wins, order of results, overlapping batches, counts."""

import math
import threading
import time
from queue import SimpleQueue

import pytest

from support.scheduling.fake_pipeline import FakePipeline, Recorder, worker_threads
from support.waiting import DEADLINE_S, wait_until
from trt_perception.model.thresholds import Thresholds
from trt_perception.scheduling import worker

pytestmark = [
    # A worker that ends with an exception is a failure, not a warning.
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


@pytest.fixture
def naps(monkeypatch):
    """Return a list with the number of seconds for which the worker currently sleeps.

    The number is 0 while the worker is awake. The second number is the limit of its last sleep.
    """
    now = [0.0, 0.0]

    class RecordingQueue(SimpleQueue):
        def get(self, **limit):
            if 'timeout' in limit:  # without a timeout, a wake-up is pending
                now[:] = [math.inf if limit['timeout'] is None else limit['timeout']] * 2
            try:
                return super().get(**limit)
            finally:
                now[0] = 0.0

    monkeypatch.setattr(worker, 'SimpleQueue', RecordingQueue)
    return now


def test_pool_without_messages_publishes_nothing():
    with Recorder(FakePipeline()) as run:
        assert run.counts() == (0, 0, {}, 0, 0)
    assert run.counts() == (0, 0, {}, 0, 0)
    assert run.pool.statistics()[0].latency == {}
    assert not worker_threads()


def test_each_of_successive_messages_is_published():
    with Recorder(FakePipeline()) as run:
        for number in range(20):
            run.submit(number)
            wait_until(lambda number=number: run.published[-1:] == [number])
        assert run.settled() == (20, 20, {}, 0)
    assert run.published == list(range(20))
    assert not run.refused
    assert not run.faults


@pytest.mark.parametrize('depth', [1, 2, 3, 8])
def test_newest_message_replaces_waiting_messages_while_slots_are_full(depth):
    pipeline = FakePipeline(depth, automatic=False)
    with Recorder(pipeline) as run:
        run.submit_into_slots(*range(depth))
        # The worker waits in collect for number 0. Of these messages, only the last stays.
        for number in range(100, 150):
            run.submit(number)
        assert run.counts() == (depth + 50, 0, {'replaced': 49}, 0, depth + 1)
        assert pipeline.flying() == list(range(depth))
        for number in [*range(depth), 149]:
            pipeline.finish(number)
        assert run.settled() == (depth + 50, depth + 1, {'replaced': 49}, 0)
    assert run.published == [*range(depth), 149]


def test_frames_overlap_and_are_published_in_order():
    pipeline = FakePipeline(3, automatic=False)
    with Recorder(pipeline) as run:
        for number in range(3):
            run.submit(number)
            # Each frame is enqueued before any other is collected, as is_done returns False.
            wait_until(lambda number=number: ('enqueue', number) in pipeline.events)
        assert pipeline.events == [('enqueue', 0), ('enqueue', 1), ('enqueue', 2)]
        for number in (2, 1):  # finished out of order
            pipeline.finish(number)
        assert run.published == []
        pipeline.finish(0)
        run.settled()
        assert run.published == [0, 1, 2]


def test_finished_frame_is_collected_without_another_message():
    pipeline = FakePipeline(3, automatic=False)
    with Recorder(pipeline) as run:
        for number in range(5):
            run.submit(number)
            wait_until(lambda number=number: number in pipeline.flying())
            asked = pipeline.asked
            wait_until(lambda asked=asked: pipeline.asked > asked + 3)  # the worker keeps polling
            assert run.published == list(range(number))
            pipeline.finish(number)
            wait_until(lambda number=number: run.published == list(range(number + 1)))


@pytest.mark.parametrize(('compute_s', 'gpu_s'), [(0.001, 600.0), (600.0, 0.0)])
def test_batch_is_not_polled_before_its_shortest_time(naps, compute_s, gpu_s):
    """Each poll takes interpreter time, for which other threads wait.

    A pipeline that does not measure the GPU time, such as Triton's, reports 0.
    """
    pipeline = FakePipeline(3, automatic=False)
    pipeline.compute_s, pipeline.gpu_s = compute_s, gpu_s
    with Recorder(pipeline) as run:
        run.submit(0)
        wait_until(lambda: pipeline.asked > 3)  # the time of a batch is still unknown
        pipeline.finish(0)
        run.settled()
        asked = pipeline.asked
        run.submit_into_slots(1, 2)
        wait_until(lambda: naps[0] > 400.0)
        assert pipeline.asked <= asked + 2  # once for each frame, right after its enqueue
        assert pipeline.asked > asked
        pipeline.finish(1, 2)
    assert run.published == [0, 1, 2]  # the stop waits for frames in the pipeline


@pytest.mark.parametrize(
    ('batches_s', 'shortest_s'),
    [
        ([100.0], 100.0),
        ([100.0, 60.0], 60.0),
        ([100.0, 110.0], 110.0),
        # A slow batch raises the shortest time by at most a quarter.
        ([100.0, 900.0], 125.0),
        ([100.0, 900.0, 900.0], 156.25),
        ([100.0, 900.0, 60.0], 60.0),
    ],
)
def test_wait_before_the_second_poll_follows_the_shortest_recent_time(naps, batches_s, shortest_s):
    pipeline = FakePipeline(3)
    with Recorder(pipeline, clock=lambda: 0.0) as run:
        for number, batch_s in enumerate(batches_s):
            pipeline.gpu_s = batch_s
            run.submit(number)
            run.settled()
        pipeline.automatic = False
        run.submit_into_slots(len(batches_s))
        wait_until(lambda: 0.0 < naps[0] < math.inf)
        assert naps[0] == pytest.approx(0.95 * shortest_s)


def submit_second(run, now, enqueue_s):
    """Finish number 0, which shows the time of a batch. Submit 1; its enqueue takes seconds."""
    (pipeline,) = run.pipelines
    run.submit(0)
    pipeline.finish(0)
    run.settled()

    def take_time(number):
        now[0] += enqueue_s

    pipeline.on_enqueue = take_time
    run.submit_into_slots(1)


def test_time_of_the_enqueue_counts_towards_the_poll_wait(naps):
    """The enqueue may decode a file, and the GPU time includes the decoding."""
    pipeline = FakePipeline(3, automatic=False)
    pipeline.gpu_s = 600.0
    now = [0.0]
    with Recorder(pipeline, clock=lambda: now[0]) as run:
        submit_second(run, now, enqueue_s=590.0)
        asked = pipeline.asked
        wait_until(lambda: pipeline.asked > asked + 3)
        assert naps[0] < 1.0
        pipeline.finish(1)
        run.settled()


@pytest.mark.parametrize(('gpu_s', 'sleepless'), [(0.001, True), (0.1, False)])
def test_worker_polls_without_sleep_when_a_short_batch_should_end(naps, gpu_s, sleepless):
    """The delay of a sleeping thread is long compared with a short batch."""
    pipeline = FakePipeline(3, automatic=False)
    pipeline.gpu_s = gpu_s
    now = [0.0]
    with Recorder(pipeline, clock=lambda: now[0]) as run:
        submit_second(run, now, enqueue_s=0.95 * gpu_s + 1e-4)  # just after the second poll is due
        asked = pipeline.asked
        wait_until(lambda: pipeline.asked > asked + 3)
        assert (naps[1] == 0.0) == sleepless
        now[0] += 0.001  # the batch is late
        asked = pipeline.asked
        wait_until(lambda: pipeline.asked > asked + 3)
        assert naps[1] > 0.0
        pipeline.finish(1)
        run.settled()


def test_worker_sleeps_while_it_has_no_task(naps):
    pipeline = FakePipeline(2)
    with Recorder(pipeline) as run:
        run.submit(1)
        run.settled()
        asked = pipeline.asked
        wait_until(lambda: naps[0] == math.inf)
        assert pipeline.asked == asked


def test_slow_stream_uses_one_slot_at_a_time():
    pipeline = FakePipeline(3)
    with Recorder(pipeline) as run:
        for number in range(10):
            run.submit(number)
            wait_until(lambda number=number: len(run.published) == number + 1)
    assert pipeline.events[::2] == [('enqueue', number) for number in range(10)]
    assert pipeline.events[1::2] == [('collect', number) for number in range(10)]


def test_changed_thresholds_apply_from_the_next_frame_on():
    pipeline = FakePipeline(3, automatic=False)
    first, second = Thresholds(0.1, 0.2), Thresholds(0.3, 0.4, class_ids=(1,))
    with Recorder(pipeline, thresholds=first) as run:
        run.submit_into_slots(0)
        run.cameras[0].thresholds = second  # number 0 is already in flight
        run.submit_into_slots(1)
        pipeline.finish(0)
        pipeline.finish(1)
        run.settled()
    assert pipeline.thresholds == {0: first, 1: second}


def test_submit_does_not_wait_for_the_pipeline():
    pipeline = FakePipeline(1)
    gate, entered = threading.Event(), threading.Event()

    def hold(_number):
        entered.set()
        assert gate.wait(DEADLINE_S)

    for place in ('on_enqueue', 'on_collect'):
        gate.clear()
        entered.clear()
        with Recorder(pipeline) as run:
            setattr(pipeline, place, hold)
            run.submit(0)
            assert entered.wait(DEADLINE_S)
            run.submit(1)  # must return at once; otherwise the test hangs
            run.submit(2)
            assert run.counts() == (3, 0, {'replaced': 1}, 0, 2)
            gate.set()
            run.settled()
        setattr(pipeline, place, lambda number: None)


def test_latency_has_the_time_of_each_stage():
    pause = 0.004
    pipeline = FakePipeline()
    run = Recorder(pipeline)
    run.on_read = pipeline.on_enqueue = run.on_publish = lambda number: time.sleep(pause)
    began = time.perf_counter()
    with run:
        for number in range(3):
            run.submit(number)
            run.settled()
    elapsed_ms = 1e3 * (time.perf_counter() - began)
    latency = run.pool.statistics()[0].latency
    assert set(latency) == {'wait', 'copy', 'compute', 'publish', 'total'}
    assert latency['compute'].p50_ms == pytest.approx(1.0)  # the value that the pipeline reports
    # Each stage takes at least the pause of the test, and at most the whole run.
    for stage, pauses in {'wait': 0, 'copy': 2, 'publish': 1, 'total': 3}.items():
        times = latency[stage]
        assert 1e3 * pauses * pause <= times.p50_ms <= times.p99_ms <= elapsed_ms
