# SPDX-License-Identifier: Apache-2.0
"""Damage serialised images. The node must refuse each image, or read it as rclpy does.

Each image must be counted once.

test_cdr.py sends thousands of messages, scripts/fuzz_messages sends 100,000.
"""

import random
import struct
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from support.camera_callbacks import FaultCallback, camera_of
from support.fuzz.raw_messages import cdr_and_length_offsets
from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.camera.messages import FrameReader, frame_from_compressed, frame_from_image
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.scheduling.worker_pool import WorkerPool
from trt_perception.wire.cdr import read_compressed, read_image

TEXTS = ('', 'a', 'ab', 'abc', 'camera_front', 'größer', 'x' * 40)
VIEW_READERS = {Image: read_image, CompressedImage: read_compressed}
FRAME_READERS = {Image: frame_from_image, CompressedImage: frame_from_compressed}
# The readers of the node.
READER_FACTORIES = {Image: FrameReader, CompressedImage: lambda: frame_from_compressed}
# Values for length fields, in addition to values near the true length.
LENGTHS = (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
# Bytes behind a string's NUL. Multiples of four, so that the next fields stay aligned.
JUNK_SIZES = (4, 4000, 100_000)
JPEG = cv2.imencode('.jpg', np.full((4, 6, 3), 90, np.uint8))[1].tobytes()
RANDOM_PER_MESSAGE = 60


@dataclass(frozen=True)
class Case:
    """A serialised message.

    Attributes:
        kind: message class.
        change: ``whole``, ``truncated``, ``length``, ``junk`` or ``random``. ``junk`` is a string
            with bytes after its NUL.
        content: the message's bytes.
    """

    kind: type
    change: str
    content: bytes


def cases(count, seed=0):
    """Return ``count`` cases. Equal seeds give equal cases."""
    rng = random.Random(seed)
    made = []
    while len(made) < count:
        message = _message(rng)
        for byte_order in '<>':
            made += _damaged_cases(
                rng, type(message), *cdr_and_length_offsets(message, byte_order), byte_order
            )
    return made[:count]


def _message(rng):
    stamp = Time(sec=rng.randrange(-(2**31), 2**31), nanosec=rng.randrange(2**32))
    header = Header(stamp=stamp, frame_id=rng.choice(TEXTS))
    if rng.random() < 0.3:
        data = rng.choice([JPEG, rng.randbytes(rng.randrange(8))])
        return CompressedImage(header=header, format=rng.choice(TEXTS), data=data)
    encoding = rng.choice(['bgr8', 'mono8', 'mono16', 'nv12', 'bayer_rggb8', *TEXTS])
    width, height = rng.choice([(1, 1), (2, 2), (4, 4), (3, 5)])
    step = width * {'bgr8': 3, 'mono16': 2}.get(encoding, 1)
    size = step * (height + height // 2 * (encoding == 'nv12'))
    return Image(
        header=header,
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=rng.randrange(2),
        step=step,
        data=rng.randbytes(size + rng.choice([0, 0, 0, -1, 1])),
    )


def _damaged_cases(rng, kind, content, places, byte_order):
    yield Case(kind, 'whole', content)
    for size in range(len(content)):
        yield Case(kind, 'truncated', content[:size])
    for place in places:
        (length,) = struct.unpack_from(byte_order + 'I', content, place)
        end = place + 4 + length
        for size in JUNK_SIZES if place != places[-1] else ():  # the last one: data
            put = struct.pack(byte_order + 'I', length + size)
            longer = content[:place] + put + content[place + 4 : end] + b'x' * size + content[end:]
            yield Case(kind, 'junk', longer)
        for value in (*LENGTHS, length - 1, length + 1, len(content)):
            put = struct.pack(byte_order + 'I', value % 2**32)
            yield Case(kind, 'length', content[:place] + put + content[place + 4 :])
    for _ in range(RANDOM_PER_MESSAGE):
        yield Case(kind, 'random', _randomly_changed_bytes(rng, bytearray(content)))


def _randomly_changed_bytes(rng, content):
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(content))
        if rng.random() < 0.7:
            content[place] = rng.choice([0, 1, 2, 4, 127, 128, 255])
        elif rng.random() < 0.5:
            del content[place : place + rng.randrange(1, 5)]
        else:
            content[place:place] = rng.randbytes(rng.randrange(1, 5))
        content = content or bytearray(1)
    return bytes(content)


def message_fields(message):
    """Return a message's fields by name. rclpy's classes and the package's have equal names."""
    names = ('height', 'width', 'encoding', 'is_bigendian', 'step', 'format')
    fields = {name: getattr(message, name) for name in names if hasattr(message, name)}
    stamp = message.header.stamp
    return fields | {
        'header': (stamp.sec, stamp.nanosec, message.header.frame_id),
        'data': bytes(message.data),
    }


class _NoWork:
    """A pipeline that accepts every frame and computes nothing."""

    depth = max_in_flight = 1
    decodes_jpeg = False
    opening_reason = ''
    batch = 1

    def enqueue(self, slot, frames, thresholds):
        (self._frame,) = frames
        self._frame.data.sum()  # the sum reads every byte

    def is_done(self, slot):
        return True

    def collect(self, slot):
        return [Result(Detections.empty(), 0.0, self._frame)]


class Fuzz:
    """Sends cases through the reader and the pool, and checks the results.

    Attributes:
        read: number of messages read, by change.
        refused: number of messages refused as ``bad_message``, by change.
        agreed: number of messages that rclpy read with equal results.
        wrong: descriptions of errors.
        counts: the pool's statistics, by kind.
    """

    def __init__(self):
        self.read, self.refused = Counter(), Counter()
        self.agreed = 0
        self.wrong = []
        self.counts = {}

    def run(self, cases):
        for kind in FRAME_READERS:
            mine = [case for case in cases if case.kind is kind]
            for case in mine:
                self._compare_with_rclpy(case)
            self._count(kind, mine)
        return self

    def _compare_with_rclpy(self, case):
        """Check that an image equals rclpy's result, if rclpy can read the message."""
        try:
            view = VIEW_READERS[case.kind](_content_array(case))
        except ImageError as error:
            self.refused[case.change] += 1
            if error.reason != 'bad_message' or case.change == 'whole':
                self.wrong.append(f'{case}: {error}')
            return
        self.read[case.change] += 1
        if case.change in ('truncated', 'junk'):
            self.wrong.append(f'{case}: read as {view}')
        try:
            theirs = message_fields(deserialize_message(case.content, case.kind))
        except Exception:
            return
        if message_fields(view) == theirs:
            self.agreed += 1
        else:
            self.wrong.append(f'{case}: {message_fields(view)}, by rclpy {theirs}')

    def _count(self, kind, cases):
        """Check that each image is published, or dropped with its reason, and the worker runs."""
        reasons, answers, faults = Counter(), [], []
        camera = camera_of(
            '',
            READER_FACTORIES[kind](),
            lambda *_: answers.append(''),
            lambda error: answers.append(error.reason),
            Thresholds(),
        )
        pool = WorkerPool([_NoWork()], [camera], fault_handler=FaultCallback(faults.append))
        pool.start()
        for number, case in enumerate(cases, 1):
            try:
                FRAME_READERS[kind](_arrived_message(case))
                reasons[''] += 1
            except ImageError as error:
                reasons[error.reason] += 1
            pool.submit(0, _arrived_message(case))
            while len(answers) < number and not faults:
                time.sleep(0)
            if faults:
                self.wrong.append(f'{case}: {faults[0]!r}')
                break
        pool.stop()
        counts = self.counts[kind] = pool.statistics()[0]
        if Counter(answers) != reasons or counts.received != len(cases):
            self.wrong.append(f'{kind.__name__}: {Counter(answers)}, expected {reasons}')
        if counts.dropped | {'': counts.published} != reasons | {'': reasons['']}:
            self.wrong.append(f'{kind.__name__}: counted {counts}, expected {reasons}')


def _content_array(case):
    return np.frombuffer(bytearray(case.content), np.uint8)


def _arrived_message(case):
    data = _content_array(case)
    return SerializedMessage(data, data.size, SimpleNamespace(memory=NumpyMemory(1)))
