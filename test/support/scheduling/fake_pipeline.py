"""A pipeline whose frames finish when the test says so, and a detector that records what it does.

The double keeps to the pipeline's contract and holds the detector to its side of it: only free
slots are filled, only filled ones are asked for and collected, one thread at a time, and a batch
is no larger than it may be.
"""

import threading
import time

import numpy as np

from support.camera_callbacks import FaultCallback, camera_of
from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.images.memory import NumpyMemory
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.scheduling.detector import Detector

DEADLINE_S = 20  # of a wait that must end; long, because the machine may be busy
#: Messages of a camera are numbers from its index times this on.
CAMERA = 1_000_000


def wait_until(condition):
    """Wait for something that must come, and fail where it does not."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.0005)


def detector_threads():
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
    """Attributes hold the failures to come and the events so far."""

    spec = None
    decodes_jpeg = False
    allocate = NumpyMemory

    def __init__(self, depth=1, *, batch=1, automatic=True):
        self.depth = depth
        self.batch = batch
        self.automatic = automatic  # frames are done as soon as they are enqueued
        self.events = []  # ('enqueue' or 'collect', number)
        self.batches = []  # the numbers of each
        self.thresholds = {}  # by number
        # By (method, number), to raise; 'done' too. An ImageError of 'collect' is that number's.
        self.errors = {}
        self.on_enqueue = lambda number: None
        self.on_collect = lambda number: None
        self.asked = 0  # how often is_done() was called
        self.compute_s = 0.001  # of each batch, as it says
        self._slots = {}
        self._frames = {}  # by number, of those in the slots
        self._finished = set()
        self._changed = threading.Condition()
        self._inside = threading.Lock()
        self._thread = None

    def finish(self, *numbers):
        """Let frames be done; a batch is, when all of it are."""
        with self._changed:
            self._finished.update(numbers)
            self._changed.notify_all()

    def flying(self):
        """Return the numbers of the frames in the slots."""
        return sorted(number for numbers in list(self._slots.values()) for number in numbers)

    def _raise(self, method, numbers):
        for number in numbers:
            error = self.errors.get((method, number))
            if error is not None and not (method == 'collect' and isinstance(error, ImageError)):
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
            detections_of(number), self.compute_s, frame
        )

    def close(self):
        self._slots.clear()
        self._frames.clear()


class Recorder:
    """A detector over fake pipelines; messages are numbers, those of camera i from i * CAMERA on.

    Attributes:
        published: the numbers whose detections came out, in order.
        refused: the ImageErrors of messages that could not be read.
        faults: the exceptions that ended the worker.
        errors: by ('read' or 'publish', number), to raise.
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
        self.detector = Detector(
            pipelines, self.cameras, fault_handler=FaultCallback(self.faults.append), **options
        )

    def submit(self, number):
        self.detector.submit(number // CAMERA, number)

    def submit_into_slots(self, *numbers):
        """Submit messages, and wait until each one is in a slot of its camera's pipeline."""
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
        self.detector.start()
        return self

    def __exit__(self, *_):
        # Whatever the test left in flight may finish, so that no thread outlives it.
        for pipeline in self.pipelines:
            pipeline.finish(*pipeline.flying())
        self.detector.stop()

    def published_of(self, camera):
        """Return the numbers of one camera that were published, in order."""
        return [number for number in list(self.published) if number // CAMERA == camera]

    def counts(self, camera=None):
        """Return (received, published, dropped, failed, in flight), which must add up.

        Of a camera, or of all together.
        """
        parts = self.detector.statistics()
        for now in parts:
            dropped = sum(now.dropped.values())
            assert now.received == now.published + dropped + now.failed + now.in_flight
        now = FrameStatistics.merge(parts) if camera is None else parts[camera]
        return now.received, now.published, dict(now.dropped), now.failed, now.in_flight

    def settled(self):
        """Wait until nothing is in flight and return the counts."""
        wait_until(lambda: self.counts()[4] == 0)
        return self.counts()[:4]
