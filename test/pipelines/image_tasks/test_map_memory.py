"""Tests of the memory for maps on a GPU, which executes work late: see late_gpu."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from support.gpu.late_gpu import LateGpu
from support.oracles.map_outputs import TOPICS, map_spec
from trt_perception.gpu import Device, Stream, bindings
from trt_perception.images.results.cell_taps import cell_taps
from trt_perception.pipelines import cuda_maps
from trt_perception.pipelines.cuda_maps import MapDecoder
from trt_perception.pipelines.pinned_images import ImagePool

NETWORK_WH = (96, 64)
TWO_TABLES = 100_000  # bytes of the tables of two of these sizes
MANY_SIZES = [(640 + 16 * index, 480) for index in range(64)]


class LateKernels:
    """Kernels of a GPU that read their tables when the queued work is executed."""

    taps = 4

    def __init__(self, gpu, layout):
        self._gpu = gpu
        self.map_layout = layout
        self.read = []  # (size of the map, bytes of the tables), as the kernels read them

    def make_map(self, outputs, taps, made, place, size_wh, stream):
        size = sum(size_wh) * cuda_maps.tap_dtype(self.taps).itemsize
        self._gpu._queue_work(
            stream.handle, lambda: self.read.append((size_wh, ctypes.string_at(taps[0], size)))
        )


@pytest.fixture
def late(monkeypatch):
    """Return a decoder of depth maps in the size of the image, its kernels and its GPU."""
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
    late.decoder.queue_images({'output': 0}, 0, late.spec.preprocessing.letterbox(size_wh), TOPICS)


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
