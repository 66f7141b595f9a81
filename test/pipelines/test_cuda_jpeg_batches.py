# SPDX-License-Identifier: Apache-2.0
"""Tests of JPEG files in batches: decoded in parallel; a bad file affects only its own place."""

import threading

import numpy as np
import pytest
from test_cuda_batches import fixed, noise, profiles

from support.gpu.fake_nvjpeg import BAD_JPEG
from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor
from support.gpu.late_nvjpeg import undecoded_jpeg_frame
from support.waiting import wait_until
from trt_perception.errors import CudaError, ImageError
from trt_perception.images.jpeg import decode_on_cpu, undecoded_frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda import jpeg_threads

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler


def bad(seed):
    """Return a file that nvJPEG and the CPU refuse: its size differs from the frame's size."""
    frame = undecoded_jpeg_frame(seed)
    return undecoded_frame(frame.jpeg, frame.width - 1, frame.height)


def enqueue(pipeline, slot, frames):
    pipeline.enqueue(slot, frames, [Thresholds()] * len(frames))


def check_tensors(gpu, pipeline, slot, frames, results):
    """Compare the tensor of each place with its frame. None stands for an unreadable file."""
    assert len(results) == len(frames)
    for place, (frame, result) in enumerate(zip(frames, results, strict=True)):
        if frame is None:
            assert isinstance(result, ImageError)
            assert result.reason == 'not_decodable'
            continue
        assert len(result.detections) == 0
        found = gpu.input_of(pipeline.slots[slot], place)
        np.testing.assert_array_equal(found, expected_tensor(decode_on_cpu(frame)))


@pytest.mark.parametrize('late', [False, True])
@pytest.mark.parametrize('graph', [False, True])
@pytest.mark.parametrize('integrated', [False, True])
def test_jpegs_and_raw_frames_share_a_batch(open_jpeg_pipeline, library, integrated, graph, late):
    library.late = late
    gpu, pipeline = open_jpeg_pipeline(
        tensorrt=profiles(1, 4, 8), integrated=integrated, graph=graph
    )
    rng = np.random.default_rng(2)
    for turn in range(8):
        slot, count = turn % 2, int(rng.integers(1, 9))
        frames = [
            undecoded_jpeg_frame(at + turn, 30 + at, 20 + turn)
            if rng.random() < 0.6
            else noise(at + turn)
            for at in range(count)
        ]
        enqueue(pipeline, slot, frames)
        results = pipeline.collect(slot)
        assert pipeline.is_done(slot)
        check_tensors(gpu, pipeline, slot, frames, results)


def test_unreadable_jpeg_affects_no_other_frame(open_jpeg_pipeline, library):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(6), depth=1)
    for place in range(6):
        frames = [undecoded_jpeg_frame(at) if at % 2 else noise(at) for at in range(6)]
        submitted = [bad(at) if at == place else frame for at, frame in enumerate(frames)]
        enqueue(pipeline, 0, submitted)
        left = [None if at == place else frame for at, frame in enumerate(frames)]
        check_tensors(gpu, pipeline, 0, left, pipeline.collect(0))
    # A file that only nvJPEG refuses does not affect any frame.
    library.status['nvjpegDecode'] = BAD_JPEG
    frames = [undecoded_jpeg_frame(at) for at in range(6)]
    enqueue(pipeline, 0, frames)
    check_tensors(gpu, pipeline, 0, frames, pipeline.collect(0))


def test_batch_of_unreadable_files_does_not_run_the_engine(open_jpeg_pipeline, library):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(3), depth=1)
    launched = []
    launch = gpu.modules[2].cudaGraphLaunch
    gpu.modules[2].cudaGraphLaunch = lambda *arguments: (
        launched.append(arguments) or launch(*arguments)
    )
    for count in (1, 3, 2):
        enqueue(pipeline, 0, [bad(at) for at in range(count)])
        wait_until(lambda: pipeline.is_done(0))
        check_tensors(gpu, pipeline, 0, [None] * count, pipeline.collect(0))
    assert not launched
    frames = [undecoded_jpeg_frame(7), noise(3)]
    enqueue(pipeline, 0, frames)
    check_tensors(gpu, pipeline, 0, frames, pipeline.collect(0))
    assert len(launched) == 1


def test_files_of_a_batch_are_decoded_in_parallel(open_jpeg_pipeline, library):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(8), depth=1)
    together = threading.Barrier(4)
    library.on_decode = lambda: together.wait(30)
    frames = [undecoded_jpeg_frame(at) for at in range(8)]
    enqueue(pipeline, 0, frames)
    check_tensors(gpu, pipeline, 0, frames, pipeline.collect(0))
    # No decoder is used by two threads at once, and each frame has its own place.
    assert len({state for *_, state in library.decoded}) == 4
    assert len({place for _, _, place, *_ in library.decoded}) == 8


def test_fault_in_one_thread_stops_the_batch(open_jpeg_pipeline, library, monkeypatch):
    gpu, pipeline = open_jpeg_pipeline(tensorrt=fixed(4), depth=1)
    launched = []
    gpu.modules[2].cudaGraphLaunch = lambda *arguments: launched.append(arguments)
    lost = CudaError('cudaStreamSynchronize failed', 'gone', status='gone', sticky=True)
    calls = iter([None, lost, None, None])

    def synchronize(stream, original=jpeg_threads.Stream.synchronize):
        if threading.current_thread().name.startswith('jpeg') and (error := next(calls)):
            raise error
        original(stream)

    with monkeypatch.context() as patched:
        patched.setattr(jpeg_threads.Stream, 'synchronize', synchronize)
        enqueue(pipeline, 0, [undecoded_jpeg_frame(at) for at in range(4)])
        wait_until(lambda: pipeline.is_done(0))
        with pytest.raises(CudaError) as error:
            pipeline.collect(0)
    assert error.value is lost
    assert not launched
