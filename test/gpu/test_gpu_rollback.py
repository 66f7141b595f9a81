# SPDX-License-Identifier: Apache-2.0
"""A CudaPipeline that fails to open releases everything, whichever call fails. Needs no GPU.

Stand-ins for CUDA and TensorRT count the objects that they hand out. test_gpu_failures checks on a
GPU that the real libraries behave in the same way.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace

import pytest

from support.gpu.cuda_recorder import RELEASED_BY
from support.gpu.fake_nvjpeg import FakeNvJpeg
from support.gpu.fake_tensorrt import INPUT, OUTPUT, REFUSAL_REASON, REFUSED_RESULTS
from support.gpu.gpu_standins import PIPELINE_DEPTH, assert_nothing_is_left, grey_frame
from support.models.open_model import open_by_parameters
from trt_perception.errors import CudaError, EngineError, InterruptionError
from trt_perception.gpu import nvjpeg
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.process import interruption

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


@pytest.mark.parametrize('integrated', [False, True])
def test_close_releases_all_objects(install_standins, parameters, integrated):
    recorder, tensorrt = install_standins(integrated=integrated)
    pipeline = open_by_parameters(parameters)
    created = set(recorder.calls) & set(RELEASED_BY)
    assert created == set(RELEASED_BY)
    kinds = recorder.kinds()
    # Device memory for input, output, scratch memory, TensorRT, the table of frame addresses, and
    # the frame. An integrated GPU reads frames from host memory: it needs no device memory for
    # frames, but page-locked memory for headers. The table has page-locked memory, too. The first
    # frame allocates page-locked memory for pixels.
    assert kinds.count('cudaMalloc') == PIPELINE_DEPTH * (5 if integrated else 6)
    assert kinds.count('cudaHostAlloc') == PIPELINE_DEPTH * (3 if integrated else 2)
    assert kinds.count('cudaGraphInstantiate') == PIPELINE_DEPTH
    assert len(tensorrt.living) == 1 + PIPELINE_DEPTH
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


def calls_to_open(install_standins, parameters):
    recorder, _ = install_standins()
    with contextlib.closing(open_by_parameters(parameters)):
        return recorder.calls.copy()


def test_close_releases_all_objects_if_the_device_cannot_be_selected(install_standins, parameters):
    recorder, tensorrt = install_standins()
    pipeline = open_by_parameters(parameters)
    recorder.fails = lambda _, name: (
        'cudaErrorMemoryAllocation' if name == 'cudaSetDevice' else None
    )
    with pytest.raises(CudaError, match='cudaSetDevice'):
        pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


# If a call between these two calls fails, the pipeline runs without a graph.
CAPTURE_CALLS = ('cudaStreamBeginCapture', 'cudaGraphInstantiate')


def is_captured(calls, index):
    """Return whether a call belongs to the capture of a graph."""
    begins = [i for i, name in enumerate(calls[: index + 1]) if name == CAPTURE_CALLS[0]]
    return bool(begins) and CAPTURE_CALLS[1] not in calls[begins[-1] : index]


def test_failed_cuda_call_leaves_no_objects(install_standins, parameters, tmp_path, monkeypatch):
    calls = calls_to_open(install_standins, parameters)
    assert len(calls) > 100
    survived = 0
    for failing, name in enumerate(calls):
        # With an empty cache, every run compiles the kernels.
        monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / f'cache{failing}'))
        recorder, tensorrt = install_standins()
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == failing else None  # noqa: B023
        )
        if is_captured(calls, failing):
            pipeline = open_by_parameters(parameters)
            assert len(detect_one(pipeline, grey_frame(64, 48), Thresholds()).detections) == 0
            pipeline.close()
            survived += 1
        else:
            # The exception still exists during the check. It must not keep objects alive.
            with pytest.raises(CudaError) as caught:
                open_by_parameters(parameters)
            is_named = name in str(caught.value)
            assert is_named or name == 'nvrtcCompileProgram', f'call {failing}, {name}'
            assert not caught.value.sticky
        assert recorder.calls[failing] == name
        assert_nothing_is_left(recorder, tensorrt)
    assert survived >= 3 * PIPELINE_DEPTH


@pytest.mark.parametrize('status', ['cudaErrorMemoryAllocation', 'cudaErrorIllegalAddress'])
def test_failed_cuda_call_leaves_no_nvjpeg_objects(
    install_standins, parameters, monkeypatch, status
):
    parameters = replace(parameters, image_transport='compressed')
    library = FakeNvJpeg()
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, (13, 3, 2)))
    calls_to_open(install_standins, parameters)  # fills the cache with compiled kernels
    calls = calls_to_open(install_standins, parameters)
    assert not library.live
    outcomes = Counter()
    for failing in range(len(calls)):
        recorder, tensorrt = install_standins()
        recorder.fails = lambda index, _: status if index == failing else None  # noqa: B023
        try:
            pipeline = open_by_parameters(parameters)
        except CudaError as error:
            outcomes[error.sticky] += 1
        else:
            outcomes['JPEG' if pipeline.decodes_jpeg else 'no JPEG'] += 1
            pipeline.close()
        assert not library.live
        assert_nothing_is_left(recorder, tensorrt)
    sticky = status == 'cudaErrorIllegalAddress'
    assert outcomes[sticky] > 50
    # Some failed calls only disable JPEG decoding on the GPU: three calls for the first file, and
    # the creation of each decoder's stream and event. A lost context always fails the pipeline.
    assert outcomes['no JPEG'] == (0 if sticky else 3 + 2 * PIPELINE_DEPTH)


# Each of these calls may take seconds. After a signal, the call in progress may finish, but no
# other may start.
LONG_CALLS = (
    'cudaGetDeviceCount',
    'deserialize_cuda_engine',
    'create_execution_context',
    'nvrtcCompileProgram',
    'cudaGraphInstantiate',
)


@pytest.mark.parametrize(
    ('call', 'time'),
    [*((call, 1) for call in LONG_CALLS), ('create_execution_context', PIPELINE_DEPTH)],
)
def test_signal_stops_opening_before_the_next_long_call(
    install_standins, parameters, call, time, monkeypatch
):
    calls = []
    monkeypatch.setattr(interruption, '_REQUESTED_S', [])
    recorder, tensorrt = install_standins()
    answer = tensorrt.answer

    def record_call(name):
        calls.append(name)
        if calls.count(call) == time:
            interruption.interrupt()

    def recorded_answer(name, *arguments, **keywords):
        record_call(name)
        return answer(name, *arguments, **keywords)

    monkeypatch.setattr(tensorrt, 'answer', recorded_answer)
    recorder.fails = lambda _, name: record_call(name)
    with pytest.raises(InterruptionError):
        open_by_parameters(parameters)
    last = len(calls) - calls[::-1].index(call)
    assert not set(LONG_CALLS) & set(calls[last:])
    assert calls.count(call) == time
    assert_nothing_is_left(recorder, tensorrt)


def test_lost_context_is_recognised_in_each_call(install_standins, parameters):
    calls_to_open(install_standins, parameters)  # fills the cache with compiled kernels
    calls = calls_to_open(install_standins, parameters)
    for failing, name in enumerate(calls):
        if name.startswith('nvrtc'):  # the compiler does not use the GPU
            continue
        recorder, tensorrt = install_standins()
        recorder.fails = lambda index, called: (
            'cudaErrorIllegalAddress'
            if index >= failing and not called.startswith('nvrtc')  # noqa: B023
            else None
        )
        with pytest.raises(CudaError) as caught:
            open_by_parameters(parameters)
        assert caught.value.sticky, f'call {failing}, {name}'
        assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('call', REFUSED_RESULTS)
def test_failed_tensorrt_call_leaves_no_objects(install_standins, parameters, call):
    recorder, tensorrt = install_standins(refuses=call)
    with pytest.raises(
        EngineError, match='images' if call == 'infer_shapes' else REFUSAL_REASON
    ) as error:
        open_by_parameters(parameters)
    assert 'tiny.engine' in str(error.value) or call in str(error.value)
    assert_nothing_is_left(recorder, tensorrt)


def test_lost_context_is_recognised_when_tensorrt_fails(install_standins, parameters):
    recorder, tensorrt = install_standins(refuses='execute_async_v3')
    recorder.fails = lambda index, name: (
        'cudaErrorIllegalAddress' if 'execute_async_v3' in tensorrt.calls else None
    )
    with pytest.raises(CudaError) as caught:
        open_by_parameters(parameters)
    assert caught.value.sticky


def test_data_dependent_output_is_refused_before_allocation(
    install_standins, parameters, golden_messages
):
    name, _, kind = OUTPUT
    recorder, tensorrt = install_standins(tensors={'outputs': ((name, (-1, 3), kind),)})
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters)
    assert 'cudaMalloc' not in recorder.calls
    assert_nothing_is_left(recorder, tensorrt)


def test_engine_with_a_second_input_is_refused(install_standins, parameters, golden_messages):
    second_input = ('scale', (1, 2), 'FLOAT')
    recorder, tensorrt = install_standins(tensors={'inputs': (INPUT, second_input)})
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('call', ['cudaMalloc', 'cudaHostAlloc'])
def test_out_of_memory_error_mentions_the_amount_and_a_fix(
    install_standins, parameters, call, golden_messages
):
    recorder, _ = install_standins()
    recorder.fails = lambda index, name: 'cudaErrorMemoryAllocation' if name == call else None
    with golden_messages.raises(CudaError):
        open_by_parameters(parameters)


def test_pipeline_can_close_after_a_frame_found_no_memory(
    install_standins, parameters, golden_messages
):
    large = grey_frame(4096, 4096)
    recorder, _ = install_standins()
    pipeline = open_by_parameters(parameters)
    calls_before = len(recorder.calls)
    pipeline.enqueue(0, [large], [Thresholds()])
    calls = recorder.calls[calls_before:]
    pipeline.close()
    assert {'cudaHostAlloc', 'cudaMalloc'} <= set(calls)
    for failing, name in enumerate(calls):
        recorder, tensorrt = install_standins()
        pipeline = open_by_parameters(parameters)
        start = len(recorder.calls)
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == start + failing else None  # noqa: B023
        )
        if is_captured(calls, failing):
            pipeline.enqueue(0, [large], [Thresholds()])
        elif name in ('cudaHostAlloc', 'cudaMalloc') and failing <= calls.index('cudaMalloc'):
            # The pipeline drops only this frame when its memory is missing.
            pipeline.enqueue(0, [large], [Thresholds()])
            (refused,) = pipeline.collect(0)
            assert refused.reason == 'too_large'
            golden_messages.add(refused)
        else:
            with pytest.raises(CudaError, match=name):
                pipeline.enqueue(0, [large], [Thresholds()])
        recorder.fails = lambda index, name: None
        pipeline.close()
        assert_nothing_is_left(recorder, tensorrt)
