# SPDX-License-Identifier: Apache-2.0
"""Reads and decodes the images of a part of a bag, while the model works on earlier images."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

import numpy as np

from trt_perception.bags.bag import BagMessage
from trt_perception.errors import ImageError
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import JpegFrameReader
from trt_perception.images.memory import HostMemory
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.wire.camera_info import CameraInfoFields, read_camera_info
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.frames import decode_file, read_compressed_frame, read_image_frame

#: Bytes of messages and decoded images that wait for the model.
_MAX_WAITING_BYTES: Final = 256 * 2**20
_MIN_WAITING: Final = 4
_MAX_DECODERS: Final = 8
#: Messages with equal log times that are sorted by topic.
_MAX_TIES: Final = 64
#: Blocks of page-locked memory that are kept for later images.
_MAX_KEPT_BLOCKS: Final = 64


def image_order(messages: Iterator[BagMessage]) -> Iterator[BagMessage]:
    """Yield messages by log time, then by topic. The input is sorted by log time.

    Of more than 64 messages with one log time, only 64 at a time are sorted, to bound the memory.
    """
    for _, ties in itertools.groupby(messages, attrgetter('log_ns')):
        while some := list(itertools.islice(ties, _MAX_TIES)):
            yield from sorted(some, key=attrgetter('topic'))


class FrameMemories:
    """Memory of a pipeline for images, which is reused for images of equal size.

    Any thread may call the methods.

    Args:
        allocate: returns memory of a size in bytes.
    """

    def __init__(self, allocate: Callable[[int], HostMemory]) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: deque[HostMemory] = deque()

    def take(self, size: int) -> HostMemory:
        """Return memory of this size in bytes."""
        with self._lock:
            for memory in self._free:
                if memory.array.size == size:
                    self._free.remove(memory)
                    return memory
        return self._allocate(size)

    def give_back(self, memory: HostMemory) -> None:
        """Keep memory for later images. No slot may use it."""
        with self._lock:
            self._free.append(memory)
            oldest = self._free.popleft() if len(self._free) > _MAX_KEPT_BLOCKS else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Free all memory that was given back."""
        with self._lock:
            while self._free:
                self._free.popleft().close()


class ImageTopic:
    """Reads the messages of one camera.

    Args:
        camera: name of the camera.
        is_compressed: whether the messages are CompressedImage messages.
        decodes_jpeg: whether the pipeline decodes JPEG. Such images stay undecoded.
        info_topic: topic of the calibration; empty if it is not needed.

    Attributes:
        calibration: the last calibration; None before the first one.
    """

    def __init__(
        self, camera: str, *, is_compressed: bool, decodes_jpeg: bool, info_topic: str = ''
    ) -> None:
        self.camera = camera
        self.is_compressed = is_compressed
        self.info_topic = info_topic
        self.calibration: CameraInfoFields | None = None
        self._read_file = JpegFrameReader() if decodes_jpeg else decode_file

    def read(self, message: bytes) -> tuple[HeaderFields, Frame]:
        """Return header and frame of a serialised message. Several threads may call it.

        Raises:
            ImageError: the message or its image cannot be read.
        """
        if self.is_compressed:
            return read_compressed_frame(message, self._read_file)
        return read_image_frame(message)

    def use_calibration(self, message: bytes) -> None:
        """Use a serialised CameraInfo from now on. An unreadable message changes nothing."""
        with contextlib.suppress(ImageError):
            self.calibration = read_camera_info(np.frombuffer(message, np.uint8))


@dataclass
class BagImage:
    """An image of a bag, read and decoded.

    Attributes:
        camera: name of the camera.
        log_ns: log time of its message.
        header: header of the image.
        frame: the image; None if it cannot be read.
        error: why the image cannot be read; None if it can.
        calibration: the calibration of the camera; None if it is unknown or not needed.
        release: frees the memory of the image. Called after the model has finished with it.
    """

    camera: str
    log_ns: int
    header: Any
    frame: Frame | None
    error: ImageError | None
    calibration: Any
    release: Callable[[], None]


class _Budget:
    """Lets the reading thread wait while too many images wait for the model.

    Args:
        least: images that are read whatever their size: a batch.
        most: largest number of images.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._changed = threading.Condition()
        self._waiting = self._bytes = 0
        self._closed = False

    def wait_for_room(self) -> bool:
        """Wait until one more image may be read. Return False when closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._waiting < self._least
                    or (self._waiting < self._most and self._bytes < _MAX_WAITING_BYTES)
                )
            )
            self._waiting += 1
            return not self._closed

    def add(self, size: int, images: int = 0) -> None:
        """Count bytes, and images; negative numbers for images that are finished."""
        with self._changed:
            self._bytes += size
            self._waiting += images
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class ReadAhead(contextlib.AbstractContextManager['ReadAhead']):
    """Yields the images of a part of a bag in their order, read and decoded ahead.

    One thread reads the bag, and several threads decode. Images that wait are bounded in number
    and bytes.

    Args:
        messages: the messages of images and calibrations, sorted by log time. Only the thread of
            ``bag_thread`` uses them.
        sources: by topic of images.
        pipeline: runs the images.
        bag_thread: an executor with one thread, which has opened the bag.
        memories: memory of the pipeline for images; None if the pipeline reads pixels in place.
        processes: number of processes that share this machine.
    """

    def __init__(
        self,
        messages: Callable[[], Iterator[BagMessage]],
        sources: Mapping[str, ImageTopic],
        pipeline: Pipeline,
        bag_thread: Executor,
        memories: FrameMemories | None,
        processes: int = 1,
    ) -> None:
        self._messages = messages
        self._sources = sources
        self._memories = memories
        batch = pipeline.batch
        self._budget = _Budget(batch, max(_MIN_WAITING, batch * (pipeline.depth + 1)))
        self._changed = threading.Condition()
        self._found: deque[Future[BagImage]] = deque()  # protected by the condition
        self._ended = self._closed = False
        cores = len(os.sched_getaffinity(0)) // processes
        self._decoders = ThreadPoolExecutor(max(2, min(cores, _MAX_DECODERS)), 'decode')
        self._reading = bag_thread.submit(self._read)

    @property
    def must_wait(self) -> bool:
        """Whether ``next_image`` would wait."""
        with self._changed:
            return not self._found[0].done() if self._found else not self._ended

    def next_image(self) -> BagImage | None:
        """Return the next image, None after the last one. Errors of reading the bag come last."""
        with self._changed:
            self._changed.wait_for(lambda: self._found or self._ended)
            waiting = self._found.popleft() if self._found else None
        if waiting is None:
            self._reading.result()
            return None
        return waiting.result()

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._budget.close()
        self._decoders.shutdown(cancel_futures=True)
        with contextlib.suppress(Exception):  # an error was raised by __iter__
            self._reading.result()

    def _read(self) -> None:
        try:
            for message in self._messages():
                if self._closed:
                    return
                source = self._sources.get(message.topic)
                if source is None:
                    for each in self._sources.values():
                        if each.info_topic == message.topic:
                            each.use_calibration(message.data)
                    continue
                if not self._budget.wait_for_room():
                    return
                future = self._decoders.submit(self._decode, source, message, source.calibration)
                with self._changed:
                    self._found.append(future)
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _decode(self, source: ImageTopic, message: BagMessage, calibration: Any) -> BagImage:
        size = len(message.data)
        header, frame, error, memory = None, None, None, None
        try:
            header, frame = source.read(message.data)
            size += frame.data.size if source.is_compressed else 0
            if self._memories is not None and frame.is_decoded:
                memory = self._memories.take(frame.data.size)
                np.copyto(memory.array, frame.data)
                frame = replace(frame, data=memory.array, memory=memory)
        except ImageError as refused:
            error = refused
        self._budget.add(size)

        def release() -> None:
            self._budget.add(-size, -1)
            if memory is not None and self._memories is not None:
                self._memories.give_back(memory)

        return BagImage(source.camera, message.log_ns, header, frame, error, calibration, release)
