# SPDX-License-Identifier: Apache-2.0
"""Allocate device memory and page-locked host memory, and copy between them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.errors import CudaError, GpuMemoryError
from trt_perception.files.plain_text import size_text
from trt_perception.gpu.bindings import Resource, call, runtime
from trt_perception.gpu.device import Device
from trt_perception.gpu.streams import Stream


class DeviceBuffer(Resource):
    """Device memory at the address ``pointer``, of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pointer = 0
        try:
            self.pointer = int(call('cudaMalloc', max(1, size)))
        except CudaError as error:
            raise _out_of_memory(error, size, 'GPU memory') from error

    def close(self) -> None:
        """Free the memory."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            call('cudaFree', pointer)


class PinnedBuffer(Resource):
    """Page-locked host memory. All GPUs can copy the memory at full speed, or read in place.

    Args:
        size: size of the memory in bytes.
        device: device to make current before allocating and freeing. None if the calling threads
            already use the right device.

    Attributes:
        size: size of the memory in bytes.
        array: uint8 (size,), valid until ``close``.
        pointer: address on the host.
        device_pointer: address of the same bytes on the device, equal on all GPUs.
    """

    def __init__(self, size: int, device: Device | None = None) -> None:
        self.size = size
        self._device = device
        if device is not None:
            device.use()
        try:
            flags = runtime().cudaHostAllocMapped | runtime().cudaHostAllocPortable
            self.pointer = int(call('cudaHostAlloc', max(1, size), flags))
        except CudaError as error:
            raise _out_of_memory(error, size, 'page-locked host memory') from error
        try:
            self.device_pointer = int(call('cudaHostGetDevicePointer', self.pointer, 0))
        except BaseException:
            self.close()
            raise
        raw = (ctypes.c_uint8 * size).from_address(self.pointer)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(raw)

    def close(self) -> None:
        """Free the memory. ``array`` must not be used afterwards."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            self.array = np.empty(0, np.uint8)
            try:
                if self._device is not None:
                    self._device.use()
            finally:
                call('cudaFreeHost', pointer)


def _out_of_memory(error: CudaError, size: int, kind: str) -> CudaError:
    """Describe a failed allocation by its size, with a fix. Return other errors unchanged."""
    if error.status != 'cudaErrorMemoryAllocation':
        return error
    return GpuMemoryError(
        f'{size_text(size)} of {kind}',
        f'could not be allocated ({error.statement})',
        fix='stop other programs on the GPU (nvidia-smi lists them), or reduce the parameter '
        "'pipeline_depth'",
        status=error.status,
    )


def copy_async(destination: int, source: int, size: int, stream: Stream) -> None:
    """Queue a copy between host and device, or on the device. Host memory must be page-locked."""
    call(
        'cudaMemcpyAsync',
        destination,
        source,
        size,
        runtime().cudaMemcpyKind.cudaMemcpyDefault,
        stream.handle,
    )


def copy_parts_async(
    destination: int, source: int, size: int, pitch: int, count: int, stream: Stream
) -> None:
    """Queue a copy of parts at regular distances. Source and destination have the same layout.

    Args:
        destination: address of the first part.
        source: address of the first part. Host memory must be page-locked.
        size: bytes of each part.
        pitch: bytes from the start of one part to the start of the next.
    """
    call(
        'cudaMemcpy2DAsync',
        destination,
        pitch,
        source,
        pitch,
        size,
        count,
        runtime().cudaMemcpyKind.cudaMemcpyDefault,
        stream.handle,
    )


def fill_async(pointer: int, value: int, size: int, stream: Stream) -> None:
    """Queue an operation that sets each byte to a value."""
    call('cudaMemsetAsync', pointer, value, size, stream.handle)


def clear_async(pointer: int, size: int, stream: Stream) -> None:
    """Queue an operation that sets bytes to zero."""
    fill_async(pointer, 0, size, stream)


def upload_once(values: npt.NDArray[Any], address: int, stream: Stream) -> None:
    """Copy an array to a device address, and wait. Too slow for each frame: allocates memory."""
    with PinnedBuffer(values.nbytes) as pinned:
        pinned.array[: values.nbytes] = values.reshape(-1).view(np.uint8)
        copy_async(address, pinned.pointer, values.nbytes, stream)
        stream.synchronize()
