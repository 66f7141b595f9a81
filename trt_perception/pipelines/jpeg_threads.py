"""Threads that read and decode JPEGs into the slots of a pipeline on the GPU.

nvJPEG keeps a core busy for a millisecond a frame, and to look through a file takes a third of
that, so the worker does neither: it hands messages over as they came. A few threads read them,
make room for their pixels and decode them there, and the last one that is done with a file of the
batch starts the work on it. What goes wrong there shows when the batch is collected.

A single file is decoded by whoever hands it over where nothing else is under way, so that there is
nobody to keep waiting: to wake a thread, and to be woken by a timer when it should be done, takes
longer than to be there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Final

from trt_perception.errors import ImageError
from trt_perception.gpu import Device, Event, Stream
from trt_perception.gpu.bindings import Resource
from trt_perception.gpu.nvjpeg import JpegDecoder, NvJpeg
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import decode_on_cpu
from trt_perception.pipelines.cuda_slot import CudaSlot, UndecodedPlace
from trt_perception.pipelines.frame_place import FramePlace
from trt_perception.stages.open_nvjpeg import open_nvjpeg

__all__ = ['JpegThreads']

_LOG: Final = logging.getLogger(__name__)
# More decode hardly more frames: four 3,400 a second, eight 3,800 (1080p, NVIDIA H200).
_MAX_THREADS: Final = 4


class _StreamDecoder(Resource):
    """What a thread decodes with: nvJPEG's memory, and a stream that is idle before each file."""

    def __init__(self, nvjpeg: NvJpeg) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self.stream: Stream = self._closing.enter_context(Stream())
            self._decoded: Event = self._closing.enter_context(Event())
            self._decoder: JpegDecoder = self._closing.enter_context(nvjpeg.decoder())
            undo.pop_all()

    def decode(self, frame: Frame, place: FramePlace, following: Stream) -> str:
        """Decode a file, and let what is queued on another stream from then on wait for it.

        Returns:
            Empty, or why there are no pixels.
        """
        # The last file's pixels are there before the decoder's memory is used again.
        self.stream.synchronize()
        size_wh = frame.width, frame.height
        reason = self._decoder.decode(frame.jpeg, size_wh, place.pixels, frame.step, self.stream)
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


class _DecodeBatch:
    """The files of a batch that are left to decode; the last one done starts the work."""

    def __init__(self, slot: CudaSlot, count: int) -> None:
        self.slot = slot
        # Held until the work has started, or failed to: an Event costs ten times as much.
        self._starting = threading.Lock()
        self._starting.acquire()
        self.errors: list[BaseException] = []
        self._left = count
        self._lock = threading.Lock()

    def count_down(self) -> None:
        """Note that a file is done, or has failed; the last one starts the work, or does not."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if not last:
            return
        try:
            if not self.errors:
                self.slot.launch()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._starting.release()

    @property
    def has_started(self) -> bool:
        """Whether the work has started, or failed to."""
        return not self._starting.locked()

    def wait(self) -> None:
        """Wait for that; once."""
        self._starting.acquire()


class JpegThreads:
    """Threads that read and decode files, with a decoder of nvJPEG for each.

    One thread uses it, which is not one of its own. That one uses the first station, too, where
    all batches before are collected, so that no thread has anything to decode.

    Args:
        device: must be the current one.
        depth: number of slots.
        max_frames: frames of the largest batch.

    Raises:
        CudaError: nvJPEG is not installed, or does not work here.
    """

    def __init__(self, device: Device, depth: int, max_frames: int = 1) -> None:
        self._device = device
        self._batches: list[_DecodeBatch | None] = [None] * depth
        self._waiting: SimpleQueue[tuple[_DecodeBatch, UndecodedPlace] | None] = SimpleQueue()
        self._logged: set[str] = set()
        self._logging = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            nvjpeg = self._closing.enter_context(open_nvjpeg())
            self._decoders = [
                self._closing.enter_context(_StreamDecoder(nvjpeg))
                for _ in range(min(depth * max_frames, _MAX_THREADS))
            ]
            undo.callback(self.stop)
            for number, decoder in enumerate(self._decoders):
                thread = threading.Thread(
                    target=self._run, args=(decoder,), name=f'jpeg_{number}', daemon=True
                )
                thread.start()
                self._threads.append(thread)
            undo.pop_all()

    def start(
        self, index: int, slot: CudaSlot, undecoded: Sequence[UndecodedPlace], *, alone: bool
    ) -> None:
        """Fill places of a slot and start the work on its batch.

        Does not wait for that, unless a single file is all that there is to do and takes a moment.

        Args:
            index: of the slot.
            slot: where the batch is.
            undecoded: its places that have files.
            alone: no other batch is under way; the slot's device is the current one.
        """
        batch = self._batches[index] = _DecodeBatch(slot, len(undecoded))
        at_once = alone and len(undecoded) == 1 and undecoded[0].frame.is_fast_to_decode
        if at_once and self._fill_at_once(batch, undecoded[0]):
            batch.count_down()
            return
        for each in undecoded:
            self._waiting.put((batch, each))

    def _fill_at_once(self, batch: _DecodeBatch, undecoded: UndecodedPlace) -> bool:
        """As ``_fill``; return False where nvJPEG refuses it: the CPU would take too long here."""
        try:
            return not self._fill(undecoded, self._decoders[0], batch.slot.stream, on_cpu=False)
        except BaseException as error:
            batch.errors.append(error)
            return True

    def has_started(self, index: int) -> bool:
        """Tell without waiting whether the work on the slot's batch has started, or failed to."""
        batch = self._batches[index]
        return batch is None or batch.has_started

    def has_failed(self, index: int) -> bool:
        """Tell whether it failed to, once it is known."""
        batch = self._batches[index]
        return batch is not None and bool(batch.errors)

    def wait(self, index: int) -> None:
        """Wait until the work on the slot's batch has started; raise what kept it from that."""
        batch, self._batches[index] = self._batches[index], None
        if batch is not None:
            batch.wait()
            if batch.errors:
                raise batch.errors[0]

    def stop(self) -> None:
        """End the threads, once they have done what they do; before the slots are freed.

        May be called again.
        """
        with contextlib.suppress(Empty):
            while True:
                self._waiting.get_nowait()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def close(self) -> None:
        """Free the decoders; after the slots, whose work may still wait for them."""
        self.stop()
        self._closing.close()

    # In the threads. What holds a frame ends with the function that does: it is let go of before
    # the work on the batch starts, and while the thread waits it keeps nobody's memory.

    def _run(self, decoder: _StreamDecoder) -> None:
        ready = False
        while (batch := self._fill_next(decoder, ready=ready)) is not None:
            ready = True
            batch.count_down()
            del batch

    def _fill_next(self, decoder: _StreamDecoder, *, ready: bool) -> _DecodeBatch | None:
        """Wait for a file and fill its place; return its batch, None at the end."""
        waiting = self._waiting.get()
        if waiting is None:
            return None
        batch, undecoded = waiting
        try:
            if not ready:
                # Once: nobody else makes another device current in these threads, and each call of
                # CUDA gives the interpreter's lock away.
                self._device.use()
            self._fill(undecoded, decoder, batch.slot.stream)
        except BaseException as error:
            batch.errors.append(error)
        return batch

    def _fill(
        self,
        undecoded: UndecodedPlace,
        decoder: _StreamDecoder,
        stream: Stream,
        *,
        on_cpu: bool = True,
    ) -> str:
        """Bring a file's pixels to their place, or note why there are none.

        Returns:
            Why nvJPEG refuses the file, which then was decoded on the CPU, if that is allowed.
        """
        place, given, thresholds = undecoded
        reason = ''
        try:
            frame = given.read()
            place.stage(frame, thresholds)
            place.upload()
            if not frame.is_decoded:
                reason = decoder.decode(frame, place, stream)
                if reason and on_cpu:
                    self._log(reason)
                    place.replace(decode_on_cpu(frame))
        except ImageError as error:
            place.refuse(error, thresholds)
        return reason

    def _log(self, reason: str) -> None:
        with self._logging:
            known = reason in self._logged
            self._logged.add(reason)
        if not known:
            _LOG.warning('a JPEG that nvJPEG refuses is decoded on the CPU: %s', reason)
