# SPDX-License-Identifier: Apache-2.0
"""With two GPUs in one process, every CUDA call uses only objects of the current device.

CUDA stores the current device for each thread. The tests without a GPU use a stand-in, which also
stores the device of each object. One test needs two real GPUs.
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
from support.gpu.fake_tensorrt import MODEL_PARAMETERS, PLAN, FakeTensorRt
from support.gpu.gpu_support import why_no_gpu
from support.models.open_model import open_by_parameters
from trt_perception import gpu
from trt_perception.errors import CudaError
from trt_perception.gpu import bindings, nvjpeg
from trt_perception.images.compressed import check_image_file
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import as_plain_jpeg
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

GREY = Frame.view(bytes(48 * 64), width=64, height=48, step=64, encoding='mono8')
_OK = fake_cuda.cudaError_t.cudaSuccess


class TwoGpus:
    """A stand-in for CUDA with two devices.

    Attributes:
        made: the number of objects created on each device.
        owners: the device of each object, by handle.
        mistakes: (call, device of the object, current device) of each call on a wrong device.
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


def parameters_for(gpus, device, **values):
    return ParameterValues(
        engine_path=str(gpus.engine),
        device_ids=(device,),
        pipeline_depth=2,
        **MODEL_PARAMETERS,
        **values,
    )


def in_thread(work):
    """Call a function in a new thread. Raise the function's exception here."""
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


def test_device_use_sets_the_current_device_of_the_thread(gpus):
    first, second = gpu.Device(0), gpu.Device(1)
    for device in (first, second, second, first, second, first):
        device.use()
        assert gpus.current == device.index
    # Another library or other code may change the current device.
    gpus.modules[2].cudaSetDevice(1)
    first.use()
    assert gpus.current == 0

    def use_both():
        second.use()
        first.use()
        assert gpus.current == 0
        second.use()
        assert gpus.current == 1

    in_thread(use_both)
    assert gpus.current == 0


def test_unknown_device_is_refused(gpus, golden_messages):
    with golden_messages.raises(CudaError):
        gpu.Device(2)


def work_with(pipelines):
    """Run overlapping frames of two pipelines in one thread."""
    for slot in (0, 1):
        for pipeline in pipelines:
            pipeline.enqueue(slot, [GREY], [Thresholds()])
    for slot in (1, 0):
        for pipeline in pipelines:
            assert pipeline.is_done(slot)
            pipeline.collect(slot)


def test_both_pipelines_upload_from_the_same_buffer(gpus, monkeypatch):
    """Each pipeline uploads from memory that was allocated while the other device was current."""
    uploads = []
    runtime = gpus.modules[2]._module
    copy = runtime.cudaMemcpyAsync
    runtime.cudaMemcpyAsync = lambda to, source, *rest: (
        uploads.append(source) or copy(to, source, *rest)
    )
    with contextlib.ExitStack() as closing:
        pipelines = [open_by_parameters(parameters_for(gpus, device)) for device in (0, 1)]
        for pipeline in pipelines:
            closing.callback(pipeline.close)
        for owner in (0, 1):
            with copy_to_pipeline_memory(pipelines[owner], [GREY]) as (frame,):
                del gpus.owners[frame.memory.buffer.pointer]  # page-locked memory has no device
                for pipeline in pipelines:
                    uploads.clear()
                    pipeline.enqueue(0, [frame], [Thresholds()])
                    pipeline.collect(0)
                    assert uploads == [frame.memory.buffer.pointer]
                # Free the memory while the other device is current.
                gpu.Device(1 - owner).use()
    assert gpus.mistakes == []


def test_first_pipeline_closes_cleanly_if_the_second_fails_to_open(gpus):
    calls = []
    owners = {}
    runtime = gpus.modules[2]._module
    allocate, free = runtime.cudaMalloc, runtime.cudaFree

    def malloc(size):
        calls.append(size)
        if gpus.current == 1 and len(calls) > max_calls:
            return (fake_cuda.cudaError_t.cudaErrorMemoryAllocation,)
        status, pointer = allocate(size)
        owners[pointer] = gpus.current
        return status, pointer

    def free_and_forget(pointer):
        del owners[pointer]
        return free(pointer)

    runtime.cudaMalloc, runtime.cudaFree = malloc, free_and_forget
    max_calls = 10**6
    open_by_parameters(parameters_for(gpus, 0)).close()
    calls_to_open = len(calls)
    assert calls_to_open > 5
    for succeeding in range(calls_to_open):
        calls.clear()
        max_calls = calls_to_open + succeeding
        with contextlib.ExitStack() as closing:
            closing.callback(open_by_parameters(parameters_for(gpus, 0)).close)
            with pytest.raises(CudaError) as caught:
                open_by_parameters(parameters_for(gpus, 1))
            assert caught.value.status == 'cudaErrorMemoryAllocation'
            assert set(owners.values()) == {0}
        assert owners == {}
    assert gpus.mistakes == []


def test_two_pipelines_in_one_thread_use_their_own_devices(gpus):
    with contextlib.ExitStack() as closing:
        pipelines = [open_by_parameters(parameters_for(gpus, device)) for device in (0, 1)]
        for pipeline in pipelines:
            closing.callback(pipeline.close)
        assert min(gpus.made.values()) > 20
        work_with(pipelines)
        in_thread(lambda: work_with(pipelines))
    assert gpus.mistakes == []


class WatchedNvJpeg(FakeNvJpeg):
    """A stand-in for nvJPEG that records on which device each object is created and used."""

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
        live_before = set(self.live)
        status = function(*arguments)
        self._owners.update(dict.fromkeys(self.live - live_before, self._gpus.current))
        return status


def test_jpegs_of_two_pipelines_are_decoded_on_their_own_devices(gpus, monkeypatch):
    library = WatchedNvJpeg(gpus)
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, (13, 3, 2)))
    _, content = cv2.imencode('.jpg', np.full((1800, 2000, 3), 114, np.uint8))
    frame = as_plain_jpeg(
        check_image_file(content.reshape(-1))
    )  # larger than the first staging buffer
    pipelines = [
        open_by_parameters(parameters_for(gpus, device, image_transport='auto'))
        for device in (0, 1)
    ]
    for status in (SUCCESS, BAD_JPEG):
        library.status['nvjpegDecode'] = status
        for slot in (0, 1):
            for pipeline in pipelines:
                pipeline.enqueue(slot, [frame], [Thresholds()])
        for slot in (1, 0):
            for pipeline in pipelines:
                pipeline.collect(slot)
                assert pipeline.is_done(slot)
    assert len(library.decoded) == 2 + 4  # each pipeline decodes one small file when it opens
    for pipeline in pipelines:
        pipeline.close()
    assert not library.live
    assert library.mistakes == []
    assert gpus.mistakes == []


def why_not_two_gpus():
    if why_no_gpu():
        return why_no_gpu()
    try:
        gpu.Device(1)
    except CudaError as error:
        return f'needs two GPUs: {error}'
    return ''


needs_two_gpus = pytest.mark.skipif(bool(why_not_two_gpus()), reason=why_not_two_gpus())


@pytest.mark.whole_gpu
@needs_two_gpus
def test_memory_comes_from_the_current_device():
    """On two real GPUs, an allocation reduces the free memory of the current device only."""
    size = 512 * 2**20
    devices = gpu.Device(0), gpu.Device(1)

    def read_free_bytes():
        free_bytes = []
        for device in devices:
            device.use()
            free_bytes.append(device.memory()[0])
        return free_bytes

    def bytes_used_by(device):
        before = read_free_bytes()
        device.use()
        with gpu.DeviceBuffer(size):
            return [
                free_before - free_after
                for free_before, free_after in zip(before, read_free_bytes(), strict=True)
            ]

    def check():
        for device in (*devices, *reversed(devices)):
            used = bytes_used_by(device)
            assert used[device.index] >= size
            assert used[1 - device.index] < size // 2

    check()
    in_thread(check)
