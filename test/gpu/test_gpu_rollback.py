"""A CudaPipeline that cannot be made leaves nothing behind, whichever call fails; without a GPU.

CUDA and TensorRT are stand-ins that count what they hand out. That the real ones behave alike is
for test_gpu_failures to show, on a GPU.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from dataclasses import replace

import fake_cuda
import numpy as np
import pytest
from cuda_recorder import RELEASED_BY
from cuda_recorder import Recorder
from fake_nvjpeg import FakeNvJpeg
from fake_tensorrt import INPUT
from fake_tensorrt import MODEL
from fake_tensorrt import OUTPUT
from fake_tensorrt import PLAN
from fake_tensorrt import REASON
from fake_tensorrt import REFUSALS
from fake_tensorrt import FakeTensorRt

from trt_perception import interruption
from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.errors import CudaError
from trt_perception.errors import EngineError
from trt_perception.errors import InterruptionError
from trt_perception.gpu import bindings
from trt_perception.gpu import nvjpeg
from trt_perception.images.frame import Frame
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.ready import put_in_place

DEPTH = 3


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that puts stand-ins in place: (CUDA's recorder, TensorRT)."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

    def put(refuses='', tensors=None, **cuda):
        recorder = Recorder(fake_cuda.bindings(**cuda))
        tensorrt = FakeTensorRt(refuses, **(tensors or {}))
        monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
        monkeypatch.setitem(sys.modules, 'tensorrt', tensorrt)
        return recorder, tensorrt

    return put


@pytest.fixture
def config(tmp_path):
    (tmp_path / 'tiny.engine').write_bytes(PLAN)
    return DetectorConfig(
        engine_path=str(tmp_path / 'tiny.engine'),
        pipeline_depth=DEPTH,
        **MODEL,
    )


def grey(width, height):
    return Frame.view(
        np.full(width * height, 114, np.uint8),
        width=width,
        height=height,
        step=width,
        encoding='mono8',
    )


def assert_nothing_is_left(recorder, tensorrt):
    assert recorder.kinds() == []
    assert recorder.mistakes == []
    assert list(tensorrt.living) == []


@pytest.mark.parametrize('integrated', [False, True])
def test_closing_releases_all_that_opening_made(machine, config, integrated):
    recorder, tensorrt = machine(integrated=integrated)
    pipeline = open_pipeline(config)
    made = set(recorder.calls) & set(RELEASED_BY)
    assert made == set(RELEASED_BY)
    kinds = recorder.kinds()
    # An integrated GPU reads frames where they lie: no device memory for them, but a place for
    # their headers. Page-locked memory for frames comes with them.
    assert kinds.count('cudaMalloc') == DEPTH * (4 if integrated else 5)
    assert kinds.count('cudaHostAlloc') == DEPTH * (2 if integrated else 1)
    assert kinds.count('cudaGraphInstantiate') == DEPTH
    assert len(tensorrt.living) == 1 + DEPTH
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


def calls_of_opening(machine, config):
    recorder, _ = machine()
    with contextlib.closing(open_pipeline(config)):
        return recorder.calls.copy()


def test_all_is_released_even_if_the_device_cannot_be_made_current(machine, config):
    recorder, tensorrt = machine()
    pipeline = open_pipeline(config)
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
            pipeline = open_pipeline(config)
            pipeline.enqueue(0, grey(64, 48), Thresholds())
            assert len(pipeline.collect(0).detections) == 0
            pipeline.close()
            survived += 1
        else:
            # The exception is kept until after the look: it must hold nothing either.
            with pytest.raises(CudaError) as caught:
                open_pipeline(config)
            said = 'cannot compile' if name == 'nvrtcCompileProgram' else name
            assert said in str(caught.value), f'call {failing}, {name}'
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
            pipeline = open_pipeline(config)
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
    assert outcomes['no JPEG'] == (0 if sticky else 3)  # memory, a stream, waiting for it


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
    monkeypatch.setattr(interruption, '_ASKED', asked)
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
        open_pipeline(config)
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
            open_pipeline(config)
        assert caught.value.sticky, f'call {failing}, {name}'
        assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('call', REFUSALS)
def test_whatever_tensorrt_refuses_nothing_is_left(machine, config, call):
    recorder, tensorrt = machine(refuses=call)
    with pytest.raises(EngineError, match='images' if call == 'infer_shapes' else REASON) as error:
        open_pipeline(config)
    assert 'tiny.engine' in str(error.value) or call in str(error.value)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_lost_context_behind_tensorrts_refusal_is_recognised(machine, config):
    recorder, tensorrt = machine(refuses='execute_async_v3')
    recorder.fails = lambda index, name: (
        'cudaErrorIllegalAddress' if 'execute_async_v3' in tensorrt.calls else None
    )
    with pytest.raises(CudaError) as caught:
        open_pipeline(config)
    assert caught.value.sticky


def test_an_output_that_depends_on_the_data_is_refused_before_anything_is_allocated(
    machine, config
):
    name, _, kind = OUTPUT
    recorder, tensorrt = machine(tensors={'outputs': ((name, (-1, 3), kind),)})
    with pytest.raises(EngineError, match=r'depends on the data.*without NMS'):
        open_pipeline(config)
    assert 'cudaMalloc' not in recorder.calls
    assert_nothing_is_left(recorder, tensorrt)


def test_a_second_input_is_refused(machine, config):
    other = ('scale', (1, 2), 'FLOAT')
    recorder, tensorrt = machine(tensors={'inputs': (INPUT, other)})
    with pytest.raises(EngineError, match='one image input'):
        open_pipeline(config)
    assert_nothing_is_left(recorder, tensorrt)


def test_out_of_memory_says_how_much_of_what_and_what_to_do(machine, config):
    for call, kind in (('cudaMalloc', 'GPU memory'), ('cudaHostAlloc', 'page-locked')):
        recorder, _ = machine()
        recorder.fails = lambda index, name: (
            'cudaErrorMemoryAllocation' if name == call else None  # noqa: B023
        )
        with pytest.raises(CudaError, match=f'MiB of {kind}.*{call}.*pipeline_depth'):
            open_pipeline(config)


def test_a_frame_that_finds_no_room_to_grow_leaves_the_pipeline_closable(machine, config):
    large = grey(4096, 4096)
    recorder, _ = machine()
    pipeline = open_pipeline(config)
    before = len(recorder.calls)
    pipeline.enqueue(0, large, Thresholds())
    calls = recorder.calls[before:]
    pipeline.close()
    assert {'cudaHostAlloc', 'cudaMalloc'} <= set(calls)
    for failing, name in enumerate(calls):
        recorder, tensorrt = machine()
        pipeline = open_pipeline(config)
        start = len(recorder.calls)
        recorder.fails = lambda index, _: (
            'cudaErrorMemoryAllocation' if index == start + failing else None  # noqa: B023
        )
        if is_captured(calls, failing):
            pipeline.enqueue(0, large, Thresholds())
        else:
            with pytest.raises(CudaError, match=name):
                pipeline.enqueue(0, large, Thresholds())
        recorder.fails = lambda index, name: None
        pipeline.close()
        assert_nothing_is_left(recorder, tensorrt)


def enqueue_and_count(pipeline, recorder, tensorrt):
    """Return how often a frame's work was launched as a graph, and by TensorRT's own call."""
    cuda, own = len(recorder.calls), len(tensorrt.calls)
    for slot in range(DEPTH):
        pipeline.enqueue(slot, grey(64, 48), Thresholds())
    for slot in range(DEPTH):
        pipeline.collect(slot)
    launches = recorder.calls[cuda:].count('cudaGraphLaunch')
    return launches, tensorrt.calls[own:].count('execute_async_v3')


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('integrated', [False, True])
def test_a_frame_is_one_upload_of_its_size_and_one_launch(machine, config, integrated, in_place):
    recorder, tensorrt = machine(integrated=integrated)
    pipeline = open_pipeline(config)
    uploads = []
    runtime, header = recorder.modules[2], pipeline.front
    copy = runtime._module.cudaMemcpyAsync
    runtime._module.cudaMemcpyAsync = lambda to, source, size, *how: (
        uploads.append((source, size)) or copy(to, source, size, *how)
    )
    frames = [grey(width, height) for width, height in ((1920, 1080), (64, 48), (16, 8))]
    with put_in_place(pipeline, frames) as placed:
        if in_place:
            frames = placed
        else:  # the first one makes room for all
            pipeline.enqueue(0, frames[0], Thresholds())
            pipeline.collect(0)
            uploads.clear()
        before = len(recorder.calls)
        for frame in frames:
            pipeline.enqueue(0, frame, Thresholds())
            pipeline.collect(0)
        calls = recorder.calls[before:]
        # An integrated GPU reads the frame where it lies.
        pixels = [] if integrated else [1920 * 1080, 64 * 48, 16 * 8]
        assert [size for _, size in uploads] == [header + size for size in pixels]
        places = [frame.memory.pointer for frame in placed]
        if in_place and not integrated:
            assert [source for source, _ in uploads] == places
        else:
            assert not {source for source, _ in uploads} & set(places)
        assert calls.count('cudaGraphLaunch') == 3
        assert not {'cuLaunchKernel', 'cudaMalloc', 'cudaHostAlloc'} & set(calls)
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize('failing', ['cudaStreamEndCapture', 'cudaGraphInstantiate'])
def test_without_a_graph_frames_are_queued_call_by_call_after_one_warning(
    machine, config, caplog, failing
):
    recorder, tensorrt = machine()
    recorder.fails = lambda index, name: (
        'cudaErrorStreamCaptureInvalidated' if name == failing else None
    )
    pipeline = open_pipeline(config)
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (0, DEPTH)
    assert recorder.calls.count(failing) == 1
    (warning,) = [record for record in caplog.records if record.levelname == 'WARNING']
    assert 'no CUDA graph' in warning.message
    assert failing in warning.message
    pipeline.close()
    assert_nothing_is_left(recorder, tensorrt)


def test_graphs_are_launched_and_can_be_switched_off(machine, config, caplog):
    from dataclasses import replace

    recorder, tensorrt = machine()
    pipeline = open_pipeline(config)
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (DEPTH, 0)
    pipeline.close()
    recorder, tensorrt = machine()
    pipeline = open_pipeline(replace(config, use_cuda_graph=False))
    assert enqueue_and_count(pipeline, recorder, tensorrt) == (0, DEPTH)
    assert 'cudaStreamBeginCapture' not in recorder.calls
    pipeline.close()
    assert not [record for record in caplog.records if record.levelname == 'WARNING']


def test_a_kernel_that_does_not_compile_shows_the_compilers_log(machine, config):
    recorder, tensorrt = machine(log=b'kernels.cu(7): error: expected a ";"\n')
    with pytest.raises(
        CudaError, match=r'NVRTC 13\.0.*sm_87: NVRTC_ERROR_COMPILATION\n.*expected a ";"$'
    ):
        open_pipeline(config)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_compiler_that_does_not_know_the_gpu_says_so(machine, config):
    machine(log=b'nvrtc: error: invalid value for --gpu-architecture (-arch)\n')
    with pytest.raises(
        CudaError, match=r'sm_87: .*\n.*; install NVRTC of another .* knows this GPU'
    ):
        open_pipeline(config)


def raising(error):
    def function(*arguments):
        raise error

    return function


def test_a_missing_compiler_says_what_to_install(machine, config):
    recorder, tensorrt = machine()
    library = recorder.modules[1]
    library.nvrtcVersion = raising(RuntimeError('Failure finding "libnvrtc.so"'))
    with pytest.raises(CudaError, match=r'NVRTC is missing.*apt install.*pip install'):
        open_pipeline(config)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize(
    ('status', 'driver', 'message'),
    [
        ('cudaErrorInsufficientDriver', 0, 'no NVIDIA driver was found; install'),
        ('cudaErrorInsufficientDriver', 12060, r'up to 12\.6, this cuda-bindings needs 13\.0'),
        ('cudaErrorNoDevice', 13000, 'shows no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES'),
    ],
)
def test_a_missing_or_old_driver_says_what_to_install(machine, config, status, driver, message):
    recorder, tensorrt = machine()
    runtime = recorder.modules[2]
    runtime.cudaDriverGetVersion = lambda: (fake_cuda.cudaError_t.cudaSuccess, driver)
    recorder.fails = lambda index, name: status if name == 'cudaGetDeviceCount' else None
    with pytest.raises(CudaError, match=message):
        open_pipeline(config)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_driver_library_that_cannot_be_loaded_says_what_to_install(machine, config):
    recorder, tensorrt = machine()
    recorder.modules[2].cudaGetDeviceCount = raising(RuntimeError('Failed to dlopen libcuda.so.1'))
    with pytest.raises(CudaError, match=r'no CUDA driver: .*libcuda.*install the NVIDIA driver'):
        open_pipeline(config)
    recorder, tensorrt = machine()
    recorder.modules[0].cuLibraryLoadData = raising(RuntimeError('Failed to dlopen libcuda.so.1'))
    with pytest.raises(CudaError, match=r'no CUDA driver: .*libcuda.*install the NVIDIA driver'):
        open_pipeline(config)
    assert_nothing_is_left(recorder, tensorrt)
