# SPDX-License-Identifier: Apache-2.0
"""A thin layer over cuda.bindings for the whole package. Only this layer imports cuda.bindings.

Every return code is checked in the same way. Objects that own memory have ``close``, which may be
called twice. They also free their memory if their construction fails halfway. Pointers, streams
and events are integers, as TensorRT requires. cuda.bindings is imported at the first call.
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
