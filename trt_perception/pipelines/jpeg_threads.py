"""Threads that decode JPEGs into the slots of a pipeline on the GPU.

nvJPEG keeps a core busy for a millisecond a frame, so the worker does not wait for it: each file
is decoded, and the work on it started, by one of a few threads. What goes wrong there shows when
the frame is collected.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from trt_perception.config import Thresholds
from trt_perception.gpu import Device
from trt_perception.images.jpeg import JpegFrame
from trt_perception.pipelines.cuda_slot import CudaSlot
from trt_perception.stages.jpeg import open_nvjpeg

__all__ = ['JpegThreads']

_LOG: Final = logging.getLogger(__name__)
# More decode hardly more frames: four 3,400 a second, eight 3,800 (1080p, NVIDIA H200).
_MOST_THREADS: Final = 4


class JpegThreads:
    """nvJPEG with a decoder for each slot, and the threads.

    One thread uses it, which is not one of its own.

    Args:
        device: must be the current one.
        depth: number of slots.

    Raises:
        CudaError: nvJPEG is not installed, or does not work here.
    """

    def __init__(self, device: Device, depth: int) -> None:
        self._device = device
        self._pending: list[Future[None] | None] = [None] * depth
        self._logged: set[str] = set()
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            nvjpeg = self._closing.enter_context(open_nvjpeg())
            self._decoders = [self._closing.enter_context(nvjpeg.decoder()) for _ in range(depth)]
            undo.pop_all()
        self._threads = ThreadPoolExecutor(min(depth, _MOST_THREADS), 'jpeg')

    def start(self, index: int, slot: CudaSlot, frame: JpegFrame, thresholds: Thresholds) -> None:
        """Decode a file into a free slot and start the work on it, without waiting."""
        self._pending[index] = self._threads.submit(self._enqueue, index, slot, frame, thresholds)

    def started(self, index: int) -> bool:
        """Tell without waiting whether the work on the slot's frame has started, or failed to."""
        pending = self._pending[index]
        return pending is None or pending.done()

    def failed(self, index: int) -> bool:
        """Tell whether it failed to, once it is known."""
        pending = self._pending[index]
        return pending is not None and pending.exception() is not None

    def wait(self, index: int) -> None:
        """Wait until the work on the slot's frame has started; raise what kept it from that."""
        pending, self._pending[index] = self._pending[index], None
        if pending is not None:
            pending.result()

    def stop(self) -> None:
        """End the threads, once they have done what they do; before the slots are freed."""
        self._threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Free the decoders; after the slots, whose work may still read their memory."""
        self._closing.close()

    def _enqueue(
        self, index: int, slot: CudaSlot, frame: JpegFrame, thresholds: Thresholds
    ) -> None:
        self._device.use()
        reason = slot.enqueue_jpeg(frame, thresholds, self._decoders[index])
        if reason:
            if reason not in self._logged:
                self._logged.add(reason)
                _LOG.warning('a JPEG that nvJPEG refuses is decoded on the CPU: %s', reason)
            slot.enqueue(frame.decode(), thresholds)
