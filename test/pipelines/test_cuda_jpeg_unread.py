# SPDX-License-Identifier: Apache-2.0
"""Tests of messages that the pipeline's threads read: valid files, bad files, CPU decoding."""

import ctypes
import functools
import gc
import struct
import threading
import weakref
from collections import deque
from typing import ClassVar

import cv2
import numpy as np
import pytest
from test_cuda_batches import fixed, noise, profiles

from support.fuzz import jpeg_fuzz
from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor
from support.waiting import wait_until
from trt_perception.errors import ImageError
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.jpeg import JpegFrameReader, decode_to_frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler


class Message:
    """A file that a camera sends. ``threads`` lists the threads that have read a file."""

    threads: ClassVar[list[str]] = []

    def __init__(self, content, read):
        self.content, self._read = content, read

    def frame(self):
        self.threads.append(threading.current_thread().name)
        return self._read(np.frombuffer(self.content, np.uint8))


@pytest.fixture(autouse=True)
def _no_threads_yet():
    Message.threads.clear()


@functools.cache
def content(seed, kind='420', size=(37, 23)):
    picture = jpeg_fuzz.scene_bgr(*size, seed)
    if kind in jpeg_fuzz.SAMPLINGS:
        return jpeg_fuzz.encoded_jpeg(picture, kind)
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1] if kind == 'progressive' else []
    return cv2.imencode('.png' if kind == 'png' else '.jpg', picture, options)[1].tobytes()


def expected_of(file):
    return expected_tensor(decode_to_frame(check_image_file(np.frombuffer(file, np.uint8))))


def deferred(file, read, *, is_fast=False):
    return DeferredFrame(Message(file, read).frame, is_fast_to_decode=is_fast)


@pytest.mark.parametrize('late', [False, True])
@pytest.mark.parametrize('graph', [False, True])
@pytest.mark.parametrize('integrated', [False, True])
def test_all_files_are_read_in_threads_or_in_the_worker(
    open_jpeg_pipeline, library, integrated, graph, late
):
    """Sizes, kinds and counts change from batch to batch, in one or two busy slots.

    Some files are wrongly expected to be fast to decode.
    """
    library.late = late
    gpu, pipeline = open_jpeg_pipeline(
        tensorrt=profiles(1, 4, 8), integrated=integrated, graph=graph
    )
    rng, cameras = np.random.default_rng(3), [JpegFrameReader() for _ in range(8)]
    kinds = ('420', '444', 'png', 'progressive', 'cut', 'raw')
    flying = deque()
    for turn in range(24):
        slot, count = turn % 2, int(rng.choice([1, 1, 2, 5, 8]))
        frames, tensors = [], []
        for camera in range(count):
            kind = str(rng.choice(kinds, p=(0.4, 0.1, 0.1, 0.1, 0.15, 0.15)))
            size = tuple(int(side) for side in rng.integers(8, 40 + 12 * turn, 2))
            if kind == 'raw':
                frames.append(noise(turn * 8 + camera))
                tensors.append(expected_tensor(frames[-1]))
                continue
            file = content(turn, '420' if kind == 'cut' else kind, size)
            tensors.append(None if kind == 'cut' else expected_of(file))
            is_fast = bool(rng.integers(2))
            file = file[: -40 if kind == 'cut' else None]
            frames.append(deferred(file, cameras[camera], is_fast=is_fast))
        pipeline.enqueue(slot, frames, [Thresholds()] * count)
        flying.append((slot, frames, tensors))
        while flying and (len(flying) == 2 or rng.random() < 0.6):
            collect_and_check(gpu, pipeline, *flying.popleft())
    worker_thread = threading.current_thread().name
    assert worker_thread in Message.threads
    assert all(name.startswith('jpeg_') for name in Message.threads if name != worker_thread)
    assert len({name for name in Message.threads if name != worker_thread}) > 1


def collect_and_check(gpu, pipeline, slot, frames, tensors):
    """Collect a slot. Compare each frame with its tensor; None stands for an unreadable file."""
    wait_until(lambda: pipeline._jpeg.has_started(slot))
    results = pipeline.collect(slot)
    assert len(results) == len(tensors)
    for place, (result, frame, tensor) in enumerate(zip(results, frames, tensors, strict=True)):
        if tensor is None:
            assert isinstance(result, ImageError)
            assert result.reason == 'not_decodable'
            continue
        found = gpu.input_of(pipeline.slots[slot], place)
        np.testing.assert_array_equal(found, tensor)
        assert not frame.is_decoded or result.frame is frame


@pytest.mark.parametrize('kind', ['420', 'png'])
def test_only_a_probably_small_jpeg_is_read_in_the_worker(open_jpeg_pipeline, kind):
    """The camera's previous file decides, so that CPU decoding delays the worker only once."""
    gpu, pipeline = open_jpeg_pipeline(depth=1)
    files = JpegFrameReader()
    for turn in range(3):
        file = content(turn, kind)
        pipeline.enqueue(
            0, [deferred(file, files, is_fast=files.is_fast_to_decode)], [Thresholds()]
        )
        (result,) = pipeline.collect(0)
        assert not isinstance(result, ImageError)
        found = gpu.input_of(pipeline.slots[0])
        np.testing.assert_array_equal(found, expected_of(file))
    worker_thread = threading.current_thread().name
    assert Message.threads[0].startswith('jpeg_')
    assert (Message.threads[1:] == [worker_thread] * 2) == (kind == '420')


def test_unreadable_file_affects_no_other_frame(open_jpeg_pipeline, golden_messages):
    gpu, pipeline = open_jpeg_pipeline(depth=1)

    def broken(_):
        raise RuntimeError('broken')

    pipeline.enqueue(0, [deferred(content(1), raise_image_error, is_fast=True)], [Thresholds()])
    (error,) = pipeline.collect(0)
    assert error.reason == 'bad_frame_id'
    good = content(2)
    pipeline.enqueue(0, [deferred(good, JpegFrameReader(), is_fast=True)], [Thresholds()])
    pipeline.collect(0)
    np.testing.assert_array_equal(gpu.input_of(pipeline.slots[0]), expected_of(good))
    pipeline.enqueue(0, [deferred(good, broken, is_fast=True)], [Thresholds()])
    assert pipeline.is_done(0)
    with golden_messages.raises(RuntimeError):
        pipeline.collect(0)
    assert Message.threads == [threading.current_thread().name] * 3


def header_of(pipeline, slot, place):
    """Return width, height and the confidence threshold that the kernels read."""
    address = pipeline.slots[slot].places[place].address
    header = ctypes.string_at(address, pipeline.header_bytes)
    (confidence,) = struct.unpack_from('<f', header, 72)
    return (*struct.unpack_from('<2i', header), confidence)


def raise_image_error(*_):
    raise ImageError('bad_frame_id', 'image', 'bad')


@pytest.mark.parametrize('integrated', [False, True])
def test_place_of_an_unreadable_file_gets_another_frame(open_jpeg_pipeline, integrated):
    """The kernels also run on the place of this file, whose memory may be unset or freed."""
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(3), depth=1, integrated=integrated)
    good = content(1)
    for turn in range(3):
        places = [deferred(good, JpegFrameReader())] * 3
        places[2 - turn] = deferred(good, raise_image_error)
        pipeline.enqueue(0, places, [Thresholds()] * 3)
        results = pipeline.collect(0)
        assert results[2 - turn].reason == 'bad_frame_id'
        for place in range(3):
            np.testing.assert_array_equal(
                gpu.input_of(pipeline.slots[0], place), expected_of(good)
            )
        # Free the memory that the headers of the next turn must not refer to.
        with copy_to_pipeline_memory(pipeline, [noise(turn)] * 3) as placed:
            pipeline.enqueue(0, placed, [Thresholds()] * 3)
            pipeline.collect(0)


def test_headers_have_the_thresholds_passed_to_enqueue(open_jpeg_pipeline):
    _, pipeline = open_jpeg_pipeline(tensorrt=fixed(3), depth=1)
    own = [Thresholds(0.25), Thresholds(0.5), Thresholds(0.75)]
    files = [content(1), content(2, 'png'), content(3)]
    pipeline.enqueue(0, [deferred(file, JpegFrameReader()) for file in files], own)
    pipeline.collect(0)
    assert [header_of(pipeline, 0, place)[2] for place in range(3)] == [0.25, 0.5, 0.75]


def frame_with_unreadable_message():
    """Return a frame whose message is unreadable, and a weak reference to the message."""

    def read(file):
        try:
            raise ValueError('the cause')
        except ValueError as error:
            raise ImageError('not_decodable', 'image', f'{file.size} bytes') from error

    message = Message(content(1), read)
    return DeferredFrame(message.frame), weakref.ref(message)


def test_kept_error_does_not_keep_the_message(open_jpeg_pipeline):
    _, pipeline = open_jpeg_pipeline(depth=1)
    frame, gone = frame_with_unreadable_message()
    gc.disable()
    try:
        pipeline.enqueue(0, [frame], [Thresholds()])
        (error,) = pipeline.collect(0)
        del frame
        assert error.reason == 'not_decodable'
        # The reading function of the last thread may not have returned yet.
        wait_until(lambda: gone() is None)
    finally:
        gc.enable()


def test_idle_thread_keeps_no_message(open_jpeg_pipeline):
    _, pipeline = open_jpeg_pipeline(tensorrt=fixed(6), depth=2)
    gc.disable()
    try:
        messages = [Message(content(seed), JpegFrameReader()) for seed in range(6)]
        gone = [weakref.ref(message) for message in messages]
        frames = [DeferredFrame(message.frame) for message in messages]
        pipeline.enqueue(0, frames, [Thresholds()] * 6)
        pipeline.collect(0)
        del frames, messages
        # No later batch replaces these messages.
        assert [message() for message in gone] == [None] * 6
    finally:
        gc.enable()


def test_reading_fault_is_raised_by_collect(open_jpeg_pipeline, golden_messages):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(3), depth=1)
    launched = []
    gpu.modules[2].cudaGraphLaunch = lambda *arguments: launched.append(arguments)

    def broken(_):
        raise RuntimeError('broken')

    frames = [
        deferred(content(1), broken if place == 1 else JpegFrameReader()) for place in range(3)
    ]
    pipeline.enqueue(0, frames, [Thresholds()] * 3)
    wait_until(lambda: pipeline.is_done(0))
    with golden_messages.raises(RuntimeError):
        pipeline.collect(0)
    assert not launched


def test_close_stops_reading_of_queued_files(open_jpeg_pipeline):
    _, pipeline = open_jpeg_pipeline(tensorrt=fixed(8), depth=1)
    allowed, inside = threading.Event(), threading.Semaphore(0)

    def hold(file):
        inside.release()
        assert allowed.wait(30)
        return JpegFrameReader()(file)

    frames = [deferred(content(seed), hold) for seed in range(8)]
    pipeline.enqueue(0, frames, [Thresholds()] * 8)
    for _ in range(4):
        assert inside.acquire(timeout=30)
    joining = threading.Event()

    class Joined:
        def __init__(self, thread):
            self._thread = thread

        def join(self):
            joining.set()
            self._thread.join()

    threads = pipeline._jpeg._threads
    threads[:] = map(Joined, threads)
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    assert joining.wait(30)
    allowed.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(Message.threads) == 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('jpeg')]


def test_several_threads_can_read_files_of_one_camera(caplog):
    """Each file gives the same frame as alone. CPU decoding is logged once for each cause."""
    kinds = ('420', '444', '420', 'png', 'progressive')
    files = [content(seed, kinds[seed % 5], (40 + seed % 3, 30)) for seed in range(40)]
    alone = [JpegFrameReader()(np.frombuffer(file, np.uint8)) for file in files]
    caplog.clear()
    frames, together, wrong = JpegFrameReader(), threading.Barrier(8), []

    def read(number):
        rng = np.random.default_rng(number)
        together.wait(30)
        for index in rng.integers(0, 40, 300).tolist():
            found, one = frames(np.frombuffer(files[index], np.uint8)), alone[index]
            same = type(found) is type(one) and bytes(found.data) == bytes(one.data)
            if not (same and (found.width, found.height) == (one.width, one.height)):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {frame.is_decoded for frame in alone} == {False, True}
    assert len(caplog.records) == 2


def test_unchanged_header_is_not_uploaded_again(open_jpeg_pipeline):
    """A changed header, or a different frame in this place, needs a new upload."""
    gpu, pipeline = open_jpeg_pipeline(depth=1)
    small, large, bad = content(1), content(2, size=(900, 600)), content(3)[:-40]
    half = Thresholds(0.5)
    turns = [
        *((small, Thresholds(), 1), (small, Thresholds(), 0), (small, half, 1), (small, half, 0)),
        *((content(4), half, 0), (large, half, 1), (large, half, 0), (small, half, 1)),
        *((noise(5), half, None), (small, half, 1), (small, half, 0), (bad, half, None)),
        *((small, half, 0), (content(6, 'png'), half, None), (small, half, 0)),
        *((content(7, 'png', (30, 20)), half, None), (small, half, 1), (small, half, 0)),
    ]
    for file, thresholds, sent in turns:
        gpu.uploads.clear()
        submitted = file if isinstance(file, Frame) else deferred(file, JpegFrameReader())
        pipeline.enqueue(0, [submitted], [thresholds])
        (result,) = pipeline.collect(0)
        if file is bad:
            assert isinstance(result, ImageError)
            continue
        expected = expected_tensor(file) if isinstance(file, Frame) else expected_of(file)
        np.testing.assert_array_equal(gpu.input_of(pipeline.slots[0]), expected)
        assert header_of(pipeline, 0, 0)[2] == thresholds.confidence_threshold
        if sent is not None:
            headers = [size for _, size in gpu.uploads if size == pipeline.header_bytes]
            assert len(headers) == sent


@pytest.mark.parametrize('integrated', [False, True])
def test_file_without_memory_affects_no_other_frame(open_jpeg_pipeline, integrated):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(3), depth=1, integrated=integrated)
    runtime = gpu.modules[2]
    allocate = runtime.cudaMalloc
    full = runtime.cudaError_t.cudaErrorMemoryAllocation, 0

    def reasons_with_limit(files, limit_bytes):
        runtime.cudaMalloc = lambda size: full if size > limit_bytes else allocate(size)
        frames = [deferred(file, JpegFrameReader()) for file in files]
        pipeline.enqueue(0, frames, [Thresholds()] * len(files))
        results = pipeline.collect(0)
        for at, result in enumerate(results):
            if not isinstance(result, ImageError):
                found = gpu.input_of(pipeline.slots[0], at)
                np.testing.assert_array_equal(found, expected_of(files[at]))
        return [getattr(result, 'reason', '') for result in results]

    large, larger = content(1, size=(1000, 450)), content(2, size=(2400, 1600))
    small = content(3), content(4)
    assert reasons_with_limit([small[0], large, small[1]], 2**20) == ['', 'too_large', '']
    assert reasons_with_limit([small[0], large, small[1]], 2**30) == ['', '', '']
    # Other places keep their memory. A batch of only this file does not run.
    assert reasons_with_limit([small[1], large, larger], 2**20) == ['', '', 'too_large']
    assert reasons_with_limit([small[1], larger], 2**20) == ['', 'too_large']
    assert reasons_with_limit([larger], 2**20) == ['too_large']
    assert reasons_with_limit([small[0], large, small[1]], 2**20) == ['', '', '']
