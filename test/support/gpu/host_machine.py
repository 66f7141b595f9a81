# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for a GPU's memory, for emulated kernels: all memory is the host's."""

import ctypes
from types import SimpleNamespace

import numpy as np

from trt_perception.pipelines.cuda import maps as cuda_maps
from trt_perception.pipelines.cuda import pinned_images
from trt_perception.pipelines.cuda import results as cuda_results

#: The device of an ImagePool.
DEVICE = SimpleNamespace(integrated=False)


class HostBuffer:
    """A stand-in for device memory and for page-locked memory."""

    def __init__(self, size, device=None):
        self.size = size
        self.array = np.full(size, 0xA5, np.uint8)
        self.pointer = self.device_pointer = self.array.ctypes.data

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.array = None


class HostEvent:
    def __init__(self, *, blocking):
        pass

    __enter__, __exit__ = HostBuffer.__enter__, HostBuffer.__exit__

    def record(self, stream):
        pass

    def is_done(self):
        return True

    synchronize = close = is_done


class HostMachine:
    """A machine whose kernels run immediately, in the host's memory."""

    stream = SimpleNamespace(synchronize=lambda: None)

    def __enter__(self):
        self._kept = []
        return self

    def __exit__(self, *_):
        pass

    def put(self, array):
        self._kept.append(np.ascontiguousarray(array))
        return self._kept[-1].ctypes.data

    def synchronize(self):
        pass


def use_host_memory(monkeypatch):
    """Let the pipeline's decoders use the host's memory."""
    for module in (cuda_maps, cuda_results, pinned_images):
        for name in ('DeviceBuffer', 'PinnedBuffer'):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, HostBuffer)
    for module in (cuda_maps, pinned_images):
        monkeypatch.setattr(module, 'Event', HostEvent)
    monkeypatch.setattr(
        cuda_results, 'clear_async', lambda at, size, stream: ctypes.memset(at, 0, size)
    )
    monkeypatch.setattr(
        cuda_maps,
        'upload_once',
        lambda values, at, stream: ctypes.memmove(at, values.ctypes.data, values.nbytes),
    )
    for module in (cuda_maps, cuda_results):
        monkeypatch.setattr(
            module, 'copy_async', lambda to, source, size, stream: ctypes.memmove(to, source, size)
        )
