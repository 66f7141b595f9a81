"""One frame of a batch on its way to the GPU: its memory there, its header, what is uploaded."""

from __future__ import annotations

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
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox, RowGroups
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.header_templates import HeaderTemplates

__all__ = ['FrameMemory', 'FramePlace']

# What device memory of frames is a multiple of: messages of one camera differ by some bytes.
_SIZE_MULTIPLE_BYTES: Final = 64 * 1024
_PLACEHOLDER_FRAME: Final = Frame.view(bytes(3), width=1, height=1, step=3, encoding='bgr8')


class _DeviceHeader(NamedTuple):
    """A header on the device."""

    address: int
    content: npt.NDArray[np.uint8]  # those of frames that are alike are one object
    pixels: int  # bytes from the header to the pixels

    def is_same(self, other: _DeviceHeader | None) -> bool:
        """Tell whether another is this one."""
        return (
            other is not None
            and self.content is other.content
            and self.pixels == other.pixels
            and self.address == other.address
        )


class _StagedFrame(NamedTuple):
    """A frame, and what is uploaded of its memory.

    It is kept until that is done, so that nobody writes its memory meanwhile.
    """

    frame: Frame
    header: _DeviceHeader | None  # None where an integrated GPU reads it in place
    source: int = 0  # address of the memory
    size: int = 0  # bytes from there on, sent in one copy; 0 where the header is there
    rows: RowGroups | None = None  # of the pixels, sent beside it


class FrameMemory:
    """Page-locked memory of one frame, with room for its header in front. A Memory.

    Args:
        size: bytes of the memory without the header.
        header_bytes: bytes of the header.
        device: made the current one to allocate and to free.

    Attributes:
        buffer: all of the memory: the header's room, then what the other attributes describe.
        pointer: address on the host.
        size: as given.
        array: uint8 (size,), valid until ``close``.
    """

    def __init__(self, size: int, header_bytes: int, device: Device) -> None:
        self.buffer = PinnedBuffer(header_bytes + size, device)
        self.pointer = self.buffer.pointer + header_bytes
        self.size = size
        self.array: npt.NDArray[np.uint8] = self.buffer.array[header_bytes:]

    def close(self) -> None:
        """Free the memory; ``array`` must not be used any more."""
        self.array = np.empty(0, np.uint8)
        self.buffer.close()


class FramePlace:
    """A place in a batch.

    A frame in a FrameMemory, of whichever pipeline, is uploaded from where it lies; any other is
    copied first. Rows that the letterbox does not read
    are left out, where they are many. An integrated GPU reads either in
    place, and headers in memory of their own. A JPEG is decoded to where its pixels would be
    uploaded. All memory is made for the first frame that needs it, and only grows.

    Args:
        device: must be the current one.
        headers: shared with all other places.
        stream: uploads are queued on it.

    Attributes:
        address: of the header on the device; 0 before the first frame.
        pixels: device address to which a JPEG is decoded.
        letterbox: where the last frame lies in the input.
        thresholds: of the last frame.
        error: why the frame could not be read, None where nothing is wrong; of the last batch.
    """

    letterbox: Letterbox
    thresholds: Thresholds

    def __init__(self, device: Device, headers: HeaderTemplates, stream: Stream) -> None:
        self._integrated = device.integrated
        self._headers = headers
        self._stream = stream
        self.address = 0
        self.pixels = 0
        self.error: ImageError | None = None
        self._staged: _StagedFrame | None = None
        # Sent last: those of a camera are all alike.
        self._last_sent_header: _DeviceHeader | None = None
        # On the device: header and pixels.
        self._frame_buffer: DeviceBuffer | None = None
        # Page-locked, of frames that lie elsewhere and of headers of JPEGs.
        self._staging_buffer: PinnedBuffer | None = None
        # Of an integrated GPU: the header, and the pixels of JPEGs.
        self._mapped_header: PinnedBuffer | None = None
        self._decoded_buffer: DeviceBuffer | None = None

    def reserve(self, size: int) -> None:
        """Make room for a header and so many bytes behind it; not for an integrated GPU's."""
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

    def stage(self, frame: Frame, thresholds: Thresholds) -> None:
        """Write the header where it is uploaded from, and copy pixels that must be copied.

        Raises:
            ImageError: with the reason ``too_large``: there is no memory for such a frame.
            CudaError: another call failed.
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
        memory, offset = self._pipeline_memory(frame) or self._copy_to_staging(frame)
        # What a message has in front of its pixels is uploaded, too.
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
        self._staged = _StagedFrame(frame, None)

    def _stage_header(
        self, frame: Frame, memory: PinnedBuffer, pixels: int, whole_size: int = 0
    ) -> None:
        """Write the header in front of memory, unless the device has it and it may go alone.

        Args:
            frame: the image.
            memory: of its pixels, or of the header alone.
            pixels: bytes from the header to the pixels, on the device.
            whole_size: bytes of header and pixels; 0: pixels come otherwise.
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
        self._staged = _StagedFrame(frame, header, memory.pointer, size, separate_rows)

    def upload(self) -> None:
        """Send header and pixels in one copy, or the header and the rows that are read.

        An integrated GPU reads them in place. The header may be there: of a frame like the last.
        """
        if self._frame_buffer is None:
            return
        assert self._staged is not None
        frame, header, source, size, rows = self._staged
        assert header is not None
        if size:
            copy_async(header.address, source, size, self._stream)
            self._last_sent_header = header
        if rows is not None:
            start = header.pixels + rows.first * frame.step
            copy_parts_async(
                header.address + start,
                source + start,
                rows.rows * frame.step,
                rows.every * frame.step,
                rows.count,
                self._stream,
            )

    def replace(self, frame: Frame) -> None:
        """Upload pixels of a JPEG that was decoded elsewhere, in place of those to come.

        Raises:
            ImageError: as ``stage``.
        """
        self.stage(frame, self.thresholds)
        self.upload()

    def refuse(self, error: ImageError, thresholds: Thresholds) -> None:
        """Note why there is no frame.

        The kernels run on its place nevertheless, and nobody reads what comes of that. What the
        frame before has left may be freed by now, so that a pixel takes its place.
        """
        self.thresholds = thresholds
        if self._staged is None:
            self._stage_pixels(_PLACEHOLDER_FRAME)
            self.upload()
        # Whoever keeps the error keeps no image, which its traceback and its cause would hold.
        error.__cause__ = error.__context__ = None
        self.error = error.with_traceback(None)

    def release(self) -> Frame | None:
        """Let go of the frame, and return it; what was queued of it must be done."""
        staged, self._staged = self._staged, None
        return None if staged is None else staged.frame

    @property
    def has_frame(self) -> bool:
        """Whether a frame is kept."""
        return self._staged is not None

    def close(self) -> None:
        """Free everything."""
        with ExitStack() as own:
            for each in (
                self._frame_buffer,
                self._staging_buffer,
                self._mapped_header,
                self._decoded_buffer,
            ):
                if each is not None:
                    own.callback(each.close)

    def _pipeline_memory(self, frame: Frame) -> tuple[PinnedBuffer, int] | None:
        """Return the memory and how far behind its start the pixels are; None: not from there."""
        memory = frame.memory
        if not isinstance(memory, FrameMemory):
            return None
        buffer = memory.buffer
        offset = frame.data.__array_interface__['data'][0] - buffer.pointer
        fits = self._headers.size <= offset <= buffer.size - frame.data.size
        return (buffer, offset) if fits else None

    def _copy_to_staging(self, frame: Frame) -> tuple[PinnedBuffer, int]:
        """Copy the pixels behind room for the header; return as ``_pipeline_memory``."""
        offset = self._headers.size
        size = offset + frame.data.size
        staging = self._staging_memory(size)
        np.copyto(staging.array[offset:size], frame.data)
        return staging, offset

    def _staging_memory(self, size: int) -> PinnedBuffer:
        """Return page-locked memory of the place, at least so large."""
        if self._staging_buffer is None or self._staging_buffer.size < size:
            # A header that was begun to be uploaded from there may not be.
            self._stream.synchronize()
            larger = PinnedBuffer(size)
            if self._staging_buffer is not None:
                self._staging_buffer.close()
            self._staging_buffer = larger
        return self._staging_buffer
