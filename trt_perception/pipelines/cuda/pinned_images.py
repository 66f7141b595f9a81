# SPDX-License-Identifier: Apache-2.0
"""Page-locked memory for the images that kernels make: masks, class and depth maps.

These images are made only on request. The result of a frame refers to its images. The memory is
reused when the last reference is gone.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.gpu import Device, Event, PinnedBuffer, Stream
from trt_perception.gpu.bindings import Resource
from trt_perception.images.results.image_limits import is_large_result, is_too_large_result
from trt_perception.images.results.kernel_maps import HEADER_ROOM

#: Largest size in bytes of all buffers of a pool for images above LARGE_RESULT_PIXELS: room for
#: three depth maps of 33 megapixels.
MAX_LARGE_BYTES: Final = 2**29


class _Buffer(Resource):
    """Memory of one image, with the event after the last work that writes it."""

    def __init__(self, device: Device, size: int, is_large: bool) -> None:
        self.is_large = is_large
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


class KernelImage:
    """An image in memory of a pool. Implements MapMemory, and NumberedMasks if it is uint16.

    Args:
        pool: the pool that gets the buffer back when the image is no longer used.
        buffer: the memory: HEADER_ROOM bytes, then the pixels.
        size_wh: width and height of the image in pixels.
        dtype: type of a pixel.

    Attributes:
        pointer: host address of the pixels.
        device_pointer: device address of the pixels.
        size_bytes: size of the pixels in bytes.
    """

    def __init__(
        self, pool: ImagePool, buffer: _Buffer, size_wh: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self._pool = pool
        self._buffer = buffer
        self.size_wh = size_wh
        self.dtype = dtype
        self.size_bytes = _pixel_bytes(size_wh, dtype)
        self.pointer = buffer.memory.pointer + HEADER_ROOM
        self.device_pointer = buffer.memory.device_pointer + HEADER_ROOM

    def record(self, stream: Stream) -> None:
        """Record that work on this stream writes the image. Call after queueing the work."""
        self._buffer.written.record(stream)

    def memory(self) -> npt.NDArray[np.uint8]:
        """See MapMemory."""
        self._buffer.written.synchronize()
        return self._buffer.memory.array[: HEADER_ROOM + self.size_bytes]

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """See NumberedMasks. Waits for the GPU.

        Raises:
            CudaError: the GPU work failed.
        """
        np.copyto(out, self.memory()[HEADER_ROOM:].view(self.dtype).reshape(out.shape))

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)


def _pixel_bytes(size_wh: tuple[int, int], dtype: np.dtype[Any]) -> int:
    return size_wh[0] * size_wh[1] * dtype.itemsize


class ImagePool(Resource):
    """A pool of memory for images. The pool reuses buffers that are no longer in use.

    Args:
        device: the device whose kernels write the images.

    Attributes:
        device: the same device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # Reentrant: garbage collection can return a buffer while this thread holds the lock.
        self._lock = threading.RLock()
        self._free: list[_Buffer] = []
        # Bytes of all buffers for large images, free and in use.
        self._large_bytes = 0
        self._closed = False

    def lend(self, size_wh: tuple[int, int], dtype: str) -> KernelImage | None:
        """Return an image to write into.

        Args:
            size_wh: width and height of the image in pixels.
            dtype: type of a pixel.

        Returns:
            None if the image has more than MAX_RESULT_PIXELS, or if it is large and all memory for
            large images is in use.

        Raises:
            CudaError: memory is not sufficient.
        """
        if is_too_large_result(size_wh):
            return None
        pixel = np.dtype(dtype)
        size = HEADER_ROOM + _pixel_bytes(size_wh, pixel)
        buffer = self._buffer(size, is_large_result(size_wh))
        return None if buffer is None else KernelImage(self, buffer, size_wh, pixel)

    def _buffer(self, size: int, is_large: bool) -> _Buffer | None:
        """Return a free buffer with room for `size` bytes, or a new one within the limit."""
        while (buffer := self._idle_buffer(is_large)) is not None:
            if buffer.memory.size >= size:
                return buffer
            buffer.close()
            if not is_large:
                break
            with self._lock:
                self._large_bytes -= buffer.memory.size
        if is_large:
            with self._lock:
                if self._large_bytes + size > MAX_LARGE_BYTES:
                    return None
                self._large_bytes += size
        try:
            return _Buffer(self.device, size, is_large)
        except BaseException:
            if is_large:
                with self._lock:
                    self._large_bytes -= size
            raise

    def _idle_buffer(self, is_large: bool) -> _Buffer | None:
        """Remove and return a free buffer whose GPU work is done; None if all are in use.

        The GPU may still write a free buffer, because an image can be deleted before anyone reads
        it. Only readers of an image wait for the GPU. A small image never gets a buffer for large
        images, because it would keep this buffer from them.
        """
        with self._lock:
            for index, buffer in enumerate(self._free):
                if buffer.is_large == is_large and buffer.written.is_done():
                    return self._free.pop(index)
        return None

    def give_back(self, buffer: _Buffer) -> None:
        """Take back a buffer that is no longer read. Any thread may call this method."""
        with self._lock:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        """Free unused buffers now, and used buffers on return. All GPU work must be done."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        with ExitStack() as own:
            for buffer in free:
                own.callback(buffer.close)
