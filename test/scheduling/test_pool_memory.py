# SPDX-License-Identifier: Apache-2.0
"""Tests of memory: the pool releases each message as soon as possible."""

import random
import threading
import time
import weakref

import numpy as np
import pytest

from support.camera_callbacks import FaultCallback, camera_of
from support.scheduling.fake_pipeline import FakePipeline, detections_of
from support.waiting import wait_until
from trt_perception.errors import ImageError
from trt_perception.images.frame import Frame
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.scheduling.worker_pool import WorkerPool

pytestmark = [
    pytest.mark.ros,
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]

SIDE = 64


class Message:
    """An image of one value in a leased buffer. The last reader returns the buffer."""

    def __init__(self, number, data):
        self.number, self.data = number, data

    def frame(self):
        return Frame.view(self.data, width=SIDE, height=SIDE, step=SIDE, encoding='mono8')


def message(number, lease=None):
    data = lease.array()[: SIDE * SIDE] if lease else np.empty(SIDE * SIDE, np.uint8)
    data[:4].view(np.uint32)[0] = number
    return Message(number, data)


def pool_of(pipelines, cameras, **callbacks):
    faults = []
    return WorkerPool(
        pipelines,
        [
            camera_of(
                str(index),
                callbacks.get('read', Message.frame),
                callbacks.get('publish', lambda *_: None),
                callbacks.get('refused', lambda _: None),
                Thresholds(),
                pipeline=index % len(pipelines),
            )
            for index in range(cameras)
        ],
        fault_handler=FaultCallback(callbacks.get('faulted', faults.append)),
    ), faults


def submitted(pool, camera, number):
    """Submit a message without another reference. Return a weak reference to the message."""
    sent = message(number)
    pool.submit(camera, sent)
    return weakref.ref(sent)


def test_message_is_released_as_soon_as_it_was_published():
    pipeline = FakePipeline(2, batch=2, automatic=False)
    held, alive = {}, {}

    def publish(sent, frame, detections):
        alive[sent.number] = {number for number, reference in held.items() if reference()}

    pool, faults = pool_of([pipeline], 2, publish=publish)
    pool.start()
    for camera, number in ((0, 10), (1, 20)):
        held[number] = submitted(pool, camera, number)
        wait_until(lambda number=number: number in pipeline.flying())
    # Both slots are in use.
    for camera, number in ((0, 11), (1, 21), (1, 22)):
        held[number] = submitted(pool, camera, number)
    assert held[21]() is None, 'the replaced message was not released'
    pipeline.finish(10, 20)
    wait_until(lambda: 20 in alive)
    pipeline.finish(11, 22)
    wait_until(lambda: not any(reference() for reference in held.values()))
    assert pool.is_alive
    pool.stop()
    assert faults == []
    assert alive[10] == {10, 20, 11, 22}
    assert alive[20] == {20, 11, 22}
    assert alive[11] == {11, 22}
    assert alive[22] == {22}, 'the first of a batch was held while the second was published'


def test_dropped_or_invalid_message_is_released():
    def read(sent):
        if sent.number == 1:
            raise ImageError('bad_step', 'image', 'bad')
        return sent.frame()

    kept = []
    pipeline = FakePipeline()
    pipeline.errors['collect', 2] = ImageError('not_decodable', 'image', 'bad')
    pool, faults = pool_of([pipeline], 1, read=read, refused=kept.append)
    pool.start()
    for number in (1, 2):
        gone = submitted(pool, 0, number)
        wait_until(lambda gone=gone: gone() is None)
    pool.cameras[0].enabled = False
    assert submitted(pool, 0, 3)() is None
    pool.stop()
    assert submitted(pool, 0, 4)() is None
    assert len(kept) == 2, 'the camera was not told of both bad images'
    assert faults == []


@pytest.mark.parametrize('where', ['read', 'enqueue', 'collect', 'publish'])
def test_stored_fault_keeps_no_message(where):
    def fail(*_):
        raise RuntimeError('broken')

    pipeline = FakePipeline(batch=3)
    if where in ('enqueue', 'collect'):
        setattr(pipeline, f'on_{where}', fail)
    callbacks = {where: fail} if where in ('read', 'publish') else {}
    pool, faults = pool_of([pipeline], 3, **callbacks)
    pool.start()
    gone = [submitted(pool, camera, camera) for camera in range(3)]
    wait_until(lambda: faults)
    pool.stop()
    pipeline.close()
    assert [reference() for reference in gone] == [None] * 3


class Checked:
    """Compares the pixels of each frame at enqueue and collect. `wrong` counts torn frames."""

    spec, decodes_jpeg, allocate = None, False, NumpyMemory
    opening_reason = ''

    def __init__(self, depth, batch):
        self.depth, self.max_in_flight, self.batch = depth, depth, batch
        self.wrong = 0
        self._slots = {}
        self._clock = random.Random(1)

    def enqueue(self, slot, frames, thresholds):
        ready = time.monotonic() + self._clock.random() * 2e-3
        self._slots[slot] = [(frame, values(frame)) for frame in frames], ready

    def is_done(self, slot):
        return time.monotonic() >= self._slots[slot][1]

    def collect(self, slot):
        frames, ready = self._slots.pop(slot)
        time.sleep(max(0.0, ready - time.monotonic()))
        self.wrong += sum(len(seen) != 1 or values(frame) != seen for frame, seen in frames)
        return [Result(detections_of(seen.pop()), 0.001, frame) for frame, seen in frames]


def values(frame):
    return {*frame.data[::61].tolist(), *frame.data[-2:].tolist()}


def test_no_image_is_torn_with_many_cameras_and_slow_readers():
    buffers = MessageBuffers(NumpyMemory)
    pipelines = [Checked(3, 4), Checked(2, 8)]
    watched, wrong = {}, []

    def publish(sent, frame, detections):
        if values(frame) != {sent.number} or detections.class_ids.tolist() != [sent.number]:
            wrong.append(sent.number)
        if sent.number % 5 == 0:  # like the debug image, which draws frames later
            watched[sent.number % 16] = frame, sent.number

    cameras = 16
    pool, faults = pool_of(pipelines, cameras, publish=publish)
    pool.start()
    ending = threading.Event()

    def send():
        rng = random.Random(2)
        while not ending.is_set():
            lease = buffers.lend(SIDE * SIDE)
            data = lease.array()[: SIDE * SIDE]
            number = rng.randrange(256)
            data[:] = number
            camera = rng.randrange(cameras)
            if rng.random() < 0.01:
                pool.cameras[camera].enabled ^= True
            pool.submit(camera, Message(number, data))
            del lease, data
            if rng.random() < 0.1:
                time.sleep(1e-4)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: sum(part.published for part in pool.statistics()) > 1500)
    ending.set()
    sender.join()
    pool.stop()
    assert faults == []
    assert wrong == []
    assert sum(pipeline.wrong for pipeline in pipelines) == 0
    assert all(values(frame) == {number} for frame, number in list(watched.values()))
    # Each frame has a buffer while it waits, is in a slot, is published, kept or written.
    most = cameras + sum(2 * p.depth * p.batch for p in pipelines) + len(watched) + 2
    assert buffers.count <= most
    watched.clear()
    buffers.close()
    assert buffers.count == 0, 'a buffer is still lent'
    for part in pool.statistics():
        dropped = sum(part.dropped.values())
        assert (part.received, part.in_flight) == (part.published + dropped, 0)
