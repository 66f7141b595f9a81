# SPDX-License-Identifier: Apache-2.0
"""Provide a pipeline whose frames finish on command, and a pool that records its results.

The pipeline obeys the contract of pipelines, and checks that the pool obeys it. The pool
must enqueue only into free slots, and poll and collect only filled slots. It must call from one
thread at a time, and its batches must not exceed the largest batch.
"""

import threading

import numpy as np

from support.camera_callbacks import FaultCallback, camera_of
from support.waiting import DEADLINE_S, wait_until
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.thresholds import Thresholds
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.scheduling.worker_pool import WorkerPool

#: A message is a number. Messages of camera i are numbered from i * CAMERA on.
CAMERA = 1_000_000


def worker_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith('detector')]


def frame_of(number):
    """Return a frame that carries a number."""
    return Frame.view(
        np.array([number], np.uint32).tobytes(), width=4, height=1, step=4, encoding='mono8'
    )


def number_of(frame):
    return int(frame.data[:4].view(np.uint32)[0])


def detections_of(number):
    return Detections(
        np.array([[0, 0, 1, 1]], np.float32),
        np.array([0.5], np.float32),
        np.array([number], np.int32),
    )


class FakePipeline:
    """A pipeline that records calls, and raises the errors that a test prepares.

    Attributes:
        automatic: whether frames are done immediately after enqueue.
        events: ('enqueue' or 'collect', number of the frame) in order.
        batches: numbers of the frames in each batch.
        thresholds: maps the number of each frame to its thresholds.
        errors: errors to raise, by (method, number of the frame). The method 'done' means is_done.
            A FrameError of 'collect' becomes the result of its frame and leaves the batch intact.
        on_enqueue: function that gets the number of each enqueued frame.
        on_collect: function that gets the number of each collected frame.
        asked: number of is_done() calls.
        compute_s: reported compute time of each batch.
        gpu_s: reported GPU time of each batch.
    """

    spec = None
    decodes_jpeg = False
    diagnostic_values = ()
    opening_reason = ''
    allocate = NumpyMemory

    def __init__(self, depth=1, *, batch=1, automatic=True):
        self.depth = self.max_in_flight = depth
        self.batch = batch
        self.automatic = automatic
        self.events = []
        self.batches = []
        self.thresholds = {}
        self.errors = {}
        self.on_enqueue = lambda number: None
        self.on_collect = lambda number: None
        self.asked = 0
        self.compute_s = self.gpu_s = 0.001
        self._slots = {}
        self._frames = {}  # frames in the slots, by number
        self._finished = set()
        self._changed = threading.Condition()
        self._inside = threading.Lock()
        self._thread = None

    def finish(self, *numbers):
        """Mark frames as finished. A batch is done when all its frames are finished."""
        with self._changed:
            self._finished.update(numbers)
            self._changed.notify_all()

    def flying(self):
        """Return the numbers of the frames in the slots."""
        return sorted(number for numbers in list(self._slots.values()) for number in numbers)

    def _raise(self, method, numbers):
        for number in numbers:
            error = self.errors.get((method, number))
            if error is not None and not (method == 'collect' and isinstance(error, FrameError)):
                raise error

    def _enter(self, slot):
        assert self._inside.acquire(blocking=False), 'two calls at a time'
        assert 0 <= slot < self.depth
        # The calling thread may change only while nothing is in flight.
        assert self._thread in (None, threading.get_ident()) or not self._slots
        self._thread = threading.get_ident()

    def enqueue(self, slot, frames, thresholds):
        self._enter(slot)
        try:
            assert slot not in self._slots, 'the slot is taken'
            assert len(self._slots) < self.max_in_flight
            assert 1 <= len(frames) == len(thresholds) <= self.batch
            numbers = [number_of(frame) for frame in frames]
            for number in numbers:
                self.on_enqueue(number)
            self._raise('enqueue', numbers)
            self._slots[slot] = numbers
            self._frames.update(zip(numbers, frames, strict=True))
            self.batches.append(numbers)
            self.thresholds.update(zip(numbers, thresholds, strict=True))
            self.events += [('enqueue', number) for number in numbers]
            if self.automatic:
                self.finish(*numbers)
        finally:
            self._inside.release()

    def is_done(self, slot):
        self._enter(slot)
        try:
            self.asked += 1
            self._raise('done', self._slots[slot])
            return self._finished.issuperset(self._slots[slot])
        finally:
            self._inside.release()

    def collect(self, slot):
        self._enter(slot)
        try:
            numbers = self._slots[slot]
            for number in numbers:
                self.on_collect(number)
            with self._changed:
                assert self._changed.wait_for(
                    lambda: self._finished.issuperset(numbers), DEADLINE_S
                )
            self._raise('collect', numbers)
            del self._slots[slot]
            self.events += [('collect', number) for number in numbers]
            return [self._result(number) for number in numbers]
        finally:
            self._inside.release()

    def _result(self, number):
        frame = self._frames.pop(number)
        return self.errors.get(('collect', number)) or Result(
            detections_of(number), self.compute_s, frame, self.gpu_s
        )

    def close(self):
        self._slots.clear()
        self._frames.clear()


class Recorder:
    """Runs a pool with fake pipelines, and records its results.

    Messages of camera i are numbers from i * CAMERA on.

    Attributes:
        published: numbers of the published detections in order.
        refused: ImageErrors of messages that could not be read.
        faults: exceptions that ended the worker.
        errors: errors to raise, by ('read' or 'publish', number).
    """

    def __init__(self, *pipelines, thresholds=None, cameras=1, **options):
        self.pipelines = pipelines
        self.published, self.refused, self.faults = [], [], []
        self.errors = {}
        self.on_read = lambda number: None
        self.on_publish = lambda number: None
        self.cameras = [
            camera_of(
                f'camera_{index}',
                self._read,
                self._publish,
                self.refused.append,
                thresholds or Thresholds(),
                pipeline=index % len(pipelines),
            )
            for index in range(cameras)
        ]
        self.pool = WorkerPool(
            pipelines, self.cameras, fault_handler=FaultCallback(self.faults.append), **options
        )

    def submit(self, number):
        self.pool.submit(number // CAMERA, number)

    def submit_into_slots(self, *numbers):
        """Submit messages; wait until each is in a slot of its camera's pipeline."""
        for number in numbers:
            self.submit(number)
            pipeline = self.pipelines[number // CAMERA % len(self.pipelines)]
            wait_until(lambda number=number, pipeline=pipeline: number in pipeline.flying())

    def _read(self, number):
        self.on_read(number)
        if ('read', number) in self.errors:
            raise self.errors['read', number]
        return frame_of(number)

    def _publish(self, number, frame, detections):
        assert number_of(frame) == number
        assert detections.class_ids.tolist() == [number]
        self.on_publish(number)
        if ('publish', number) in self.errors:
            raise self.errors['publish', number]
        self.published.append(number)

    def __enter__(self):
        self.pool.start()
        return self

    def __exit__(self, *_):
        # Finish all frames that the test left in flight, so that no thread outlives it.
        for pipeline in self.pipelines:
            pipeline.finish(*pipeline.flying())
        self.pool.stop()

    def published_of(self, camera):
        """Return the numbers of one camera's published detections in order."""
        return [number for number in list(self.published) if number // CAMERA == camera]

    def counts(self, camera=None):
        """Return (received, published, dropped, failed, in flight); check that they add up.

        The counts belong to one camera, or are the sums over all cameras.
        """
        parts = self.pool.statistics()
        for now in parts:
            dropped = sum(now.dropped.values())
            assert now.received == now.published + dropped + now.failed + now.in_flight
        now = FrameStatistics.merge(parts) if camera is None else parts[camera]
        return now.received, now.published, dict(now.dropped), now.failed, now.in_flight

    def settled(self):
        """Wait until nothing is in flight and return the counts."""
        wait_until(lambda: self.counts()[4] == 0)
        return self.counts()[:4]
