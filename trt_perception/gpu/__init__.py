"""CUDA for the rest of the package: a thin layer over cuda.bindings, and the only importer of it.

Every return code passes one check. What owns memory has ``close``, which may be called twice, and
frees what it had if its construction fails half-way. Pointers, streams and events are plain
integers, as TensorRT wants them. Nothing is imported before the first call.
"""

from trt_perception.gpu.bindings import versions
from trt_perception.gpu.device import Device
from trt_perception.gpu.kernels import Kernels
from trt_perception.gpu.kernels import compile_kernels
from trt_perception.gpu.memory import DeviceBuffer
from trt_perception.gpu.memory import PinnedBuffer
from trt_perception.gpu.memory import clear_async
from trt_perception.gpu.memory import copy_async
from trt_perception.gpu.memory import copy_parts_async
from trt_perception.gpu.memory import fill_async
from trt_perception.gpu.memory import upload_once
from trt_perception.gpu.streams import Event
from trt_perception.gpu.streams import Graph
from trt_perception.gpu.streams import Stream

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
