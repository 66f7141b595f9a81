"""A pipeline whose frames finish when the test says so, and a detector that records what it does.

The double keeps to the pipeline's contract and holds the detector to its side of it: only free
slots are filled, only filled ones are asked for and collected, one thread at a time.
"""

import threading
import time

import numpy as np

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.detector import Detector
from trt_perception.errors import ImageError
from trt_perception.images.frame import Frame
from trt_perception.pipelines.pipeline import Result

DEADLINE_S = 20  # of a wait that must end; long, because the machine may be busy


def wait_until(condition):
    """Wait for something that must come, and fail where it does not."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.0005)


def detector_threads():
    return [thread for thread in threading.enumerate() if thread.name == 'detector']


def frame_of(number):
    """Return a frame that carries a number."""
    return Frame.view(
        np.array([number], np.uint32).tobytes(), width=4, height=1, step=4, encoding='mono8'
    )


def number_of(frame):
    return int(frame.data.view(np.uint32)[0])


class FakePipeline:
    """Attributes hold the failures to come and the events so far."""

    spec = None
    decodes_jpeg = False

    def __init__(self, depth=1, *, batch=1, automatic=True):
        self.depth = depth
        self.batch = batch
        self.automatic = automatic  # frames are done as soon as they are enqueued
        self.events = []  # ('enqueue' or 'collect', number)
        self.thresholds = {}  # by number
        # By (method, number), to raise; 'done' too. An ImageError of 'collect' is returned.
        self.errors = {}
        self.on_enqueue = lambda number: None
        self.on_collect = lambda number: None
        self.asked = 0  # how often done() was called
        self._slots = {}  # the numbers in each that is taken
        self._finished = set()
        self._changed = threading.Condition()
        self._inside = threading.Lock()
        self._thread = None

    def finish(self, number):
        """Let a frame be done."""
        with self._changed:
            self._finished.add(number)
            self._changed.notify_all()

    def flying(self):
        """Return the numbers of the frames in the slots."""
        return sorted(number for numbers in list(self._slots.values()) for number in numbers)

    def _raise(self, method, number):
        error = self.errors.get((method, number))
        if error is not None:
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
            assert 0 < len(frames) == len(thresholds) <= self.batch
            numbers = [number_of(frame) for frame in frames]
            for number in numbers:
                self.on_enqueue(number)
                self._raise('enqueue', number)
            self._slots[slot] = numbers
            self.thresholds.update(zip(numbers, thresholds, strict=True))
            self.events += [('enqueue', number) for number in numbers]
            if self.automatic:
                for number in numbers:
                    self.finish(number)
        finally:
            self._inside.release()

    def done(self, slot):
        self._enter(slot)
        try:
            self.asked += 1
            for number in self._slots[slot]:
                self._raise('done', number)
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
            results = [self._result(number) for number in numbers]
            del self._slots[slot]
            return results
        finally:
            self._inside.release()

    def _result(self, number):
        if isinstance(error := self.errors.get(('collect', number)), ImageError):
            return error
        self._raise('collect', number)
        self.events.append(('collect', number))
        return Result(
            Detections(
                np.array([[0, 0, 1, 1]], np.float32),
                np.array([0.5], np.float32),
                np.array([number], np.int32),
            ),
            0.001,
        )

    def close(self):
        self._slots.clear()


class Recorder:
    """A detector over a fake pipeline; messages are numbers.

    Attributes:
        published: the numbers whose detections came out, in order.
        refused: the ImageErrors of messages that could not be read.
        faults: the exceptions that ended the worker.
        errors: by ('read' or 'publish', number), to raise.
    """

    def __init__(self, pipeline, thresholds=None):
        self.pipeline = pipeline
        self.published, self.refused, self.faults = [], [], []
        self.errors = {}
        self.on_read = lambda number: None
        self.on_publish = lambda number: None
        self.detector = Detector(
            pipeline,
            read=self._read,
            publish=self._publish,
            refused=self.refused.append,
            faulted=self.faults.append,
            thresholds=thresholds or Thresholds(),
        )

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
        self.detector.start()
        return self

    def __exit__(self, *_):
        # Whatever the test left in flight may finish, so that no thread outlives it.
        for number in self.pipeline.flying():
            self.pipeline.finish(number)
        self.detector.stop()

    def counts(self):
        """Return (received, published, dropped, failed, in flight), which must add up."""
        now = self.detector.statistics()
        dropped = sum(now.dropped.values())
        assert now.received == now.published + dropped + now.failed + now.in_flight
        return now.received, now.published, dict(now.dropped), now.failed, now.in_flight

    def settled(self):
        """Wait until nothing is in flight and return the counts."""
        wait_until(lambda: self.counts()[4] == 0)
        return self.counts()[:4]
