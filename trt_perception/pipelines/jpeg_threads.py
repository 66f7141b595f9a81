"""Threads that decode JPEGs into the slots of a pipeline on the GPU.

nvJPEG keeps a core busy for a millisecond a frame, so the worker does not wait for it: the files
of a batch are decoded by a few threads, and the last of them starts the work on the batch. What
goes wrong there shows when the batch is collected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Final

from trt_perception.errors import ImageError
from trt_perception.gpu import Device
from trt_perception.gpu import Event
from trt_perception.gpu import Stream
from trt_perception.gpu.bindings import Owner
from trt_perception.gpu.nvjpeg import JpegDecoder
from trt_perception.gpu.nvjpeg import NvJpeg
from trt_perception.images.jpeg import JpegFrame
from trt_perception.pipelines.cuda_slot import CudaSlot
from trt_perception.pipelines.frame_place import FramePlace
from trt_perception.stages.jpeg import open_nvjpeg

__all__ = ['JpegThreads']

_LOG: Final = logging.getLogger(__name__)
# More decode hardly more frames: four 3,400 a second, eight 3,800 (1080p, NVIDIA H200).
_MOST_THREADS: Final = 4
# A decoder that works on the GPU alone lets go of its caller sooner than another thread wakes up.
_AT_ONCE_S: Final = 0.5e-3


class _Station(Owner):
    """What a thread decodes with: nvJPEG's memory, and a stream that is idle before each file."""

    def __init__(self, nvjpeg: NvJpeg) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self.stream: Stream = self._closing.enter_context(Stream())
            self._decoded: Event = self._closing.enter_context(Event())
            self._decoder: JpegDecoder = self._closing.enter_context(nvjpeg.decoder())
            undo.pop_all()

    def decode(self, frame: JpegFrame, place: FramePlace, following: Stream) -> str:
        """Decode a file, and let what is queued on another stream from then on wait for it.

        Returns:
            Empty, or why there are no pixels.
        """
        # The last file's pixels are there before the decoder's memory is used again.
        self.stream.synchronize()
        size_wh = frame.width, frame.height
        reason = self._decoder.decode(frame.data, size_wh, place.pixels, frame.step, self.stream)
        if reason:
            # What it had begun ends, and a file that is bad is told from a GPU that is lost.
            self.stream.raise_if_lost()
        else:
            self._decoded.record(self.stream)
            following.wait(self._decoded)
        return reason

    def close(self) -> None:
        """Free it; its device must be the current one, and the stream's work done."""
        self._closing.close()


class _Batch:
    """The files of a batch that are left to decode; the last one done starts the work."""

    def __init__(self, slot: CudaSlot, count: int) -> None:
        self.slot = slot
        self._left = count
        self._whole = True
        self._lock = threading.Lock()

    def count_down(self, *, whole: bool) -> None:
        """Note that a file is done; ``whole`` is False where a fault kept it from that."""
        with self._lock:
            self._left -= 1
            self._whole &= whole
            last = self._left == 0 and self._whole
        if last:
            self.slot.launch()


class JpegThreads:
    """nvJPEG with a decoder for each of its threads.

    One thread uses it, which is not one of its own.

    Args:
        device: must be the current one.
        depth: number of slots.
        most: frames of the largest batch.

    Raises:
        CudaError: nvJPEG is not installed, or does not work here.
    """

    def __init__(self, device: Device, depth: int, most: int = 1) -> None:
        self._device = device
        self._pending: list[list[Future[None]]] = [[] for _ in range(depth)]
        self._logged: set[str] = set()
        self._thread = threading.local()
        # How long the last file kept its thread.
        self._decode_s = _AT_ONCE_S
        self._closing = ExitStack()
        # As many as there are threads, so that nobody waits for one.
        self._stations: SimpleQueue[_Station] = SimpleQueue()
        count = min(depth * most, _MOST_THREADS)
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            nvjpeg = self._closing.enter_context(open_nvjpeg())
            for _ in range(count):
                self._stations.put(self._closing.enter_context(_Station(nvjpeg)))
            undo.pop_all()
        self._threads = ThreadPoolExecutor(count, 'jpeg')

    def start(
        self, index: int, slot: CudaSlot, frames: Sequence[tuple[FramePlace, JpegFrame]]
    ) -> None:
        """Decode files into places of a slot and start the work on its batch, without waiting.

        A single file whose decoding would keep the caller for a moment only is decoded here.
        """
        batch = _Batch(slot, len(frames))
        if len(frames) == 1 and self._decode_s < _AT_ONCE_S:
            self._pending[index] = []
            self._decode(batch, *frames[0])
            return
        self._pending[index] = [
            self._threads.submit(self._decode, batch, place, frame) for place, frame in frames
        ]

    def started(self, index: int) -> bool:
        """Tell without waiting whether the work on the slot's batch has started, or failed to."""
        return all(pending.done() for pending in self._pending[index])

    def failed(self, index: int) -> bool:
        """Tell whether it failed to, once it is known."""
        return any(pending.exception() is not None for pending in self._pending[index])

    def wait(self, index: int) -> None:
        """Wait until the work on the slot's batch has started; raise what kept it from that."""
        pending, self._pending[index] = self._pending[index], []
        errors = [error for each in pending if (error := each.exception()) is not None]
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """End the threads, once they have done what they do; before the slots are freed."""
        self._threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Free the decoders; after the slots, whose work may still wait for them."""
        self._closing.close()

    def _decode(self, batch: _Batch, place: FramePlace, frame: JpegFrame) -> None:
        whole = False
        try:
            if not getattr(self._thread, 'ready', False):
                # Once: nobody else makes another device current in these threads, and each call of
                # CUDA gives the interpreter's lock away.
                self._device.use()
                self._thread.ready = True
            self._fill(place, frame, batch.slot.stream)
            whole = True
        finally:
            batch.count_down(whole=whole)

    def _fill(self, place: FramePlace, frame: JpegFrame, stream: Stream) -> None:
        """Bring a file's pixels to their place, or note why there are none."""
        station = self._stations.get_nowait()
        began = time.perf_counter()
        try:
            reason = station.decode(frame, place, stream)
        finally:
            self._decode_s = time.perf_counter() - began
            self._stations.put(station)
        if not reason:
            return
        if reason not in self._logged:
            self._logged.add(reason)
            _LOG.warning('a JPEG that nvJPEG refuses is decoded on the CPU: %s', reason)
        try:
            place.replace(frame.decode())
        except ImageError as error:
            place.error = error
