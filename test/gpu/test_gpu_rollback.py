"""A CudaPipeline that cannot be made leaves nothing behind, whichever call fails; without a GPU.

CUDA and TensorRT are stand-ins that count what they hand out. That the real ones behave alike is
for test_gpu_failures to show, on a GPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import replace

import pytest

from support.gpu.cuda_recorder import RELEASED_BY
from support.gpu.fake_nvjpeg import FakeNvJpeg
from support.gpu.fake_tensorrt import INPUT, OUTPUT, REASON, REFUSALS
from support.gpu.gpu_standins import DEPTH, assert_nothing_is_left, grey
from support.models.open_model import open_by_parameters
from trt_perception.errors import CudaError, EngineError, InterruptionError
from trt_perception.gpu import nvjpeg
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.process import interruption

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


@pytest.mark.parametrize('integrated', [False, True])
def test_closing_releases_all_that_opening_made(machine, config, integrated):
    recorder, tensorrt = machine(integrated=integrated)
    pipeline = open_by_parameters(config)
    made = set(recorder.calls) & set(RELEASED_BY)
    assert made == set(RELEASED_BY)
    kinds = recorder.kinds()
    # Input, output, scratch memory, TensorRT's, where the frames of a batch are, and the frame. An
    # integrated GPU reads frames where they lie: no device memory for them, but a place for their
    # headers. Page-locked memory for frames comes with them.
    assert kinds.count('cudaMalloc') == DEPTH * (5 if integrated else 6)
    assert kinds.count('cudaHostAlloc') == DEPTH * (2 if integrated else 1)
    assert kinds.count('cudaGraphInstantiate') == DEPTH
    assert len(tensorrt.living) == 1 + DEPTH
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


def calls_of_opening(machine, config):
    recorder, _ = machine()
    with contextlib.closing(open_by_parameters(config)):
        return recorder.calls.copy()


def test_all_is_released_even_if_the_device_cannot_be_made_current(machine, config):
    recorder, tensorrt = machine()
    pipeline = open_by_parameters(config)
    recorder.fails = lambda _, name: (
        'cudaErrorMemoryAllocation' if name == 'cudaSetDevice' else None
    )
    with pytest.raises(CudaError, match='cudaSetDevice'):
        pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


# Between them a failure costs the graph, not the pipeline.
CAPTURE = ('cudaStreamBeginCapture', 'cudaGraphInstantiate')


def is_captured(calls, index):
    """Tell whether a call belongs to the capture of a graph."""
    begins = [i for i, name in enumerate(calls[: index + 1]) if name == CAPTURE[0]]
    return bool(begins) and CAPTURE[1] not in calls[begins[-1] : index]


def test_whichever_cuda_call_fails_nothing_is_left(machine, config, tmp_path, monkeypatch):
    calls = calls_of_opening(machine, config)
    assert len(calls) > 100
    survived = 0
    for failing, name in enumerate(calls):
        # With nothing in the cache, so that the kernels are compiled each time.
        monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / f'cache{failing}'))
        recorder, tensorrt = machine()
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == failing else None  # noqa: B023
        )
        if is_captured(calls, failing):
            pipeline = open_by_parameters(config)
            assert len(detect_one(pipeline, grey(64, 48), Thresholds()).detections) == 0
            pipeline.close()
            survived += 1
        else:
            # The exception is kept until after the look: it must hold nothing either.
            with pytest.raises(CudaError) as caught:
                open_by_parameters(config)
            is_named = name in str(caught.value)
            assert is_named or name == 'nvrtcCompileProgram', f'call {failing}, {name}'
            assert not caught.value.sticky
        assert recorder.calls[failing] == name
        assert_nothing_is_left(recorder, tensorrt)
    assert survived >= 3 * DEPTH


@pytest.mark.parametrize('status', ['cudaErrorMemoryAllocation', 'cudaErrorIllegalAddress'])
def test_whichever_cuda_call_fails_nothing_of_nvjpeg_is_left(machine, config, monkeypatch, status):
    config = replace(config, image_transport='compressed')
    library = FakeNvJpeg()
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, (13, 3, 2)))
    calls_of_opening(machine, config)  # compiled kernels are in the cache from now on
    calls = calls_of_opening(machine, config)
    assert not library.live
    outcomes = Counter()
    for failing in range(len(calls)):
        recorder, tensorrt = machine()
        recorder.fails = lambda index, _: status if index == failing else None  # noqa: B023
        try:
            pipeline = open_by_parameters(config)
        except CudaError as error:
            outcomes[error.sticky] += 1
        else:
            outcomes['JPEG' if pipeline.decodes_jpeg else 'no JPEG'] += 1
            pipeline.close()
        assert not library.live
        assert_nothing_is_left(recorder, tensorrt)
    sticky = status == 'cudaErrorIllegalAddress'
    assert outcomes[sticky] > 50
    # Without memory for it there is no JPEG on the GPU; a lost context is never taken for that.
    # Of a first file memory, a stream, waiting for it; of each thread a stream and an event.
    assert outcomes['no JPEG'] == (0 if sticky else 3 + 2 * DEPTH)


# What may take seconds: one of them may be in progress, and no other may follow.
LONG = (
    'cudaGetDeviceCount',
    'deserialize_cuda_engine',
    'create_execution_context',
    'nvrtcCompileProgram',
    'cudaGraphInstantiate',
)


@pytest.mark.parametrize(
    ('call', 'time'), [*((call, 1) for call in LONG), ('create_execution_context', DEPTH)]
)
def test_a_signal_while_it_is_made_ends_it_before_the_next_long_call(
    machine, config, call, time, monkeypatch
):
    asked, calls = threading.Event(), []
    monkeypatch.setattr(interruption, '_END_REQUESTED', asked)
    recorder, tensorrt = machine()
    answer = tensorrt.answer

    def note(name):
        calls.append(name)
        if calls.count(call) == time:
            asked.set()

    def noted(name, *rest, **keywords):
        note(name)
        return answer(name, *rest, **keywords)

    monkeypatch.setattr(tensorrt, 'answer', noted)
    recorder.fails = lambda _, name: note(name)
    with pytest.raises(InterruptionError):
        open_by_parameters(config)
    last = len(calls) - calls[::-1].index(call)
    assert not set(LONG) & set(calls[last:])
    assert calls.count(call) == time
    assert_nothing_is_left(recorder, tensorrt)


def test_a_lost_context_is_recognised_in_whichever_call_it_shows(machine, config):
    calls_of_opening(machine, config)  # compiled kernels are in the cache from now on
    calls = calls_of_opening(machine, config)
    for failing, name in enumerate(calls):
        if name.startswith('nvrtc'):  # the compiler knows no GPU
            continue
        recorder, tensorrt = machine()
        recorder.fails = lambda index, called: (
            'cudaErrorIllegalAddress'
            if index >= failing and not called.startswith('nvrtc')  # noqa: B023
            else None
        )
        with pytest.raises(CudaError) as caught:
            open_by_parameters(config)
        assert caught.value.sticky, f'call {failing}, {name}'
        assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('call', REFUSALS)
def test_whatever_tensorrt_refuses_nothing_is_left(machine, config, call):
    recorder, tensorrt = machine(refuses=call)
    with pytest.raises(EngineError, match='images' if call == 'infer_shapes' else REASON) as error:
        open_by_parameters(config)
    assert 'tiny.engine' in str(error.value) or call in str(error.value)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_lost_context_behind_tensorrts_refusal_is_recognised(machine, config):
    recorder, tensorrt = machine(refuses='execute_async_v3')
    recorder.fails = lambda index, name: (
        'cudaErrorIllegalAddress' if 'execute_async_v3' in tensorrt.calls else None
    )
    with pytest.raises(CudaError) as caught:
        open_by_parameters(config)
    assert caught.value.sticky


def test_an_output_that_depends_on_the_data_is_refused_before_anything_is_allocated(
    machine, config, golden_messages
):
    name, _, kind = OUTPUT
    recorder, tensorrt = machine(tensors={'outputs': ((name, (-1, 3), kind),)})
    with golden_messages.raises(EngineError):
        open_by_parameters(config)
    assert 'cudaMalloc' not in recorder.calls
    assert_nothing_is_left(recorder, tensorrt)


def test_a_second_input_is_refused(machine, config, golden_messages):
    other = ('scale', (1, 2), 'FLOAT')
    recorder, tensorrt = machine(tensors={'inputs': (INPUT, other)})
    with golden_messages.raises(EngineError):
        open_by_parameters(config)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('call', ['cudaMalloc', 'cudaHostAlloc'])
def test_out_of_memory_says_how_much_of_what_and_what_to_do(
    machine, config, call, golden_messages
):
    recorder, _ = machine()
    recorder.fails = lambda index, name: 'cudaErrorMemoryAllocation' if name == call else None
    with golden_messages.raises(CudaError):
        open_by_parameters(config)


def test_a_frame_that_finds_no_room_to_grow_leaves_the_pipeline_closable(
    machine, config, golden_messages
):
    large = grey(4096, 4096)
    recorder, _ = machine()
    pipeline = open_by_parameters(config)
    before = len(recorder.calls)
    pipeline.enqueue(0, [large], [Thresholds()])
    calls = recorder.calls[before:]
    pipeline.close()
    assert {'cudaHostAlloc', 'cudaMalloc'} <= set(calls)
    for failing, name in enumerate(calls):
        recorder, tensorrt = machine()
        pipeline = open_by_parameters(config)
        start = len(recorder.calls)
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == start + failing else None  # noqa: B023
        )
        if is_captured(calls, failing):
            pipeline.enqueue(0, [large], [Thresholds()])
        elif name in ('cudaHostAlloc', 'cudaMalloc') and failing <= calls.index('cudaMalloc'):
            # Memory for this frame: only the frame is lost.
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
