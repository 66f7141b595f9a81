# SPDX-License-Identifier: Apache-2.0
"""Simulate a GPU with host memory, which executes work only when a thread waits for it.

CUDA allows this: a copy from page-locked memory may be delayed until the host waits for later
work. So code that writes or frees memory too early always gets wrong pixels here. The letterbox
kernel is the real kernel, compiled for the CPU. Engine and decoding compute nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from functools import partial

import numpy as np

from support.gpu import fake_cuda
from support.gpu.fake_tensorrt import INPUT
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.host_preprocess import HostPreprocessor

PREPROCESSING = Preprocessing((64, 48))
_OK = fake_cuda.cudaError_t.cudaSuccess
_FREED_BYTE = 0xDD  # value of each byte of freed memory


class LateGpu:
    """Replaces the bindings of CUDA.

    Args:
        letterbox: the letterbox kernel, a HostLetterbox.
        integrated: whether the device reports an integrated GPU.

    Attributes:
        modules: (driver, nvrtc, runtime).
        uploads: (source, size) of each copy from page-locked memory, recorded when enqueued. The
            size of a copy in parts is (bytes per part, pitch in bytes, number of parts).
        captures: number of captured graphs.
        host_bytes: page-locked memory that was not freed, by address.
    """

    def __init__(self, letterbox, *, integrated=False):
        self._letterbox = letterbox
        self._queued = defaultdict(list)  # enqueued work by stream
        self._lock = threading.RLock()  # several threads enqueue work and wait for one stream
        self._capturing = {}
        self._graphs = {}
        self._events = {}
        self._names = {}
        self._memory = {}  # never freed, so that a late access cannot hit a new allocation
        self.uploads = []
        self.captures = 0
        self.host_bytes = {}
        driver, _, runtime = self.modules = fake_cuda.bindings(integrated=integrated)
        for module, names in (
            (driver, ('cuLibraryGetKernel', 'cuKernelGetFunction', 'cuLaunchKernel')),
            (runtime, ('cudaMalloc', 'cudaFree', 'cudaHostAlloc', 'cudaFreeHost')),
            (runtime, ('cudaMemcpyAsync', 'cudaMemcpy2DAsync', 'cudaMemsetAsync')),
            (runtime, ('cudaGraphLaunch',)),
            (runtime, ('cudaStreamSynchronize', 'cudaStreamWaitEvent')),
            (runtime, ('cudaEventRecord', 'cudaEventQuery', 'cudaEventSynchronize')),
            (runtime, ('cudaStreamBeginCapture', 'cudaStreamEndCapture', 'cudaGraphInstantiate')),
        ):
            for name in names:
                setattr(module, name, getattr(self, f'_{name}'))

    def input_of(self, slot, place=0):
        """Return the input tensor of a frame in a slot, float32 (1, 3, 48, 64)."""
        shape = INPUT[1]
        values = (ctypes.c_float * int(np.prod(shape))).from_address(
            slot.input + place * 4 * int(np.prod(shape))
        )
        return np.ctypeslib.as_array(values).reshape(shape)

    def _queue_work(self, stream, work):
        with self._lock:
            self._capturing.get(stream, self._queued[stream]).append(work)

    def _execute_queued_work(self, stream):
        with self._lock:
            assert stream not in self._capturing
            for work in self._queued.pop(stream, ()):
                work()

    def _execute_recorded_work(self, stream, works):
        """Execute only the work that was enqueued before an event was recorded."""
        with self._lock:
            for work in works:
                if work in self._queued.get(stream, ()):
                    self._queued[stream].remove(work)
                    work()

    # Functions that allocate and free memory.

    def _allocate(self, size):
        buffer = ctypes.create_string_buffer(size)
        address = ctypes.addressof(buffer)
        self._memory[address] = buffer
        return address

    def _free(self, address):
        buffer = self._memory[address]
        ctypes.memset(address, _FREED_BYTE, len(buffer))

    def _cudaMalloc(self, size):  # noqa: N802
        return _OK, self._allocate(size)

    def _cudaFree(self, address):  # noqa: N802
        self._free(address)
        return (_OK,)

    def _cudaHostAlloc(self, size, flags):  # noqa: N802
        address = self._allocate(size)
        self.host_bytes[address] = size
        return _OK, address

    def _cudaFreeHost(self, address):  # noqa: N802
        del self.host_bytes[address]
        self._free(address)
        return (_OK,)

    # Functions that queue work, and functions that execute the queued work.

    def _cudaMemcpyAsync(self, to, source, size, kind, stream):  # noqa: N802
        self._note_upload(source, size)
        self._queue_work(stream, lambda: ctypes.memmove(to, source, size))
        return (_OK,)

    def _cudaMemcpy2DAsync(self, to, pitch, source, step, size, count, kind, stream):  # noqa: N802
        assert size <= min(pitch, step)
        self._note_upload(source, (size, step, count))

        def copy():
            for part in range(count):
                ctypes.memmove(to + part * pitch, source + part * step, size)

        self._queue_work(stream, copy)
        return (_OK,)

    def _note_upload(self, source, size):
        if any(start <= source < start + length for start, length in self.host_bytes.items()):
            self.uploads.append((source, size))

    def _cudaMemsetAsync(self, to, value, size, stream):  # noqa: N802
        self._queue_work(stream, lambda: ctypes.memset(to, value, size))
        return (_OK,)

    def _cudaStreamWaitEvent(self, stream, event, flags):  # noqa: N802
        recorded = self._events[event]
        self._queue_work(stream, lambda: self._execute_recorded_work(*recorded))
        return (_OK,)

    def _cuLibraryGetKernel(self, library, name):  # noqa: N802
        handle = len(self._names) + 1
        self._names[handle] = name
        return fake_cuda.CUresult.CUDA_SUCCESS, handle

    def _cuKernelGetFunction(self, kernel):  # noqa: N802
        return fake_cuda.CUresult.CUDA_SUCCESS, kernel

    def _cuLaunchKernel(self, function, *rest):  # noqa: N802
        most, stream, (values, _) = rest[2], rest[7], rest[8]
        if self._names[function] == b'letterbox':
            self._queue_work(stream, lambda: self._letterbox.launch(*values, most))
        return (fake_cuda.CUresult.CUDA_SUCCESS,)

    def _cudaStreamSynchronize(self, stream):  # noqa: N802
        self._execute_queued_work(stream)
        return (_OK,)

    def _cudaEventRecord(self, event, stream):  # noqa: N802
        with self._lock:
            self._events[event] = stream, list(self._queued.get(stream, ()))
        return (_OK,)

    def _cudaEventQuery(self, event):  # noqa: N802
        stream, works = self._events.get(event, (0, ()))
        late = any(work in self._queued.get(stream, ()) for work in works)
        return (fake_cuda.cudaError_t.cudaErrorNotReady if late else _OK,)

    def _cudaEventSynchronize(self, event):  # noqa: N802
        if event in self._events:
            self._execute_recorded_work(*self._events[event])
        return (_OK,)

    # Functions that capture and launch graphs.

    def _cudaStreamBeginCapture(self, stream, mode):  # noqa: N802
        self._capturing[stream] = []
        return (_OK,)

    def _cudaStreamEndCapture(self, stream):  # noqa: N802
        self.captures += 1
        self._graphs[self.captures] = self._capturing.pop(stream)
        return _OK, self.captures

    def _cudaGraphInstantiate(self, graph, flags):  # noqa: N802
        return _OK, graph

    def _cudaGraphLaunch(self, graph, stream):  # noqa: N802
        with self._lock:
            # New objects, because events distinguish the work of one launch from that of another.
            self._queued[stream].extend(map(partial, self._graphs[graph]))
        return (_OK,)


def expected_tensor(frame):
    """Return the expected input tensor of a frame, from the host's preprocessing."""
    return HostPreprocessor(PREPROCESSING)(frame)[0].copy()


def tensor_from_pipeline(gpu, pipeline, frame, slot=0):
    """Return the input tensor that the pipeline makes from a frame."""
    detect_one(pipeline, frame, Thresholds(), slot)
    return gpu.input_of(pipeline.slots[slot]).copy()
