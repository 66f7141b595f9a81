# SPDX-License-Identifier: Apache-2.0
"""One place of a batch: the device memory, the header and the upload of its frame."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.errors import GpuMemoryError, ImageError
from trt_perception.gpu import (
    Device,
    DeviceBuffer,
    PinnedBuffer,
    Stream,
    copy_async,
    copy_parts_async,
)
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.letterbox import Letterbox, NeededRows
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.header_templates import HeaderTemplates

# Device memory of frames is a multiple of this size. Messages of one camera differ by a few bytes,
# and these differences must not cause a new allocation.
_SIZE_MULTIPLE_BYTES: Final = 64 * 1024


class _DeviceHeader(NamedTuple):
    """A header in device memory.

    Attributes:
        address: device address of the header.
        content: bytes of the header; the same object for all frames with the same template.
        pixels: bytes from the header to the pixels.
    """

    address: int
    content: npt.NDArray[np.uint8]
    pixels: int

    def is_same(self, other: _DeviceHeader | None) -> bool:
        """Return whether `other` is the same header at the same address."""
        return (
            other is not None
            and self.content is other.content
            and self.pixels == other.pixels
            and self.address == other.address
        )


class _Upload(NamedTuple):
    """The parts of a frame's memory to upload.

    Attributes:
        source: host address of the header.
        size: bytes to copy from `source`; 0 if the device has the header.
        rows: rows of the pixels to copy separately; None if no separate copy is needed.
        step: bytes from one row to the next.
    """

    header: _DeviceHeader
    source: int
    size: int
    rows: NeededRows | None
    step: int


class FrameMemory:
    """Page-locked memory for one frame, with room for a header before it.

    Args:
        size: size of the memory in bytes, without the header.
        header_bytes: size of the header in bytes.
        device: the GPU to make current for the allocation and the release.

    Attributes:
        buffer: the room for the header, followed by the memory for the frame.
        pointer: host address of the memory for the frame.
        size: size of the memory for the frame in bytes.
        array: the memory for the frame, uint8 (size,), valid until `close`.
    """

    def __init__(self, size: int, header_bytes: int, device: Device) -> None:
        self.buffer = PinnedBuffer(header_bytes + size, device)
        self.pointer = self.buffer.pointer + header_bytes
        self.size = size
        self.array: npt.NDArray[np.uint8] = self.buffer.array[header_bytes:]

    def close(self) -> None:
        """Free the memory. Afterwards, views of `array` must not be used."""
        self.array = np.empty(0, np.uint8)
        self.buffer.close()


class FramePlace:
    """A place in a batch.

    A frame in a FrameMemory of any pipeline is uploaded from its memory. Other frames are copied
    to staging memory first. If the letterbox skips many rows, only the other rows are uploaded. An
    integrated GPU reads pixels in place, and has separate memory for the header. A JPEG file is
    decoded into the device memory of its pixels. Each kind of memory is allocated for the first
    frame that needs it, and only grows.

    Args:
        device: the GPU of the place. It must be the current device.
        headers: templates of frame headers, shared by all places.
        stream: stream of the uploads.

    A place holds a frame from `stage` to `remove_frame`, because its memory must not be reused
    before the upload is done. A frame with undecoded pixels waits in the place until a thread
    calls `read`.

    Attributes:
        frame: the frame of the current batch; None before `stage` and after `remove_frame`.
        unread: a frame that waits for `read`; None otherwise.
        address: device address of the header; 0 before the first frame.
        pixels: device address of the pixels of a JPEG file.
        letterbox: position of the last frame in the network's input; before the first frame, of an
            image of one pixel.
        thresholds: thresholds of the last frame.
        error: why the frame of the last batch is dropped; None if it is not.
    """

    letterbox: Letterbox = Letterbox.fit((1, 1), (1, 1), 'stretch')
    thresholds: Thresholds

    def __init__(self, device: Device, headers: HeaderTemplates, stream: Stream) -> None:
        self._integrated = device.integrated
        self._headers = headers
        self._stream = stream
        self.address = 0
        self.pixels = 0
        self.error: ImageError | None = None
        self.frame: Frame | None = None
        self.unread: Frame | DeferredFrame | None = None
        self._upload: _Upload | None = None
        # The headers of a camera are usually equal, so a header on the device is not sent again.
        self._last_sent_header: _DeviceHeader | None = None
        # Device memory of header and pixels. Not used on an integrated GPU.
        self._frame_buffer: DeviceBuffer | None = None
        # Page-locked memory for frames outside FrameMemory, and for headers of JPEG files.
        self._staging_buffer: PinnedBuffer | None = None
        # On an integrated GPU only: memory for the header, and for the pixels of JPEG files.
        self._mapped_header: PinnedBuffer | None = None
        self._decoded_buffer: DeviceBuffer | None = None

    def reserve(self, size: int) -> None:
        """Allocate device memory for a header and `size` bytes behind it.

        On an integrated GPU, only memory for the header is allocated.
        """
        if self._integrated:
            if self._mapped_header is None:
                self._mapped_header = PinnedBuffer(self._headers.size)
                self.address = self._mapped_header.device_pointer
            return
        size_bytes = -(-(self._headers.size + size) // _SIZE_MULTIPLE_BYTES) * _SIZE_MULTIPLE_BYTES
        if self._frame_buffer is None or self._frame_buffer.size < size_bytes:
            self._stream.synchronize()
            larger = DeviceBuffer(size_bytes)
            if self._frame_buffer is not None:
                self._frame_buffer.close()
            self._frame_buffer = larger
            self.address = larger.pointer

    def put(self, frame: Frame | DeferredFrame, thresholds: Thresholds) -> None:
        """Keep a frame whose pixels are not decoded, until `read`."""
        self.unread = frame
        self.thresholds = thresholds

    def read(self) -> Frame:
        """Read the frame from `put`, and start its upload. Return the frame.

        Another call returns the frame again. Any thread may call this method, one at a time.

        Raises:
            ImageError: the image is invalid, or memory is not sufficient.
        """
        unread, self.unread = self.unread, None
        if unread is not None:
            self.stage(unread.read(), self.thresholds)
            self.upload()
        assert self.frame is not None
        return self.frame

    def stage(self, frame: Frame, thresholds: Thresholds) -> None:
        """Prepare the upload of a frame: write its header, and copy its pixels if necessary.

        Raises:
            ImageError: memory is not sufficient for the frame (reason `too_large`).
            CudaError: another CUDA call failed.
        """
        self.error = None
        self.thresholds = thresholds
        try:
            if frame.jpeg:
                self._stage_jpeg(frame)
            else:
                self._stage_pixels(frame)
        except GpuMemoryError as error:
            subject = f'image of {frame.width}x{frame.height} pixels with step {frame.step}'
            raise ImageError('too_large', subject, error.statement, fix=error.fix) from error

    def _stage_pixels(self, frame: Frame) -> None:
        memory, offset = self._buffer_with_frame(frame) or self._copy_to_staging(frame)
        # Bytes of the message between the header and the pixels are uploaded, too.
        self.reserve(offset - self._headers.size + frame.data.size)
        if self._mapped_header is not None:
            distance = memory.device_pointer + offset - self._mapped_header.device_pointer
            self._stage_mapped(self._mapped_header, frame, distance)
            return
        self._stage_header(frame, memory, offset, offset + frame.data.size)

    def _stage_jpeg(self, frame: Frame) -> None:
        front, size = self._headers.size, frame.height * frame.step
        self.reserve(size)
        if self._mapped_header is None:
            self.pixels = self.address + front
            self._stage_header(frame, self._staging_memory(front), front)
            return
        if self._decoded_buffer is None or self._decoded_buffer.size < size:
            larger = DeviceBuffer(size)
            if self._decoded_buffer is not None:
                self._decoded_buffer.close()
            self._decoded_buffer = larger
        self.pixels = self._decoded_buffer.pointer
        self._stage_mapped(self._mapped_header, frame, self.pixels - self.address)

    def _stage_mapped(self, mapped: PinnedBuffer, frame: Frame, pixels: int) -> None:
        self.letterbox, content, _ = self._headers.template(frame, self.thresholds)
        self._headers.write(mapped.array, content, pixels)
        self.frame = frame

    def _stage_header(
        self, frame: Frame, memory: PinnedBuffer, pixels: int, whole_size: int = 0
    ) -> None:
        """Write the header at the start of `memory`.

        Skips a header that the device already has, unless pixels are copied together with it.

        Args:
            frame: the frame.
            memory: memory with room for the header at its start.
            pixels: bytes from the header to the pixels in device memory.
            whole_size: bytes of header and pixels; 0 if this place does not upload the pixels.
        """
        self.letterbox, content, rows = self._headers.template(frame, self.thresholds)
        header = _DeviceHeader(self.address, content, pixels)
        separate_rows = rows if whole_size else None
        if whole_size and separate_rows is None:
            size = whole_size
        else:
            size = 0 if header.is_same(self._last_sent_header) else self._headers.size
        if size:
            self._headers.write(memory.array, content, pixels)
        self.frame = frame
        self._upload = _Upload(header, memory.pointer, size, separate_rows, frame.step)

    def upload(self) -> None:
        """Queue the copy of header and pixels, or of the sampled rows and a changed header.

        Does nothing on an integrated GPU, which reads both in place.
        """
        if self._frame_buffer is None:
            return
        assert self._upload is not None
        header, source, size, rows, step = self._upload
        if size:
            copy_async(header.address, source, size, self._stream)
            self._last_sent_header = header
        if rows is not None:
            start = header.pixels + rows.first_row * step
            copy_parts_async(
                header.address + start,
                source + start,
                rows.rows_per_group * step,
                rows.distance * step,
                rows.group_count,
                self._stream,
            )

    def replace(self, frame: Frame) -> None:
        """Replace a staged JPEG file by its pixels, decoded on the CPU, and upload them.

        Raises:
            ImageError: memory is not sufficient (reason `too_large`).
        """
        self.stage(frame, self.thresholds)
        self.upload()

    def refuse(self, error: ImageError) -> None:
        """Store why the frame is dropped. The place may have no memory."""
        # Traceback and cause would keep the image in memory while the caller stores the error.
        error.__cause__ = error.__context__ = None
        self.error = error.with_traceback(None)

    def remove_frame(self) -> Frame | None:
        """Remove the frame and return it. The queued work on the frame must be done."""
        frame, self.frame = self.frame, None
        return frame

    def close(self) -> None:
        """Free all memory of the place, and forget a frame that was not read."""
        self.unread = None
        with ExitStack() as own:
            for each in (
                self._frame_buffer,
                self._staging_buffer,
                self._mapped_header,
                self._decoded_buffer,
            ):
                if each is not None:
                    own.callback(each.close)

    def _buffer_with_frame(self, frame: Frame) -> tuple[PinnedBuffer, int] | None:
        """Return the pinned buffer that already contains the frame, and the offset of its pixels.

        Returns None if the frame is not in a FrameMemory, or has no room for the header before it.
        The offset is in bytes.
        """
        memory = frame.memory
        if not isinstance(memory, FrameMemory):
            return None
        buffer = memory.buffer
        # `__array_interface__` takes twice as long: up to 12 µs more for each image. The bytes are
        # writable, because they are in memory of the pipeline.
        offset = ctypes.addressof(ctypes.c_char.from_buffer(frame.data.data)) - buffer.pointer
        fits = self._headers.size <= offset <= buffer.size - frame.data.size
        return (buffer, offset) if fits else None

    def _copy_to_staging(self, frame: Frame) -> tuple[PinnedBuffer, int]:
        """Copy the pixels to staging memory. Return the memory and their offset in bytes."""
        offset = self._headers.size
        size = offset + frame.data.size
        staging = self._staging_memory(size)
        np.copyto(staging.array[offset:size], frame.data)
        return staging, offset

    def _staging_memory(self, size: int) -> PinnedBuffer:
        """Return staging memory of at least `size` bytes."""
        if self._staging_buffer is None or self._staging_buffer.size < size:
            # The upload of an earlier header may still read the old memory.
            self._stream.synchronize()
            larger = PinnedBuffer(size)
            if self._staging_buffer is not None:
                self._staging_buffer.close()
            self._staging_buffer = larger
        return self._staging_buffer
