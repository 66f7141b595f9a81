"""The table in device memory that tells the kernels where the frames of a batch are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from trt_perception.gpu import DeviceBuffer, PinnedBuffer, Stream, copy_async, fill_async
from trt_perception.gpu.bindings import Resource
from trt_perception.pipelines.cuda.frame_place import FramePlace
from trt_perception.stages.frame_header import BATCH_COUNT_BYTES, batch_table


class PlaceTable(Resource):
    """The number of frames and the header address of each place. Writing allocates no memory.

    Raises:
        CudaError: memory is not sufficient.
    """

    def __init__(self, places: Sequence[FramePlace], stream: Stream) -> None:
        self._places = places
        self._stream = stream
        # Current content of the table in device memory.
        self._addresses = [0] * len(places)
        self._count = 0
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            self._memory: DeviceBuffer = own(DeviceBuffer(batch_table(self._addresses).size))
            self._pinned: PinnedBuffer = own(PinnedBuffer(self._memory.size))
            undo.pop_all()

    @property
    def pointer(self) -> int:
        """Device address of the table."""
        return self._memory.pointer

    def write_addresses(self, frame_count: int) -> None:
        """Upload the header addresses if they changed. Waits for this upload.

        A place with an error may have no memory, or the memory of a freed frame. It gets the
        header of another place of the batch, because its result is ignored.

        Args:
            frame_count: number of frames in the batch; at least one has no error.
        """
        batch = self._places[:frame_count]
        readable = next(place.address for place in batch if place.error is None)
        addresses = [readable if place.error else place.address for place in batch]
        addresses += [place.address for place in self._places[frame_count:]]
        if addresses != self._addresses:
            self._pinned.array[:] = batch_table(addresses)
            copy_async(self.pointer, self._pinned.pointer, self._pinned.size, self._stream)
            self._stream.synchronize()
            self._addresses, self._count = addresses, len(addresses)

    def write_count(self, frame_count: int) -> None:
        """Queue the upload of the number of frames if it changed."""
        if self._count != frame_count:
            fill_async(self.pointer, frame_count, BATCH_COUNT_BYTES, self._stream)
            self._count = frame_count

    def close(self) -> None:
        """Free the table."""
        self._closing.close()
