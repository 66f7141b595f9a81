# SPDX-License-Identifier: Apache-2.0
"""Tests of messages that the pipeline's threads read: order, counts, release of memory."""

import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.camera_callbacks import FaultCallback, camera_of
from support.scheduling.fake_pipeline import detections_of, frame_of, number_of
from support.waiting import wait_until
from trt_perception.errors import ImageError
from trt_perception.images.frame import DeferredFrame
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.scheduling.worker_pool import WorkerPool

pytestmark = [
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]
CAMERAS = 6


class Message:
    """A message with a number. Every seventh message cannot be read."""

    def __init__(self, camera, number):
        self.camera, self.number, self.readers = camera, number, []

    def read(self):
        self.readers.append(threading.current_thread().name)
        if self.number % 7 == 3:
            raise ImageError('not_decodable', 'image', str(self.number))
        return frame_of(self.number)


class Reading:
    """A pipeline that reads frames in four threads, with different durations."""

    spec, decodes_jpeg, allocate = None, True, NumpyMemory
    opening_reason = ''

    def __init__(self, depth, batch):
        self.depth, self.max_in_flight, self.batch = depth, depth, batch
        self._threads = ThreadPoolExecutor(4, 'reading')
        self._slots = {}
        self._random = random.Random(depth)

    def _read(self, frame, seconds):
        time.sleep(seconds)
        try:
            image = frame.read()
            return Result(detections_of(number_of(image)), seconds, image)
        except ImageError as error:
            error.__context__ = None
            return error.with_traceback(None)

    def enqueue(self, slot, frames, thresholds):
        assert slot not in self._slots
        assert not any(frame.is_decoded for frame in frames)
        self._slots[slot] = [
            self._threads.submit(self._read, frame, self._random.random() * 2e-3)
            for frame in frames
        ]

    def is_done(self, slot):
        return all(each.done() for each in self._slots[slot])

    def collect(self, slot):
        return [each.result() for each in self._slots.pop(slot)]

    def close(self):
        self._threads.shutdown()


@pytest.mark.parametrize('unread', [False, True])
def test_reading_a_file_counts_as_compute_time(unread):
    """The enqueue counts as copy time only if the frame is already decoded."""
    now = [0.0]

    class Slow(Reading):
        def enqueue(self, slot, frames, thresholds):
            now[0] += 5.0
            if unread:
                super().enqueue(slot, frames, thresholds)
            else:
                super().enqueue(slot, [DeferredFrame(lambda: frames[0])], thresholds)

    def read(message):
        return DeferredFrame(message.read) if unread else frame_of(message.number)

    pipeline = Slow(1, 1)
    camera = camera_of('', read, lambda *_: None, lambda *_: None, Thresholds())
    pool = WorkerPool(
        [pipeline], [camera], fault_handler=FaultCallback(lambda *_: None), clock=lambda: now[0]
    )
    pool.start()
    pool.submit(0, Message(0, 0))
    wait_until(lambda: pool.statistics()[0].published == 1)
    pool.stop()
    pipeline.close()
    assert pool.pipeline_statistics()[0].decodes_jpeg
    latency = pool.statistics()[0].latency
    assert latency['total'].p50_ms == pytest.approx(5000.0)
    assert latency['copy'].p50_ms == pytest.approx(0.0 if unread else 5000.0)


@pytest.mark.parametrize(('depth', 'batch'), [(1, 1), (3, 1), (2, 4), (3, 8)])
def test_deferred_messages_are_published_in_order_and_released(depth, batch):
    pipeline = Reading(depth, batch)
    published = [[] for _ in range(CAMERAS)]
    refused = [[] for _ in range(CAMERAS)]
    wrong, faults = [], []

    def publish(message, frame, detections):
        if not number_of(frame) == int(detections.class_ids[0]) == message.number:
            wrong.append(message.number)
        if [name[:7] for name in message.readers] != ['reading']:
            wrong.append(message.readers)
        published[message.camera].append(message.number)

    cameras = [
        camera_of(
            str(camera),
            lambda message: DeferredFrame(message.read),
            publish,
            lambda error, camera=camera: refused[camera].append(int(error.found)),
            Thresholds(),
        )
        for camera in range(CAMERAS)
    ]
    pool = WorkerPool([pipeline], cameras, fault_handler=FaultCallback(faults.append))
    pool.start()
    rng, alive, sent = np.random.default_rng(batch), [], [0] * CAMERAS

    def submit(camera):
        message = Message(camera, sent[camera])
        alive.append(weakref.ref(message))
        sent[camera] += 1
        pool.submit(camera, message)

    # On a busy machine, the pipeline's threads may wait. Continue until each camera had a turn.
    while sum(sent) < 600 or not all(published) or not any(refused):
        submit(int(rng.integers(CAMERAS)))
        if rng.random() < 0.4:
            time.sleep(5e-4)
        for part in pool.statistics():
            dropped = sum(part.dropped.values())
            assert part.received == part.published + dropped + part.failed + part.in_flight
    wait_until(lambda: not any(part.in_flight for part in pool.statistics()))
    # While the worker sleeps, no object refers to a message.
    wait_until(lambda: not any(reference() for reference in alive))
    pool.stop()
    pipeline.close()
    assert (faults, wrong) == ([], [])
    for camera, part in enumerate(pool.statistics()):
        assert published[camera] == sorted(set(published[camera]))
        assert refused[camera] == sorted(set(refused[camera]))
        assert not any(number % 7 == 3 for number in published[camera])
        assert all(number % 7 == 3 for number in refused[camera])
        assert part.received == sent[camera]
        assert part.published == len(published[camera]) > 0
        assert part.dropped.get('not_decodable', 0) == len(refused[camera])
    assert sum(map(len, refused)) > 0
