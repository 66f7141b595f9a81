# SPDX-License-Identifier: Apache-2.0
"""Tests of JPEG files on the GPU: decoded in threads, and on the CPU if nvJPEG refuses them.

GPU and nvJPEG are the stand-ins of support/gpu/late_gpu.py and late_nvjpeg.py.
"""

import sys
import threading
import time

import numpy as np
import pytest

from support.gpu.fake_nvjpeg import ALLOCATOR_FAILURE, BAD_JPEG, EXECUTION_FAILED
from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor, tensor_from_pipeline
from support.gpu.late_nvjpeg import undecoded_jpeg_frame
from support.waiting import wait_until
from trt_perception.errors import CudaError, ImageError
from trt_perception.images.jpeg import decode_on_cpu, undecoded_frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda import jpeg_threads
from trt_perception.pipelines.cuda import slot as cuda_slot

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler


WAYS = [
    (integrated, graph, late)
    for integrated in (False, True)
    for graph in (True, False)
    for late in (False, True)
]


@pytest.mark.parametrize(('integrated', 'graph', 'late'), WAYS)
def test_nvjpeg_decodes_into_the_memory_that_the_kernels_read(
    open_jpeg_pipeline, library, integrated, graph, late
):
    library.late = late
    gpu, pipeline = open_jpeg_pipeline(integrated=integrated, graph=graph)
    for seed, size in enumerate([(37, 23), (63, 48), (9, 100), (37, 23)]):
        frame = undecoded_jpeg_frame(seed, *size)
        expected = expected_tensor(decode_on_cpu(frame))
        np.testing.assert_array_equal(
            tensor_from_pipeline(gpu, pipeline, frame, seed % 2), expected
        )
        # Only the header was uploaded.
        assert [size for _, size in gpu.uploads] == ([] if integrated else [pipeline.header_bytes])
        gpu.uploads.clear()
    assert len(library.decoded) == 4


@pytest.mark.parametrize('integrated', [False, True])
def test_alternating_raw_frames_and_jpegs_keep_their_pixels(open_jpeg_pipeline, integrated):
    gpu, pipeline = open_jpeg_pipeline(integrated=integrated, depth=1)
    for seed in range(6):
        frame = undecoded_jpeg_frame(seed, 30 + seed, 20)
        whole = decode_on_cpu(frame)
        found = tensor_from_pipeline(gpu, pipeline, frame if seed % 2 else whole)
        np.testing.assert_array_equal(found, expected_tensor(whole))


@pytest.mark.parametrize('integrated', [False, True])
def test_larger_jpeg_gets_larger_memory(open_jpeg_pipeline, integrated):
    gpu, pipeline = open_jpeg_pipeline(integrated=integrated, depth=1)
    captures = gpu.captures
    for size in ((64, 48), (2100, 1400), (64, 48), (2100, 1500)):
        frame = undecoded_jpeg_frame(1, *size)
        np.testing.assert_array_equal(
            tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(decode_on_cpu(frame))
        )
    assert gpu.captures == captures


@pytest.mark.parametrize('status', [BAD_JPEG, ALLOCATOR_FAILURE, EXECUTION_FAILED])
def test_cpu_decodes_files_that_nvjpeg_refuses(
    open_jpeg_pipeline, library, status, caplog, golden_messages
):
    gpu, pipeline = open_jpeg_pipeline(depth=1)
    library.status['nvjpegDecode'] = status
    for seed in range(3):
        frame = undecoded_jpeg_frame(seed)
        np.testing.assert_array_equal(
            tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(decode_on_cpu(frame))
        )
    (record,) = caplog.records
    golden_messages.add(record.message)
    library.status.clear()
    frame = undecoded_jpeg_frame(9)
    np.testing.assert_array_equal(
        tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(decode_on_cpu(frame))
    )


def test_file_with_a_wrong_size_is_refused(open_jpeg_pipeline, library):
    gpu, pipeline = open_jpeg_pipeline(depth=1)
    frame = undecoded_jpeg_frame(0)
    wrong_frame = undecoded_frame(frame.jpeg, frame.width - 1, frame.height)
    pipeline.enqueue(0, [wrong_frame], [Thresholds()])
    wait_until(lambda: pipeline.is_done(0))
    (error,) = pipeline.collect(0)
    assert isinstance(error, ImageError)
    assert error.reason == 'not_decodable'
    # The slot is free again.
    np.testing.assert_array_equal(
        tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(decode_on_cpu(frame))
    )


def test_lost_gpu_is_raised_by_collect(open_jpeg_pipeline, library, monkeypatch):
    _, pipeline = open_jpeg_pipeline(depth=1)
    library.status['nvjpegDecode'] = EXECUTION_FAILED
    lost = CudaError('cudaStreamSynchronize failed', 'gone', status='gone', sticky=True)

    def raise_if_lost(self):
        raise lost

    with monkeypatch.context() as patched:
        patched.setattr(cuda_slot.Stream, 'raise_if_lost', raise_if_lost)
        pipeline.enqueue(0, [undecoded_jpeg_frame(0)], [Thresholds()])
        wait_until(lambda: pipeline.is_done(0))
        with pytest.raises(CudaError) as error:
            pipeline.collect(0)
    assert error.value is lost


def take_a_slot(pipeline, slot):
    """Enqueue a decoded frame. While this slot is busy, threads decode files of other slots."""
    pipeline.enqueue(slot, [decode_on_cpu(undecoded_jpeg_frame(slot))], [Thresholds()])


def test_idle_worker_decodes_a_file_at_once(open_jpeg_pipeline, library):
    gpu, pipeline = open_jpeg_pipeline(depth=2)
    threads = []
    library.on_decode = lambda: threads.append(threading.current_thread().name)
    here = threading.current_thread().name

    def decode(slot, seed):
        frame = undecoded_jpeg_frame(seed)
        pipeline.enqueue(slot, [frame], [Thresholds()])
        if threads == [here]:
            assert pipeline._jpeg.has_started(slot)  # before enqueue returns
        pipeline.collect(slot)
        found = gpu.input_of(pipeline.slots[slot])
        np.testing.assert_array_equal(found, expected_tensor(decode_on_cpu(frame)))
        name = threads.pop()
        assert not threads
        return name

    assert decode(0, 1) == here
    assert decode(1, 2) == here
    take_a_slot(pipeline, 0)
    assert decode(1, 3).startswith('jpeg_')
    pipeline.collect(0)
    assert decode(0, 4) == here


def test_large_file_is_decoded_in_a_thread(open_jpeg_pipeline, library):
    """If the worker decoded a large file itself, other cameras would wait."""
    _, pipeline = open_jpeg_pipeline(depth=1)
    threads = []
    library.on_decode = lambda: threads.append(threading.current_thread().name)
    for size in ((2600, 1700), (1920, 1088)):
        pipeline.enqueue(0, [undecoded_jpeg_frame(1, *size)], [Thresholds()])
        pipeline.collect(0)
    assert threads[0].startswith('jpeg_')
    assert threads[1] == threading.current_thread().name


def test_worker_does_not_wait_for_cpu_decoding(open_jpeg_pipeline, library, monkeypatch):
    """If nvJPEG refuses a file in the worker, one of the threads decodes the file."""
    gpu, pipeline = open_jpeg_pipeline(depth=1)
    library.status['nvjpegDecode'] = BAD_JPEG
    tried, decoded = [], []
    library.on_decode = lambda: tried.append(threading.current_thread().name)

    def decode(frame):
        decoded.append(threading.current_thread().name)
        return decode_on_cpu(frame)

    frame = undecoded_jpeg_frame(1)
    expected = expected_tensor(decode_on_cpu(frame))
    monkeypatch.setattr(jpeg_threads, 'decode_on_cpu', decode)
    np.testing.assert_array_equal(tensor_from_pipeline(gpu, pipeline, frame), expected)
    assert tried[0] == threading.current_thread().name
    (name,) = decoded
    assert name.startswith('jpeg_')


def test_worker_does_not_wait_for_a_decoder(open_jpeg_pipeline, library):
    """Frames overlap: each slot has its own decoder, and enqueue and is_done return at once."""
    gpu, pipeline = open_jpeg_pipeline(depth=4)
    take_a_slot(pipeline, 3)
    allowed, inside, threads = threading.Event(), threading.Semaphore(0), set()

    def hold():
        threads.add(threading.get_ident())
        inside.release()
        assert allowed.wait(30)

    library.on_decode = hold
    frames = [undecoded_jpeg_frame(seed) for seed in range(3)]
    for slot, frame in enumerate(frames):
        pipeline.enqueue(slot, [frame], [Thresholds()])
    for _ in range(3):
        assert inside.acquire(timeout=30)
    assert not any(pipeline.is_done(slot) for slot in range(3))
    assert len(threads) == 3
    assert threading.get_ident() not in threads
    allowed.set()
    for slot in (2, 0, 1):
        pipeline.collect(slot)
        found = gpu.input_of(pipeline.slots[slot])
        np.testing.assert_array_equal(found, expected_tensor(decode_on_cpu(frames[slot])))
    assert len({state for *_, state in library.decoded}) == 3


def joins(ident, thread):
    """Return whether the thread with identity `ident` waits in `join` for the end of `thread`."""
    frame = sys._current_frames()[ident]
    while frame is not None:
        if frame.f_code is threading.Thread.join.__code__:
            return frame.f_locals['self'] is thread
        frame = frame.f_back
    return False


def test_close_waits_for_the_threads(open_jpeg_pipeline, library):
    """After a fault, threads may still decode frames. The memory must outlive these threads."""
    _, pipeline = open_jpeg_pipeline(depth=3)
    take_a_slot(pipeline, 2)
    began, ended = threading.Event(), []
    closing = threading.get_ident()

    def slow():
        began.set()
        end = time.monotonic() + 30
        while not joins(closing, threading.current_thread()) and time.monotonic() < end:
            time.sleep(0.001)
        ended.append(set(library.live))

    library.on_decode = slow
    pipeline.enqueue(0, [undecoded_jpeg_frame(0)], [Thresholds()])
    assert began.wait(30)
    alive = set(library.live)
    pipeline.close()
    assert ended == [alive]
    assert not library.live
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('jpeg')]
    pipeline.close()


@pytest.mark.parametrize('name', ['nvjpegCreateEx', 'nvjpegJpegStateCreate', 'nvjpegDecode'])
def test_broken_nvjpeg_disables_gpu_decoding(
    open_late_pipeline, library, name, caplog, golden_messages
):
    caplog.set_level('INFO', 'trt_perception')
    library.status[name] = EXECUTION_FAILED
    _, pipeline = open_late_pipeline(image_transport='auto')
    assert not pipeline.decodes_jpeg
    assert not library.live
    golden_messages.add('\n'.join(r.message for r in caplog.records if 'JPEG' in r.message))


def test_raw_images_need_no_nvjpeg(open_late_pipeline, library):
    _, pipeline = open_late_pipeline()
    assert not pipeline.decodes_jpeg
    assert library.flags is None
