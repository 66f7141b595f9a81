# SPDX-License-Identifier: Apache-2.0
"""Tests of batches on the GPU: each frame reaches its own place, whatever the other frames are.

The stand-in for the GPU does all work as late as CUDA may. The expected input tensor is the host's
preprocessing. The engines of the stand-in for TensorRT do nothing.
"""

import ctypes
import sys
from dataclasses import replace

import numpy as np
import pytest

from support.gpu.fake_tensorrt import MODEL_PARAMETERS, FakeTensorRt
from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor
from support.oracles.reference_images import random_frame
from trt_perception.errors import ImageError, OutputError, UnnamedClassError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.cuda.results import HostDecoder
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler

KINDS = [('bgr8', (37, 23)), ('nv12', (64, 48)), ('mono16', (9, 100)), ('bayer_rggb8', (30, 30))]


def tensors(batch):
    """Return the inputs and outputs of the stand-in. A batch of -1 makes the batch size open."""
    return {
        'inputs': (('images', (batch, 3, 48, 64), 'FLOAT'),),
        'outputs': (('output', (batch, 7, 4), 'FLOAT'),),
    }


def profile(low, high):
    return (low, 3, 48, 64), (low, 3, 48, 64), (high, 3, 48, 64)


def fixed(batch):
    return FakeTensorRt(**tensors(batch))


def profiles(*sizes):
    """Return an engine with an open batch size. A number or a pair of limits is a profile."""
    pairs = [size if isinstance(size, tuple) else (size, size) for size in sizes]
    return FakeTensorRt(**tensors(-1), profiles=[profile(*pair) for pair in pairs])


ENGINES = {
    'fixed 5': (lambda: fixed(5), [5]),
    'profiles 1, 2, 5': (lambda: profiles(1, 2, 5), [1, 2, 5]),
    'profiles 5, 2': (lambda: profiles(5, 2), [2, 5]),
    'open to 5': (lambda: profiles((1, 5)), [1, 2, 4, 5]),
    'open from 3 to 5': (lambda: profiles((3, 5)), [3, 4, 5]),
}


def noise(seed, padding=5):
    encoding, (width, height) = KINDS[seed % len(KINDS)]
    return random_frame(np.random.default_rng(seed), encoding, width, height, padding)


def open_batched_pipeline(open_late_pipeline, engine, **options):
    make_engine, sizes = ENGINES[engine]
    gpu, pipeline = open_late_pipeline(tensorrt=make_engine(), **options)
    assert pipeline.batch == sizes[-1]
    assert [size.batch for size in pipeline.slots[0]._sizes] == sizes
    return gpu, pipeline, sizes


@pytest.mark.parametrize('engine', ENGINES)
@pytest.mark.parametrize('graph', [True, False])
@pytest.mark.parametrize('integrated', [False, True])
def test_each_frame_of_a_batch_reaches_its_own_place(
    open_late_pipeline, engine, graph, integrated
):
    gpu, pipeline, sizes = open_batched_pipeline(
        open_late_pipeline, engine, graph=graph, integrated=integrated
    )
    captures = gpu.captures
    assert captures == (pipeline.depth * len(sizes) if graph else 0)
    rng = np.random.default_rng(5)
    for turn in range(12):
        count, slot = int(rng.integers(1, pipeline.batch + 1)), turn % pipeline.depth
        frames = [noise(100 * turn + place + turn) for place in range(count)]
        with copy_to_pipeline_memory(pipeline, frames) as placed:
            # Some frames are outside the pipeline's memory.
            submitted = [frames[at] if at % 3 == 1 else placed[at] for at in range(count)]
            before = [gpu.input_of(pipeline.slots[slot], at).copy() for at in range(5)]
            pipeline.enqueue(slot, submitted, [Thresholds()] * count)
            results = pipeline.collect(slot)
        assert [len(result.detections) for result in results] == [0] * count
        assert len({result.compute_s for result in results}) == 1
        for at in range(5):
            expected = expected_tensor(frames[at]) if at < count else before[at]
            np.testing.assert_array_equal(gpu.input_of(pipeline.slots[slot], at), expected)
    assert gpu.captures == captures


def test_smallest_sufficient_batch_size_runs(open_late_pipeline):
    engine = profiles(1, 4, 8)
    gpu, pipeline = open_late_pipeline(tensorrt=engine, graph=False)
    memory = {}
    for number, (used, shape, address) in enumerate(engine.contexts):
        assert shape == (engine.profiles[used][0][0], 3, 48, 64)
        memory.setdefault(number // 3, set()).add(address)
    # The contexts of a slot share memory. Two slots never share memory.
    assert [len(own) for own in memory.values()] == [1, 1]
    assert not memory[0] & memory[1]
    asked = []
    launch = gpu.modules[0].cuLaunchKernel
    gpu.modules[0].cuLaunchKernel = lambda *arguments: (
        asked.append(arguments[3]) or launch(*arguments)
    )
    for count, size in ((1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (3, 4), (1, 1)):
        asked.clear()
        pipeline.enqueue(0, [noise(1)] * count, [Thresholds()] * count)
        assert len(pipeline.collect(0)) == count
        assert set(asked) == {size}


def test_first_frame_of_a_place_allocates_its_memory(open_late_pipeline):
    gpu, pipeline = open_late_pipeline(tensorrt=fixed(32), depth=1)
    places = pipeline.slots[0].places
    assert [place.address != 0 for place in places] == [True] + [False] * 31
    pipeline.enqueue(0, [noise(1)] * 3, [Thresholds()] * 3)
    pipeline.collect(0)
    assert [place.address != 0 for place in places] == [True] * 3 + [False] * 29
    # A place keeps its memory. Only a larger frame replaces the memory.
    addresses = [place.address for place in places]
    for size in ((64, 48), (300, 200), (64, 48)):
        frames = [noise(0), random_frame(np.random.default_rng(1), 'bgr8', *size, 0)]
        pipeline.enqueue(0, frames, [Thresholds()] * 2)
        pipeline.collect(0)
        for at, frame in enumerate(frames):
            found = gpu.input_of(pipeline.slots[0], at)
            np.testing.assert_array_equal(found, expected_tensor(frame))
    moved = [at for at, place in enumerate(places) if place.address != addresses[at]]
    assert moved == [1]


@pytest.mark.parametrize(('most', 'expected'), [(1, 1), (2, 4), (4, 4), (5, 8), (99, 8)])
def test_unneeded_batch_sizes_are_not_prepared(open_late_pipeline, tmp_path, most, expected):
    open_late_pipeline(tensorrt=profiles(1, 4, 8))
    model = read_model_file(tmp_path / 'tiny.engine')
    tensorrt = profiles(1, 4, 8)
    sys.modules['tensorrt'] = tensorrt
    options = ParameterValues(pipeline_depth=1, **MODEL_PARAMETERS).pipeline_options()
    pipeline = CudaPipeline(model, replace(options, max_batch=most))
    assert pipeline.batch == expected
    assert len(tensorrt.contexts) == [1, 4, 8].index(expected) + 1
    pipeline.close()


def test_two_slots_keep_their_own_frames(open_late_pipeline):
    gpu, pipeline, _ = open_batched_pipeline(open_late_pipeline, 'profiles 1, 2, 5')
    for turn in range(4):
        enqueued = []
        for slot, count in ((0, 1 + turn), (1, 5 - turn)):
            frames = [noise(turn + 10 * slot + at) for at in range(count)]
            pipeline.enqueue(slot, frames, [Thresholds()] * count)
            enqueued.append(frames)
        assert not pipeline.is_done(0)
        for slot in (1, 0):
            pipeline.collect(slot)
            for at, frame in enumerate(enqueued[slot]):
                found = gpu.input_of(pipeline.slots[slot], at)
                np.testing.assert_array_equal(found, expected_tensor(frame))


def test_each_frame_is_decoded_by_its_own_thresholds(open_late_pipeline):
    """The host decodes the outputs of each place with the thresholds of this place."""
    engine = FakeTensorRt(
        inputs=(('images', (4, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (4, 10, 6), 'FLOAT'),),
    )
    _, pipeline = open_late_pipeline(tensorrt=engine, model_decoder='end_to_end', depth=1)
    rows = np.zeros((4, 10, 6), np.float32)
    rows[:, :, :4] = [4, 4, 20, 20]
    rows[:, :, 4] = np.linspace(0.05, 0.95, 10)
    rows[:, :, 5] = np.arange(10) % 3
    rows[:, :, 2] += np.arange(4)[:, None]  # identifies the place
    frames = [random_frame(np.random.default_rng(1), 'mono8', 64, 48, 0)] * 3
    thresholds = [Thresholds(0.5), Thresholds(0.1, class_ids=(1,)), Thresholds(0.96)]
    assert isinstance(pipeline.slots[0].decoder, HostDecoder)
    ctypes.memmove(pipeline.slots[0].outputs['output'], rows.tobytes(), rows.nbytes)
    pipeline.enqueue(0, frames, thresholds)
    found = [each.detections for each in pipeline.collect(0)]
    assert [len(each) for each in found] == [5, 3, 0]
    for place, each in enumerate(found):
        assert set(each.xyxy[:, 2]) <= {20 + place}


def test_invalid_output_affects_no_other_frame_of_the_batch(open_late_pipeline):
    engine = FakeTensorRt(
        inputs=(('images', (4, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (4, 2, 6), 'FLOAT'),),
    )
    _, pipeline = open_late_pipeline(tensorrt=engine, model_decoder='end_to_end', depth=1)
    rows = np.zeros((4, 2, 6), np.float32)
    rows[:, :] = [4, 4, 20, 20, 0.9, 0]
    rows[1, 0, 4] = 1.3
    rows[2, 1, 5] = 3
    rows[3, :, 4] = np.nan
    frames = [random_frame(np.random.default_rng(1), 'mono8', 64, 48, 0)] * 4
    ctypes.memmove(pipeline.slots[0].outputs['output'], rows.tobytes(), rows.nbytes)

    pipeline.enqueue(0, frames, [Thresholds()] * 4)
    good, *bad = pipeline.collect(0)
    pipeline.enqueue(0, frames[:1], [Thresholds()])
    (after,) = pipeline.collect(0)

    assert [len(result.detections) for result in (good, after)] == [2, 2]
    assert [type(error) for error in bad] == [OutputError, UnnamedClassError, OutputError]


@pytest.mark.parametrize('is_damaged', [False, True])
@pytest.mark.parametrize(
    ('task', 'decoder', 'shape'),
    [
        ('classify', 'class_logits', (3,)),
        ('semantic', 'pixel_logits', (3, 12, 16)),
        ('depth', 'metric_depth', (48, 64)),
    ],
)
def test_each_frame_has_its_own_result_of_the_whole_image(
    open_late_pipeline, tmp_path, task, decoder, shape, is_damaged
):
    """The host decodes. Place n has class n, or a depth of n + 1 metres."""
    open_late_pipeline()
    sys.modules['tensorrt'] = FakeTensorRt(
        inputs=(('images', (4, 3, 48, 64), 'FLOAT'),),
        outputs=(('output', (4, *shape), 'FLOAT'),),
    )
    model = {**MODEL_PARAMETERS, 'model_task': task, 'model_decoder': decoder}
    model |= {'model_class_names': ()} if task == 'depth' else {}
    options = ParameterValues(pipeline_depth=1, **model).pipeline_options()
    path = tmp_path / 'tiny.engine'
    options = replace(options, max_batch=4)
    pipeline = CudaPipeline(read_model_file(path), options, returns_outputs=True)
    values = np.zeros((4, *shape), np.float32)
    for place in range(3):
        values[place] = place + 1
        if task != 'depth':
            values[place] = 0
            values[place, place] = 9
    if is_damaged:
        values[1] = np.nan
    frames = [random_frame(np.random.default_rng(1), 'mono8', 60 + at, 40, 0) for at in range(3)]
    ctypes.memmove(pipeline.slots[0].outputs['output'], values.tobytes(), values.nbytes)
    pipeline.enqueue(0, frames, [Thresholds()] * 3)
    for place, result in enumerate(pipeline.collect(0)):
        if is_damaged and place == 1 and task != 'depth':
            assert isinstance(result, OutputError)
            continue
        found = result.found
        if task == 'classify':
            assert found.scores.argmax() == place
            continue
        pixels = found.image('depth') - 1 if task == 'depth' else found.image('class_ids')
        expected = np.nan if is_damaged and place == 1 else place
        np.testing.assert_allclose(pixels, np.full((40, 60 + place), expected), atol=1e-6)
    pipeline.close()


def test_frame_in_memory_of_another_gpu_is_uploaded_directly(open_late_pipeline):
    """All GPUs can read page-locked memory, so pipelines of several GPUs share buffers."""
    gpu, pipeline, _ = open_batched_pipeline(open_late_pipeline, 'fixed 5')
    flags = []
    runtime = gpu.modules[2]
    allocate = runtime.cudaHostAlloc
    runtime.cudaHostAlloc = lambda size, how: flags.append(how) or allocate(size, how)
    memory = pipeline.allocate(20_000)
    assert flags == [runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable]
    frame = noise(0)
    data = memory.array[: frame.data.size]
    data[:] = frame.data
    pipeline.enqueue(0, [replace(frame, data=data, memory=memory)], [Thresholds()])
    pipeline.collect(0)
    assert gpu.uploads == [(memory.buffer.pointer, pipeline.header_bytes + frame.data.size)]
    memory.close()


@pytest.mark.parametrize('graph', [True, False])
@pytest.mark.parametrize('integrated', [False, True])
def test_frame_without_memory_affects_no_other_frame(
    open_late_pipeline, integrated, graph, golden_messages
):
    gpu, pipeline = open_late_pipeline(
        tensorrt=fixed(3), integrated=integrated, graph=graph, depth=1
    )
    runtime = gpu.modules[2]
    # An integrated GPU reads frames in host memory. Frames in other memory are copied first.
    call = 'cudaHostAlloc' if integrated else 'cudaMalloc'
    allocate = getattr(runtime, call)
    full = runtime.cudaError_t.cudaErrorMemoryAllocation, 0
    large, larger = (
        random_frame(np.random.default_rng(1), 'bgr8', *size, 0)
        for size in ((2000, 900), (3000, 2000))
    )

    def collect_with_limit(frames, limit_bytes):
        """Return the results of a batch while larger allocations fail."""
        setattr(runtime, call, lambda *a: full if a[0] > limit_bytes else allocate(*a))
        pipeline.enqueue(0, frames, [Thresholds()] * len(frames))
        results = pipeline.collect(0)
        for at, result in enumerate(results):
            if not isinstance(result, ImageError):
                found = gpu.input_of(pipeline.slots[0], at)
                np.testing.assert_array_equal(found, expected_tensor(frames[at]))
        return [getattr(result, 'reason', '') for result in results], results

    frames = [noise(0), large, noise(2)]
    reasons, results = collect_with_limit(frames, 2**20)
    assert reasons == ['', 'too_large', '']
    golden_messages.add(results[1])
    assert results[1].__traceback__ is None
    assert collect_with_limit(frames, 2**30)[0] == ['', '', '']
    # Other places keep their memory. A batch of only this frame does not run.
    assert collect_with_limit([noise(1), large, larger], 2**20)[0] == ['', '', 'too_large']
    assert collect_with_limit([noise(1), larger], 2**20)[0] == ['', 'too_large']
    assert collect_with_limit([larger], 2**20)[0] == ['too_large']
    assert collect_with_limit(frames, 2**20)[0] == ['', '', '']


@pytest.mark.parametrize('graph', [True, False])
@pytest.mark.parametrize('integrated', [False, True])
def test_other_frames_are_processed_while_no_memory_is_left(open_late_pipeline, integrated, graph):
    gpu, pipeline = open_late_pipeline(
        tensorrt=fixed(3), integrated=integrated, graph=graph, depth=1
    )
    runtime = gpu.modules[2]
    full = runtime.cudaError_t.cudaErrorMemoryAllocation, 0
    allocate = {name: getattr(runtime, name) for name in ('cudaMalloc', 'cudaHostAlloc')}
    with copy_to_pipeline_memory(pipeline, [noise(seed) for seed in range(3)]) as frames:
        for name in allocate:
            setattr(runtime, name, lambda *of: full)
        for order in ((0, 1, 2), (2, 0, 1), (1,)):
            pipeline.enqueue(0, [frames[at] for at in order], [Thresholds()] * len(order))
            reasons = [getattr(one, 'reason', '') for one in pipeline.collect(0)]
            # Only the first place has memory since the start.
            assert reasons == ['', 'too_large', 'too_large'][: len(order)]
            expected = expected_tensor(frames[order[0]])
            np.testing.assert_array_equal(gpu.input_of(pipeline.slots[0]), expected)
        for name, function in allocate.items():
            setattr(runtime, name, function)
        pipeline.enqueue(0, frames, [Thresholds()] * 3)
        pipeline.collect(0)
        for at, frame in enumerate(frames):
            found = gpu.input_of(pipeline.slots[0], at)
            np.testing.assert_array_equal(found, expected_tensor(frame))
