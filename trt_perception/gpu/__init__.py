"""CUDA for the rest of the package: a thin layer over cuda.bindings, and the only importer of it.

Every return code passes one check. What owns memory has ``close``, which may be called twice, and
frees what it had if its construction fails half-way. Pointers, streams and events are plain
integers, as TensorRT wants them. Nothing is imported before the first call.
"""

from trt_perception.gpu.bindings import versions
from trt_perception.gpu.device import Device
from trt_perception.gpu.kernels import Kernels, compile_kernels
from trt_perception.gpu.memory import (
    DeviceBuffer,
    PinnedBuffer,
    clear_async,
    copy_async,
    copy_parts_async,
    fill_async,
    upload_once,
)
from trt_perception.gpu.streams import Event, Graph, Stream

__all__ = [
    'Device',
    'DeviceBuffer',
    'Event',
    'Graph',
    'Kernels',
    'PinnedBuffer',
    'Stream',
    'clear_async',
    'compile_kernels',
    'copy_async',
    'copy_parts_async',
    'fill_async',
    'upload_once',
    'versions',
]
