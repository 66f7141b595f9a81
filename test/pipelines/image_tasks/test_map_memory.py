# SPDX-License-Identifier: Apache-2.0
"""Tests of the memory for maps on a GPU, which executes work late: see late_gpu."""

import ctypes
import math
from types import SimpleNamespace

import numpy as np
import pytest

from support.gpu import fake_cuda
from support.gpu.fake_tensorrt import PLAN
from support.gpu.late_gpu import LateGpu
from support.models.image_models import NETWORK, write_image_model
from support.models.open_model import open_by_parameters
from support.oracles.map_outputs import ALL_TOPICS, map_spec
from trt_perception.errors import GpuMemoryError
from trt_perception.gpu import Device, Stream, bindings
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.results.cell_taps import cell_taps
from trt_perception.images.results.kernel_maps import HEADER_ROOM
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda import maps as cuda_maps
from trt_perception.pipelines.cuda.maps import MapDecoder
from trt_perception.pipelines.cuda.pinned_images import ImagePool

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

NETWORK_WH = (96, 64)
SMALL = (64, 48)
TWO_TABLES = 100_000  # bytes: room for the tables of two sizes of MANY_SIZES
MANY_SIZES = [(640 + 16 * index, 480) for index in range(64)]
FULL = fake_cuda.cudaError_t.cudaErrorMemoryAllocation, 0


class LateKernels:
    """Kernels of a GPU that read their tables when the queued work is executed."""

    taps = 4

    def __init__(self, gpu, layout):
        self._gpu = gpu
        self.map_layout = layout
        self.read = []  # (size of the map, bytes of the tables), as the kernels read them

    def make_map(self, outputs, taps, maps, place, size_wh, scaling, stream):
        size = sum(size_wh) * cuda_maps.tap_dtype(self.taps).itemsize

        def draw():
            self.read.append((size_wh, ctypes.string_at(taps[0], size)))
            ctypes.memset(maps[0], 7, 4 * math.prod(size_wh))

        self._gpu._queue_work(stream.handle, draw)


@pytest.fixture
def late(monkeypatch):
    """Yield a decoder that makes depth maps in the size of the image, with its kernels and GPU."""
    gpu = LateGpu(None)
    monkeypatch.setattr(bindings, 'load_bindings', lambda: gpu.modules)
    spec = map_spec('relative depth', 'stretch', NETWORK_WH, 0, batch=1)
    kernels = LateKernels(gpu, spec.decoder.map_layout())
    with Stream() as stream, ImagePool(Device(0)) as images:
        decoder = MapDecoder(kernels, spec, stream, images, 'source')
        yield SimpleNamespace(gpu=gpu, kernels=kernels, spec=spec, decoder=decoder, stream=stream)
        stream.synchronize()
        decoder.close()


def queue(late, size_wh):
    late.decoder.queue_images(
        {'output': 0}, 0, late.spec.preprocessing.letterbox(size_wh), ALL_TOPICS
    )


def count_allocations(late, sizes):
    """Return the number of allocations of device memory for maps of these sizes."""
    runtime = late.gpu.modules[2]
    allocate, allocated = runtime.cudaMalloc, []
    runtime.cudaMalloc = lambda size: allocated.append(size) or allocate(size)
    for size in sizes:
        queue(late, size)
    runtime.cudaMalloc = allocate
    return len(allocated)


def assert_right_tables(late, sizes):
    """Assert that the kernels for maps of these sizes read the right tables."""
    late.stream.synchronize()
    assert [size for size, _ in late.kernels.read] == list(sizes)
    rows, columns = late.spec.outputs[0].shape[-2:]
    for size, content in late.kernels.read:
        letterbox = late.spec.preprocessing.letterbox(size)
        taps = cell_taps(letterbox, (columns, rows), size, 'bicubic', late.kernels.taps)
        assert content == np.concatenate(taps).tobytes()


def test_results_are_complete_before_their_maps_are_copied(late):
    queue(late, SMALL)
    geometry = late.spec.preprocessing.letterbox(SMALL)
    [found] = late.decoder.read_results(late.spec, [geometry], [ALL_TOPICS])
    assert [size for size, _ in late.kernels.read] == [SMALL]
    depth = found.maps['depth']
    copied = ctypes.string_at(depth.pointer, depth.size_bytes)
    assert copied != depth.size_bytes * b'\7'
    assert bytes(depth.memory()[HEADER_ROOM:]) == depth.size_bytes * b'\7'


def test_tables_of_64_cameras_are_uploaded_once(late):
    queue(late, MANY_SIZES[-1])
    assert count_allocations(late, MANY_SIZES) == len(MANY_SIZES) - 1
    assert count_allocations(late, MANY_SIZES) == 0


def test_tables_are_freed_after_the_kernels_that_read_them(late, monkeypatch):
    monkeypatch.setattr(cuda_maps, '_MAX_TABLE_BYTES', TWO_TABLES)
    for size in MANY_SIZES[:8]:
        queue(late, size)
    assert_right_tables(late, MANY_SIZES[:8])


def test_the_most_recently_used_tables_are_kept(late, monkeypatch):
    monkeypatch.setattr(cuda_maps, '_MAX_TABLE_BYTES', TWO_TABLES)
    usual, *others = MANY_SIZES[5::-1]
    queue(late, usual)
    for other in others:
        assert count_allocations(late, [other]) == 1
        assert count_allocations(late, [usual]) == 0


@pytest.mark.parametrize('call', ['cudaMalloc', 'cudaHostAlloc'])
@pytest.mark.parametrize('what', ['tables', 'map'])
def test_maps_are_made_again_after_memory_was_exhausted(late, call, what):
    large = (640, 480)
    size = 4 * math.prod(large)
    sizes = (size, HEADER_ROOM + size) if what == 'map' else (32 * sum(large),)
    queue(late, SMALL)
    runtime = late.gpu.modules[2]
    allocate = getattr(runtime, call)
    setattr(runtime, call, lambda *of: FULL if of[0] in sizes else allocate(*of))
    with pytest.raises(GpuMemoryError):
        queue(late, large)
    queue(late, SMALL)
    setattr(runtime, call, allocate)
    queue(late, large)
    assert_right_tables(late, [SMALL, SMALL, large])


def test_frame_without_memory_for_its_map_is_dropped(install_standins, tmp_path, golden_messages):
    parameters = write_image_model('depth', tmp_path / 'model.onnx')
    tensors = {
        'inputs': (('images', (2, 3, *NETWORK[::-1]), 'FLOAT'),),
        'outputs': (('output', (2, *NETWORK[::-1]), 'FLOAT'),),
        'profiles': (),
    }
    recorder, _ = install_standins(tensors=tensors)
    (tmp_path / 'model.engine').write_bytes(PLAN)
    values = {**parameters, 'engine_path': str(tmp_path / 'model.engine'), 'cameras': ['a', 'b']}
    pipeline = open_by_parameters(ParameterValues.from_values(values))
    frames = [frame_from_bgr(np.zeros((*size, 3), np.uint8)) for size in ((40, 60), (50, 70))]
    wanted = Thresholds(wanted_topics=frozenset(['depth']))

    def results():
        pipeline.enqueue(0, frames, [wanted] * 2)
        return pipeline.collect(0)

    kept = results()  # so that their memory is not free for the next maps
    allocations = iter([None, 'cudaErrorMemoryAllocation'])
    recorder.fails = lambda _, name: next(allocations) if name == 'cudaHostAlloc' else None
    first, second = results()
    assert first.found.maps.keys() == {'depth'}
    assert second.reason == 'too_large'
    assert second.__traceback__ is None
    golden_messages.add(second)
    recorder.fails = lambda index, name: None
    assert [one.found.maps.keys() for one in results()] == [{'depth'}] * 2
    del kept, first
    pipeline.close()
    assert recorder.mistakes == []
