# SPDX-License-Identifier: Apache-2.0
"""Threads that read and decode JPEG files into the slots of a pipeline on the GPU.

nvJPEG keeps a CPU core busy for 1 ms per frame, and checking a file takes a third of this time. So
the worker does not read the messages. A few threads read them, allocate memory for the pixels, and
decode. The thread that finishes the last file of a batch launches the batch. Errors are raised
when the batch is collected.

If no other batch is in flight, the worker decodes a single file itself, because no other frame can
be delayed. Waking a thread, and later waking the worker by a timer, would take longer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import ClassVar, Final

from trt_perception.errors import ImageError
from trt_perception.gpu import Device, Event, Stream
from trt_perception.gpu.bindings import Resource
from trt_perception.gpu.nvjpeg import JpegDecoder, NvJpeg
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import decode_on_cpu
from trt_perception.pipelines.cuda.frame_place import FramePlace
from trt_perception.pipelines.cuda.slot import CudaSlot
from trt_perception.stages.open_nvjpeg import open_nvjpeg

_LOG: Final = logging.getLogger(__name__)
# More threads gain little: four decode 3,400 frames per second, eight 3,800 (1080p, NVIDIA H200).
_MAX_THREADS: Final = 4


class _StreamDecoder(Resource):
    """The nvJPEG decoder of one thread, with its own stream."""

    def __init__(self, nvjpeg: NvJpeg) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self.stream: Stream = self._closing.enter_context(Stream())
            self._decoded: Event = self._closing.enter_context(Event())
            self._decoder: JpegDecoder = self._closing.enter_context(nvjpeg.decoder())
            undo.pop_all()

    def decode(self, frame: Frame, place: FramePlace, following: Stream) -> str:
        """Queue the decoding of a file. Later work on the stream `following` waits for the pixels.

        Returns:
            Why nvJPEG refused the file; empty if it accepted the file.
        """
        # The previous file must be done before the decoder's memory is reused.
        self.stream.synchronize()
        size_wh = frame.width, frame.height
        reason = self._decoder.decode(frame.jpeg, size_wh, place.pixels, frame.step, self.stream)
        if reason:
            # Wait for work that nvJPEG has queued, and distinguish a bad file from a lost GPU.
            self.stream.raise_if_lost()
        else:
            self._decoded.record(self.stream)
            following.wait(self._decoded)
        return reason

    def close(self) -> None:
        """Free the decoder. Its device must be the current device, and its work must be done."""
        self._closing.close()


class _DecodeBatch:
    """Counts the undecoded files of a batch, and launches the batch after the last one."""

    def __init__(self, slot: CudaSlot, count: int) -> None:
        self.slot = slot
        # Locked until the batch is launched or has failed. An Event takes ten times as long.
        self._starting = threading.Lock()
        self._starting.acquire()
        self.errors: list[BaseException] = []
        self._left = count
        self._lock = threading.Lock()

    def count_down(self) -> None:
        """Count a file as done or failed. After the last file, launch the batch if none failed."""
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
        """Whether the batch was launched or has failed."""
        return not self._starting.locked()

    def wait(self) -> None:
        """Wait until the batch was launched or has failed. Call this method only once."""
        self._starting.acquire()


class JpegThreads:
    """Threads that read and decode files, each with its own nvJPEG decoder.

    Only the worker calls the public methods. If no other batch is in flight, the threads are idle.
    The worker may then decode a single file itself, with the decoder of the first thread.

    Args:
        device: must be the current device.

    Raises:
        CudaError: nvJPEG is not installed or does not work.
    """

    #: Maps the name of each stage method to the name of its NVTX range.
    stage_ranges: ClassVar[Mapping[str, str]] = {'decode_into_place': 'decode JPEG'}

    def __init__(self, device: Device, depth: int, max_frames: int = 1) -> None:
        self._device = device
        self._batches: list[_DecodeBatch | None] = [None] * depth
        self._waiting: SimpleQueue[tuple[_DecodeBatch, FramePlace] | None] = SimpleQueue()
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

    def start_decoding(
        self, index: int, slot: CudaSlot, undecoded: Sequence[FramePlace], *, alone: bool
    ) -> None:
        """Let the threads decode the files of a batch, and then launch the batch.

        Returns at once, except that a single file that is fast to decode is decoded here if no
        other batch is in flight. Requires that the slot's device is the current device.

        Args:
            index: index of the slot.
            alone: whether no other batch is in flight.
        """
        batch = self._batches[index] = _DecodeBatch(slot, len(undecoded))
        if alone and len(undecoded) == 1:
            (place,) = undecoded
            assert place.unread is not None
            if place.unread.is_fast_to_decode and self._decode_at_once(batch, place):
                batch.count_down()
                return
        for place in undecoded:
            self._waiting.put((batch, place))

    def _decode_at_once(self, batch: _DecodeBatch, place: FramePlace) -> bool:
        """Fill a place in the calling thread. Return False if nvJPEG refused the file.

        Decoding on the CPU would delay the worker too long, so a thread must do it.
        """
        try:
            return not self.decode_into_place(
                place, self._decoders[0], batch.slot.stream, on_cpu=False
            )
        except BaseException as error:
            batch.errors.append(error)
            return True

    def has_started(self, index: int) -> bool:
        """Return whether the slot's batch was launched or has failed. Does not wait."""
        batch = self._batches[index]
        return batch is None or batch.has_started

    def has_failed(self, index: int) -> bool:
        """Return whether a file of the slot's batch failed. Valid after `has_started` is True."""
        batch = self._batches[index]
        return batch is not None and bool(batch.errors)

    def wait(self, index: int) -> None:
        """Wait until the slot's batch was launched. Raise the first error that prevented it."""
        batch, self._batches[index] = self._batches[index], None
        if batch is not None:
            batch.wait()
            if batch.errors:
                raise batch.errors[0]

    def stop(self) -> None:
        """Discard waiting files, and end the threads after their current files.

        Call this method before the slots are freed. May be called again.
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
        """Free the decoders. Call this after the slots are freed: their work may use decoders."""
        self.stop()
        self._closing.close()

    # The threads call these methods. No local variable may refer to a frame while the batch is
    # launched or a thread waits, because a frame keeps the memory of its message in use.

    def _run(self, decoder: _StreamDecoder) -> None:
        ready = False
        while (batch := self._decode_next_file(decoder, ready=ready)) is not None:
            ready = True
            batch.count_down()
            del batch

    def _decode_next_file(self, decoder: _StreamDecoder, *, ready: bool) -> _DecodeBatch | None:
        """Wait for a file and fill its place. Return its batch, or None to end the thread."""
        waiting = self._waiting.get()
        if waiting is None:
            return None
        batch, place = waiting
        try:
            if not ready:
                # Only once per thread, because a CUDA call releases the GIL, which is slow.
                self._device.use()
            self.decode_into_place(place, decoder, batch.slot.stream)
        except BaseException as error:
            batch.errors.append(error)
        return batch

    def decode_into_place(
        self,
        place: FramePlace,
        decoder: _StreamDecoder,
        stream: Stream,
        *,
        on_cpu: bool = True,
    ) -> str:
        """Read and decode the file of a place into it, or store the error there.

        Args:
            decoder: the decoder of the calling thread.
            stream: stream of the slot, which waits for the decoder.
            on_cpu: whether to decode on the CPU if nvJPEG refuses the file.

        Returns:
            Why nvJPEG refused the file; empty if it accepted the file.
        """
        reason = ''
        try:
            frame = place.read()
            if not frame.is_decoded:
                reason = decoder.decode(frame, place, stream)
                if reason and on_cpu:
                    self._log(reason)
                    place.replace(decode_on_cpu(frame))
        except ImageError as error:
            place.refuse(error)
        return reason

    def _log(self, reason: str) -> None:
        with self._logging:
            known = reason in self._logged
            self._logged.add(reason)
        if not known:
            _LOG.warning('nvJPEG refused a JPEG file, which is decoded on the CPU: %s', reason)
