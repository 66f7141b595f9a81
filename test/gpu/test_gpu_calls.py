# SPDX-License-Identifier: Apache-2.0
"""Count the CUDA and TensorRT calls for a frame, with and without a graph. Needs no GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from support.gpu.gpu_standins import PIPELINE_DEPTH, assert_nothing_is_left, grey_frame
from support.models.open_model import open_by_parameters
from trt_perception.gpu import Kernels
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


def enqueue_and_count(pipeline, recorder, tensorrt):
    """Return how many graph launches and how many TensorRT enqueue calls the frames needed."""
    first_cuda_call, first_tensorrt_call = len(recorder.calls), len(tensorrt.calls)
    for slot in range(PIPELINE_DEPTH):
        pipeline.enqueue(slot, [grey_frame(64, 48)], [Thresholds()])
    for slot in range(PIPELINE_DEPTH):
        pipeline.collect(slot)
    launches = recorder.calls[first_cuda_call:].count('cudaGraphLaunch')
    return launches, tensorrt.calls[first_tensorrt_call:].count('execute_async_v3')


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('integrated', [False, True])
def test_each_frame_needs_one_upload_and_one_graph_launch(
    install_standins, parameters, integrated, in_place
):
    recorder, tensorrt = install_standins(integrated=integrated)
    pipeline = open_by_parameters(parameters)
    uploads = []
    runtime, header = recorder.modules[2], pipeline.header_bytes
    copy = runtime._module.cudaMemcpyAsync
    runtime._module.cudaMemcpyAsync = lambda to, source, size, *how: (
        uploads.append((source, size)) or copy(to, source, size, *how)
    )
    frames = [grey_frame(width, height) for width, height in ((1920, 1081), (64, 48), (16, 8))]
    with copy_to_pipeline_memory(pipeline, frames) as placed_frames:
        if in_place:
            frames = placed_frames
        else:  # the first frame allocates memory for all frames
            detect_one(pipeline, frames[0], Thresholds())
            uploads.clear()
        before = len(recorder.calls)
        for frame in frames:
            detect_one(pipeline, frame, Thresholds())
        calls = recorder.calls[before:]
        # An integrated GPU reads the frame directly from host memory.
        pixels = [] if integrated else [1920 * 1081, 64 * 48, 16 * 8]
        assert [size for _, size in uploads] == [header + size for size in pixels]
        addresses = [frame.memory.buffer.pointer for frame in placed_frames]
        if in_place and not integrated:
            assert [source for source, _ in uploads] == addresses
        else:
            assert not {source for source, _ in uploads} & set(addresses)
        assert calls.count('cudaGraphLaunch') == 3
        assert not {'cuLaunchKernel', 'cudaMalloc', 'cudaHostAlloc'} & set(calls)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('failing', ['cudaStreamEndCapture', 'cudaGraphInstantiate'])
def test_failed_graph_capture_warns_once_and_queues_each_call(
    install_standins, parameters, caplog, failing, golden_messages
):
    recorder, tensorrt = install_standins()
    recorder.fails = lambda index, name: (
        'cudaErrorStreamCaptureInvalidated' if name == failing else None
    )
    pipeline = open_by_parameters(parameters)
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (0, PIPELINE_DEPTH)
    assert recorder.calls.count(failing) == 1
    (warning,) = [record for record in caplog.records if record.levelname == 'WARNING']
    golden_messages.add(warning.message)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


def test_cuda_graphs_can_be_switched_off(install_standins, parameters, caplog):
    from dataclasses import replace

    recorder, tensorrt = install_standins()
    pipeline = open_by_parameters(parameters)
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (PIPELINE_DEPTH, 0)
    pipeline.close()
    recorder, tensorrt = install_standins()
    pipeline = open_by_parameters(replace(parameters, use_cuda_graph=False))
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (0, PIPELINE_DEPTH)
    assert 'cudaStreamBeginCapture' not in recorder.calls
    pipeline.close()
    assert not [record for record in caplog.records if record.levelname == 'WARNING']


def test_function_of_an_unloaded_kernel_is_not_launched(install_standins):
    recorder, _ = install_standins()
    stream = SimpleNamespace(handle=0)

    def launch():
        kernels.launch('letterbox', (1, 1, 1), (1, 1, 1), [], stream)
        return recorder.calls.count('cuLibraryGetKernel')

    with Kernels(b'') as kernels:
        assert [launch(), launch()] == [1, 1]
    assert launch() == 2  # CUDA refuses this call, because the library is unloaded
