"""Masks that a GPU makes where somebody asks for them: a picture of numbers in page-locked memory.

The kernel writes it behind the frame's boxes, so that these wait for nothing. Whoever has the
detections has the picture; its memory is used again when nobody has them any more.
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
    """Memory for one picture, and the event behind what was last written there."""

    def __init__(self, device: Device, size: int) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self.memory: PinnedBuffer = self._closing.enter_context(PinnedBuffer(size, device))
            # A core that spins while a Jetson's kernel runs is one that nobody else has there.
            self.written: Event = self._closing.enter_context(Event(blocking=device.integrated))
            undo.pop_all()

    def close(self) -> None:
        """Free it."""
        self._closing.close()


class MaskImage:
    """The masks of one image as numbers of its pixels; a NumberedMasks.

    Args:
        pool: gets the place back.
        buffer: where the kernel writes.
        size_wh: of the image.
    """

    def __init__(self, pool: MaskImagePool, buffer: _MaskBuffer, size_wh: tuple[int, int]) -> None:
        self._pool = pool
        self._buffer = buffer
        self._size_wh = size_wh

    @property
    def device_pointer(self) -> int:
        """Device address of uint16 (height, width)."""
        return self._buffer.memory.device_pointer

    def record(self, stream: Stream) -> None:
        """Take note that the stream's work writes it."""
        self._buffer.written.record(stream)

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """See NumberedMasks; waits for the GPU.

        Raises:
            CudaError: the work on it failed.
        """
        width, height = self._size_wh
        self._buffer.written.synchronize()
        pixels = self._buffer.memory.array[: 2 * width * height].view(np.uint16)
        np.copyto(out, pixels.reshape(height, width))

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)


class MaskImagePool(Resource):
    """Memory for pictures, as many as are in use at once.

    Args:
        device: whose kernels write them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # A picture may end, and its place come back, within whatever a thread does, even in here.
        self._lock = threading.RLock()
        self._free: list[_MaskBuffer] = []
        self._closed = False

    def lend(self, size_wh: tuple[int, int]) -> MaskImage:
        """Return a picture to be written.

        Raises:
            CudaError: there is no memory for it.
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
        """Return a free place that no work writes any more: nobody may have waited for it."""
        with self._lock:
            for index, buffer in enumerate(self._free):
                if buffer.written.is_done():
                    return self._free.pop(index)
        return None

    def give_back(self, buffer: _MaskBuffer) -> None:
        """Take a place that nobody reads any more; from any thread."""
        with self._lock:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        """Free what nobody has; the rest when it comes back. All work must be done."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        with ExitStack() as own:
            for buffer in free:
                own.callback(buffer.close)
