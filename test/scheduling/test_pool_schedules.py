# SPDX-License-Identifier: Apache-2.0
"""Tests of the pool with random schedules: against a model of its rules, and with threads."""

import random
import sys
import threading
import time

import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.properties import settings, st
from support.scheduling.fake_pipeline import CAMERA, FakePipeline, Recorder, worker_threads
from support.waiting import wait_until
from trt_perception.errors import ImageError
from trt_perception.monitoring.frame_statistics import FrameStatistics

pytestmark = [
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]


class PoolRules(RuleBasedStateMachine):
    """A simple model of the pool's rules. The pool must reach the same state."""

    @initialize(depth=st.integers(1, 4))
    def begin(self, depth):
        self.pipeline = FakePipeline(depth, automatic=False)
        self.run = Recorder(self.pipeline)
        self.run.pool.start()
        self.number = 0
        self.bad, self.fatal, self.finished = set(), set(), set()
        self.waiting, self.flying, self.published = None, [], []
        self.dropped, self.failed = {}, 0
        self.running, self.faulted = True, False

    def drop(self, reason):
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def advance(self):
        """Run the model until it has no task."""
        while True:
            if self.waiting is not None and len(self.flying) < self.pipeline.depth:
                number, self.waiting = self.waiting, None
                if number in self.bad:
                    self.drop('bad_step')
                else:
                    self.flying.append(number)
            elif self.flying and self.flying[0] in self.finished:
                if self.flying[0] in self.fatal:
                    self.failed += len(self.flying)
                    self.flying = []
                    if self.waiting is not None:
                        self.waiting = None
                        self.drop('inactive')
                    self.running, self.faulted = False, True
                else:
                    self.published.append(self.flying.pop(0))
            else:
                return

    @rule(kind=st.sampled_from(['good', 'good', 'good', 'bad', 'fatal']))
    def submit(self, kind):
        self.number += 1
        if kind == 'bad':
            self.bad.add(self.number)
            self.run.errors['read', self.number] = ImageError('bad_step', 'step', 'bad')
        if kind == 'fatal':
            self.fatal.add(self.number)
            self.pipeline.errors['collect', self.number] = RuntimeError('fatal')
        if not self.running:
            self.drop('inactive')
        else:
            if self.waiting is not None:
                self.drop('replaced')
            self.waiting = self.number
        self.advance()
        self.run.submit(self.number)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data):
        number = data.draw(st.sampled_from(self.flying))
        self.finished.add(number)
        self.advance()
        self.pipeline.finish(number)

    @precondition(lambda self: not self.fatal)
    @rule()
    def stop_and_start(self):
        for number in self.flying:
            self.finished.add(number)
        if self.waiting is not None:
            self.waiting = None
            self.drop('inactive')
        self.advance()
        stopper = threading.Thread(target=self.run.pool.stop)
        stopper.start()
        # Finish frames only now, because an earlier end would start the waiting message.
        wait_until(lambda: not self.run.pool._state.is_running)
        for number in self.pipeline.flying():
            self.pipeline.finish(number)
        stopper.join()
        self.check()
        assert self.run.counts()[4] == 0
        self.run.pool.start()

    @invariant()
    def check(self):
        flying = len(self.flying) + (self.waiting is not None)
        expected = (self.number, len(self.published), self.dropped, self.failed, flying)
        wait_until(lambda: self.run.counts() == expected)
        assert self.run.published == self.published
        wait_until(lambda: self.faulted or self.pipeline.flying() == self.flying)
        # The worker counts a bad image, and then reports it.
        wait_until(lambda: len(self.run.refused) == self.dropped.get('bad_step', 0))
        wait_until(lambda: len(self.run.faults) == self.faulted)

    def teardown(self):
        if hasattr(self, 'run'):
            for number in range(self.number + 1):
                self.pipeline.finish(number)
            self.run.pool.stop()
            assert self.run.counts()[4] == 0
            assert not worker_threads()


TestPoolRules = PoolRules.TestCase
TestPoolRules.settings = settings(max_examples=40, stateful_step_count=25)


class Sampler(threading.Thread):
    """Takes snapshots continuously and compares each with the counts of the test."""

    def __init__(self, run):
        super().__init__(name='sampler')
        self.run_ = run
        # Frames in slots, waiting messages, and frames that are published.
        self.most = len(run.cameras) + sum((p.depth + 1) * p.batch for p in run.pipelines)
        self.submitted = [0, 0]  # numbers of started and of returned calls of submit
        self.samples = 0
        self.wrong = []
        self.ending = threading.Event()

    def run(self):
        last = (0, 0, 0, 0)
        publishing = len(self.run_.pipelines)
        while not self.ending.is_set():
            begun = self.submitted[1], len(self.run_.published)
            parts = self.run_.pool.statistics()
            ended = self.submitted[0], len(self.run_.published)
            now = FrameStatistics.merge(parts)
            counts = (now.received, now.published, sum(now.dropped.values()), now.failed)
            if not (
                all(adds_up(part) for part in parts)
                and 0 <= now.in_flight <= self.most
                and begun[0] <= now.received <= ended[0]
                # A frame counts as published once its callback has returned.
                and begun[1] - publishing <= now.published <= ended[1]
                and all(old <= new for old, new in zip(last, counts, strict=True))
            ):
                self.wrong.append((begun, parts, ended, last))
            last = counts
            self.samples += 1


def adds_up(part):
    """Return whether every received message of a camera is in exactly one count."""
    ended = part.published + sum(part.dropped.values()) + part.failed
    return part.received == ended + part.in_flight and part.in_flight >= 0


SAMPLES = 250  # in each run


def make_run(rng, cameras, pipelines, total, fault):
    """Return a recorder with slow pipelines, bad frames, and a fault if requested."""
    batch = 1 if cameras == 1 else rng.randint(1, 4)
    run = Recorder(
        *(FakePipeline(rng.randint(1, 4), batch=batch, automatic=False) for _ in range(pipelines)),
        cameras=cameras,
    )
    if fault:
        fault_at, place = rng.randint(0, total // 2), rng.choice(['read', 'collect', 'publish'])

        def fail(number):
            if number % CAMERA >= fault_at:
                raise RuntimeError('fault')

        setattr(run.pipelines[0] if place == 'collect' else run, f'on_{place}', fail)
    for index in rng.sample(range(total), total // 8):
        number = rng.randrange(cameras) * CAMERA + index
        early = rng.random() < 0.5
        for errors in [run.errors] if early else [p.errors for p in run.pipelines]:
            error = ImageError(f'bad_{number % 3}', 'image', 'bad')
            errors['read' if early else 'collect', number] = error
    return run


def random_run(seed, fault, cameras=1, pipelines=1):
    """Run threads at random. Return recorder, sampler and number of messages after the stop."""
    rng = random.Random(seed)
    total = rng.randint(100, 200)
    run = make_run(rng, cameras, pipelines, total, fault)
    sampler = Sampler(run)
    ending = threading.Event()

    def device(pipeline):
        """Finish frames late and in order, like a CUDA stream."""
        clock = random.Random(seed + 1)
        while not ending.is_set() or pipeline.flying():
            batches = list(pipeline._slots.values())
            if batches:
                time.sleep(clock.choice([0, 0, 0.0002, 0.001]))
                pipeline.finish(*batches[0])
            else:
                time.sleep(0.0001)

    threads = [sampler, *(threading.Thread(target=device, args=[p]) for p in run.pipelines)]
    run.pool.start()
    for thread in threads:
        thread.start()
    number = 0

    def is_over():
        """Return whether all events that the test needs have occurred."""
        if number < total or sampler.samples < SAMPLES:
            return False
        return bool(run.faults if fault else run.counts()[2].get('replaced'))

    while not is_over():
        sampler.submitted[0] += 1
        run.submit(rng.randrange(cameras) * CAMERA + number)
        sampler.submitted[1] += 1
        if rng.random() < 0.7:
            time.sleep(rng.choice([0, 0.0001, 0.0005, 0.002]))
        number += 1
    run.pool.stop()
    ending.set()
    for pipeline in run.pipelines:
        pipeline._slots.clear()  # a fault leaves frames in the slots
    sampler.ending.set()
    for thread in threads:
        thread.join()
    return run, sampler, number


@pytest.fixture
def _threads_take_turns():
    """Switch threads after 0.1 ms instead of 5 ms, which tries more schedules in less time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures('_threads_take_turns')
@pytest.mark.parametrize('fault', [False, True])
@pytest.mark.parametrize(('cameras', 'pipelines'), [(1, 1), (5, 1), (5, 2)])
def test_random_threads_keep_the_counts_exact(cameras, pipelines, fault):
    for seed in range(6 if cameras == 1 else 3):
        run, sampler, total = random_run(seed, fault, cameras, pipelines)
        assert sampler.wrong[:1] == [], seed
        received, published, dropped, failed, in_flight = run.counts()
        assert (received, in_flight) == (total, 0), seed
        assert published == len(run.published)
        for camera in range(cameras):
            numbers = run.published_of(camera)
            assert numbers == sorted(set(numbers))
        assert len(run.faults) == fault
        assert (failed > 0) == fault
        bad = sum(count for reason, count in dropped.items() if reason.startswith('bad_'))
        assert bad == len(run.refused)
        assert set(dropped) <= {'replaced', 'inactive', 'bad_0', 'bad_1', 'bad_2'}
        assert not worker_threads()
        assert fault or dropped['replaced'] > 0
