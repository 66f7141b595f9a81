"""Two GPUs in one process: whatever is made on one of them is used and freed with it current.

CUDA remembers the current device for each thread. Without a GPU, by a stand-in that remembers it
likewise, and on which device each thing was made; with two of them, on these.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import partial

import cv2
import numpy as np
import pytest

from support.gpu import fake_cuda
from support.gpu.cuda_recorder import RELEASED_BY
from support.gpu.fake_nvjpeg import BAD_JPEG, SUCCESS, FakeNvJpeg
from support.gpu.fake_tensorrt import MODEL, PLAN, FakeTensorRt
from support.gpu.gpu_support import why_no_gpu
from support.models.open_model import open_by_parameters
from trt_perception import gpu
from trt_perception.errors import CudaError
from trt_perception.gpu import bindings, nvjpeg
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import as_plain_jpeg
from trt_perception.parameters.config import DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

GREY = Frame.view(bytes(48 * 64), width=64, height=48, step=64, encoding='mono8')
_OK = fake_cuda.cudaError_t.cudaSuccess


class TwoGpus:
    """A stand-in for CUDA with two devices.

    Attributes:
        made: how many things were made on each device.
        owners: on which device each thing was made.
        mistakes: (call, device of the thing, current device) where these differ.
    """

    def __init__(self):
        self.made = {0: 0, 1: 0}
        self.mistakes = []
        self.owners = {}
        self._thread = threading.local()
        driver, nvrtc, runtime = fake_cuda.bindings()
        runtime.cudaGetDeviceCount = lambda: (_OK, 2)
        runtime.cudaSetDevice = self._set_device
        self.modules = tuple(_Watched(self, module) for module in (driver, nvrtc, runtime))

    @property
    def current(self):
        return getattr(self._thread, 'device', 0)

    def _set_device(self, index):
        self._thread.device = index
        return (_OK,)

    def call(self, name, function, arguments):
        for argument in arguments:
            owner = self.owners.get(argument) if isinstance(argument, int) else None
            if owner not in (None, self.current):
                self.mistakes.append((name, owner, self.current))
        result = function(*arguments)
        if name in RELEASED_BY and result[0] == 0:
            self.owners[int(result[1])] = self.current
            self.made[self.current] += 1
        return result


class _Watched:
    def __init__(self, gpus, module):
        self._gpus, self._module = gpus, module

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, type) or not callable(value):
            return value
        return lambda *arguments: self._gpus.call(name, value, arguments)


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    gpus = TwoGpus()
    monkeypatch.setattr(bindings, 'load_bindings', lambda: gpus.modules)
    monkeypatch.setitem(sys.modules, 'tensorrt', FakeTensorRt())
    (tmp_path / 'tiny.engine').write_bytes(PLAN)
    gpus.engine = tmp_path / 'tiny.engine'
    return gpus


def config(gpus, device, **parameters):
    return DetectorConfig(
        engine_path=str(gpus.engine),
        device_ids=(device,),
        pipeline_depth=2,
        **MODEL,
        **parameters,
    )


def in_thread(work):
    """Do something in a thread of its own; raise what it raised."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_the_current_device_is_the_one_that_is_used(gpus):
    first, second = gpu.Device(0), gpu.Device(1)
    for device in (first, second, second, first, second, first):
        device.use()
        assert gpus.current == device.index
    # A library, or somebody else's code, sets it behind our back.
    gpus.modules[2].cudaSetDevice(1)
    first.use()
    assert gpus.current == 0

    def elsewhere():
        second.use()
        first.use()
        assert gpus.current == 0
        second.use()
        assert gpus.current == 1

    in_thread(elsewhere)
    assert gpus.current == 0


def test_a_device_that_is_not_there_is_refused(gpus, golden_messages):
    with golden_messages.raises(CudaError):
        gpu.Device(2)


def work_with(pipelines):
    """Let frames of two pipelines overlap in one thread."""
    for slot in (0, 1):
        for pipeline in pipelines:
            pipeline.enqueue(slot, [GREY], [Thresholds()])
    for slot in (1, 0):
        for pipeline in pipelines:
            assert pipeline.is_done(slot)
            pipeline.collect(slot)


def test_one_ring_of_buffers_serves_both(gpus, monkeypatch):
    """Each pipeline uploads from memory that the other one's device was current for."""
    uploads = []
    runtime = gpus.modules[2]._module
    copy = runtime.cudaMemcpyAsync
    runtime.cudaMemcpyAsync = lambda to, source, *rest: (
        uploads.append(source) or copy(to, source, *rest)
    )
    with contextlib.ExitStack() as closing:
        pipelines = [open_by_parameters(config(gpus, device)) for device in (0, 1)]
        for pipeline in pipelines:
            closing.callback(pipeline.close)
        for owner in (0, 1):
            with copy_to_pipeline_memory(pipelines[owner], [GREY]) as (frame,):
                del gpus.owners[frame.memory.buffer.pointer]  # page-locked memory belongs to all
                for pipeline in pipelines:
                    uploads.clear()
                    pipeline.enqueue(0, [frame], [Thresholds()])
                    pipeline.collect(0)
                    assert uploads == [frame.memory.buffer.pointer]
                # Freed by a thread that uses the other one.
                gpu.Device(1 - owner).use()
    assert gpus.mistakes == []


def test_where_the_second_cannot_be_opened_the_first_is_closed_cleanly(gpus):
    calls = []
    kept = {}
    runtime = gpus.modules[2]._module
    allocate, free = runtime.cudaMalloc, runtime.cudaFree

    def malloc(size):
        calls.append(size)
        if gpus.current == 1 and len(calls) > most:
            return (fake_cuda.cudaError_t.cudaErrorMemoryAllocation,)
        status, pointer = allocate(size)
        kept[pointer] = gpus.current
        return status, pointer

    def freed(pointer):
        del kept[pointer]
        return free(pointer)

    runtime.cudaMalloc, runtime.cudaFree = malloc, freed
    most = 10**6
    open_by_parameters(config(gpus, 0)).close()
    needed = len(calls)
    assert needed > 5
    for left in range(needed):
        calls.clear()
        most = needed + left
        with contextlib.ExitStack() as closing:
            closing.callback(open_by_parameters(config(gpus, 0)).close)
            with pytest.raises(CudaError) as caught:
                open_by_parameters(config(gpus, 1))
            assert caught.value.status == 'cudaErrorMemoryAllocation'
            assert set(kept.values()) == {0}
        assert kept == {}
    assert gpus.mistakes == []


def test_two_pipelines_in_one_thread(gpus):
    with contextlib.ExitStack() as closing:
        pipelines = [open_by_parameters(config(gpus, device)) for device in (0, 1)]
        for pipeline in pipelines:
            closing.callback(pipeline.close)
        assert min(gpus.made.values()) > 20
        work_with(pipelines)
        in_thread(lambda: work_with(pipelines))
    assert gpus.mistakes == []


class WatchedNvJpeg(FakeNvJpeg):
    """Notes on which device each of its things is made and used."""

    def __init__(self, gpus):
        super().__init__()
        self._gpus = gpus
        self._owners = {}
        self.mistakes = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        return partial(self._call, name, value) if name.startswith('nvjpeg') else value

    def _call(self, name, function, *arguments):
        for argument in arguments:
            owner = self._owners.get(getattr(argument, 'value', None))
            if owner not in (None, self._gpus.current):
                self.mistakes.append((name, owner, self._gpus.current))
        known = set(self.live)
        status = function(*arguments)
        self._owners.update(dict.fromkeys(self.live - known, self._gpus.current))
        return status


def test_jpegs_of_two_pipelines_in_one_thread(gpus, monkeypatch):
    library = WatchedNvJpeg(gpus)
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, (13, 3, 2)))
    _, content = cv2.imencode('.jpg', np.full((1800, 2000, 3), 114, np.uint8))
    frame = as_plain_jpeg(
        check_image_file(content.reshape(-1))
    )  # larger than what a slot begins with
    pipelines = [open_by_parameters(config(gpus, each, image_transport='auto')) for each in (0, 1)]
    for status in (SUCCESS, BAD_JPEG):
        library.status['nvjpegDecode'] = status
        for slot in (0, 1):
            for pipeline in pipelines:
                pipeline.enqueue(slot, [frame], [Thresholds()])
        for slot in (1, 0):
            for pipeline in pipelines:
                pipeline.collect(slot)
                assert pipeline.is_done(slot)
    assert len(library.decoded) == 2 + 4  # a small file each when they are opened
    for pipeline in pipelines:
        pipeline.close()
    assert not library.live
    assert library.mistakes == []
    assert gpus.mistakes == []


def _why_not_two():
    if why_no_gpu():
        return why_no_gpu()
    try:
        gpu.Device(1)
    except CudaError as error:
        return f'needs two GPUs: {error}'
    return ''


needs_two_gpus = pytest.mark.skipif(bool(_why_not_two()), reason=_why_not_two())


@pytest.mark.whole_gpu
@needs_two_gpus
def test_memory_comes_from_the_device_in_use():
    """On two real GPUs: what is allocated is missing on the one that was made current last."""
    size = 512 * 2**20
    devices = gpu.Device(0), gpu.Device(1)

    def free():
        left = []
        for device in devices:
            device.use()
            left.append(device.memory()[0])
        return left

    def taken_by(device):
        before = free()
        device.use()
        with gpu.DeviceBuffer(size):
            return [was - now for was, now in zip(before, free(), strict=True)]

    def check():
        for device in (*devices, *reversed(devices)):
            taken = taken_by(device)
            assert taken[device.index] >= size
            assert taken[1 - device.index] < size // 2

    check()
    in_thread(check)
