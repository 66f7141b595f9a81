"""Mask images: a kernel writes the number of each pixel's detection to page-locked memory.

A mask image is made only on request. Its kernel runs after the boxes of the frame are done, so
the boxes are not delayed. The detections refer to the mask image. The memory is reused when the
last reference is gone.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from trt_perception.gpu import Device, Event, PinnedBuffer, Stream
from trt_perception.gpu.bindings import Resource

__all__ = ['MaskImage', 'MaskImagePool']


class _MaskBuffer(Resource):
    """Memory of one mask image, with the event after the last work that writes it."""

    def __init__(self, device: Device, size: int) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self.memory: PinnedBuffer = self._closing.enter_context(PinnedBuffer(size, device))
            # On a Jetson, block the thread instead of spinning, because CPU cores are scarce.
            self.written: Event = self._closing.enter_context(Event(blocking=device.integrated))
            undo.pop_all()

    def close(self) -> None:
        """Free memory and event."""
        self._closing.close()


class MaskImage:
    """The mask numbers of one image in page-locked memory. Implements NumberedMasks.

    Args:
        pool: the pool that gets the buffer back when the mask image is no longer used.
        buffer: the memory that the kernel writes.
        size_wh: width and height of the image in pixels.
    """

    def __init__(self, pool: MaskImagePool, buffer: _MaskBuffer, size_wh: tuple[int, int]) -> None:
        self._pool = pool
        self._buffer = buffer
        self._size_wh = size_wh

    @property
    def device_pointer(self) -> int:
        """Device address of the numbers, uint16 (height, width)."""
        return self._buffer.memory.device_pointer

    def record(self, stream: Stream) -> None:
        """Record that work on this stream writes the mask image. Call after queueing the work."""
        self._buffer.written.record(stream)

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Copy the numbers to `out`. Waits for the GPU.

        Args:
            out: uint16 (height, width).

        Raises:
            CudaError: the GPU work failed.
        """
        width, height = self._size_wh
        self._buffer.written.synchronize()
        pixels = self._buffer.memory.array[: 2 * width * height].view(np.uint16)
        np.copyto(out, pixels.reshape(height, width))

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)


class MaskImagePool(Resource):
    """A pool of memory for mask images. The pool reuses buffers that are no longer in use.

    Args:
        device: the device whose kernels write the mask images.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # Reentrant: garbage collection can return a buffer while this thread holds the lock.
        self._lock = threading.RLock()
        self._free: list[_MaskBuffer] = []
        self._closed = False

    def lend(self, size_wh: tuple[int, int]) -> MaskImage:
        """Return a mask image for a kernel to write.

        Args:
            size_wh: width and height of the image in pixels.

        Raises:
            CudaError: memory is not sufficient.
        """
        size = 2 * size_wh[0] * size_wh[1]
        buffer = self._idle_buffer()
        if buffer is not None and buffer.memory.size < size:
            buffer.close()
            buffer = None
        if buffer is None:
            buffer = _MaskBuffer(self._device, size)
        return MaskImage(self, buffer, size_wh)

    def _idle_buffer(self) -> _MaskBuffer | None:
        """Remove and return a free buffer whose GPU work is done; None if all are in use.

        The GPU may still write a free buffer, because a mask image can be deleted before anyone
        reads it. Only `MaskImage.number` waits for the GPU.
        """
        with self._lock:
            for index, buffer in enumerate(self._free):
                if buffer.written.is_done():
                    return self._free.pop(index)
        return None

    def give_back(self, buffer: _MaskBuffer) -> None:
        """Take back a buffer that is no longer read. Any thread may call this method."""
        with self._lock:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        """Free unused buffers now, and others when they return. All GPU work must be done."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        with ExitStack() as own:
            for buffer in free:
                own.callback(buffer.close)
