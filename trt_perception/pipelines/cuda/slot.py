# SPDX-License-Identifier: Apache-2.0
"""One batch in flight on the GPU: its buffers, its stream, its graphs, and its steps."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Final

from trt_perception.errors import (
    CudaError,
    GpuMemoryError,
    ImageError,
    OutputError,
    TrtPerceptionError,
)
from trt_perception.gpu import (
    Device,
    DeviceBuffer,
    Event,
    Graph,
    PinnedBuffer,
    Stream,
    clear_async,
    copy_async,
    fill_async,
    upload_once,
)
from trt_perception.gpu.bindings import Resource
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.frame_place import FramePlace
from trt_perception.pipelines.cuda.header_templates import HeaderTemplates
from trt_perception.pipelines.cuda.maps import MapDecoder
from trt_perception.pipelines.cuda.pinned_images import ImagePool
from trt_perception.pipelines.cuda.results import HostDecoder, KernelDecoder, SlotDecoder
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.stages.frame_header import BATCH_COUNT_BYTES, batch_table
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt.runtime import TensorRtContext

_LOG: Final = logging.getLogger(__name__)
# Initial room of a slot, enough for a 1080p bgr8 frame. The room grows with larger frames.
_INITIAL_FRAME_BYTES: Final = 8 * 1024 * 1024


@dataclass
class SizedContext:
    """The execution context and CUDA graph for one batch size.

    Attributes:
        spec: specification of the model for this size, without open dimensions.
        context: an execution context with this size, used by one slot only.
        graph: all GPU work of a batch; None if the work is queued call by call.
    """

    spec: ModelSpec
    context: TensorRtContext
    graph: Graph | None = None

    @functools.cached_property
    def batch(self) -> int:
        """Number of frames in a batch of this size."""
        return self.spec.batch


class _PlaceTable(Resource):
    """The table in device memory that tells the kernels where the frames of a batch are.

    It holds the number of frames and the header address of each place. Writing allocates no
    memory.

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


class CudaSlot:
    """All resources of one batch in flight.

    A batch runs in the smallest size that holds its frames. In unused places, the kernels do
    nothing and the engine processes old data, whose results are ignored. The kernels read the
    addresses and the number of frames from device memory, so the same graph serves all batches of
    a size.

    `stage`, `upload`, `letterbox`, `infer` and `decode` are the steps of a batch. All steps except
    `stage` queue their work and return. `begin_upload` and `launch` do all steps. Between these
    two calls, other threads may fill the places of undecoded frames, one thread for each place.

    Args:
        device: the GPU of the slot. It must be the current device.
        stream: a stream that only this slot uses.
        sizes: contexts, smallest batch first. They may share memory, because one runs at a time.
        images: the pool of memory for masks and maps; None if results contain the network's
            prototypes or outputs instead.
        map_size: value of the parameter ``map_size``.

    Attributes:
        stream: CUDA stream of all work on this slot.
        places: memory for each frame of a batch, in the order of the batch.
        launched: whether the current batch was launched. It is not if all its frames have errors.
        finished: the event after the work on a launched batch, except for masks and maps.
        input: device address of the input tensor.
        outputs: maps the name of each output tensor to its device address.
        decoder: decodes the outputs.

    Raises:
        CudaError: memory is not sufficient.
        EngineError: TensorRT refused the tensors.
    """

    #: Maps the name of each stage method to the name of its NVTX range.
    stage_ranges: ClassVar[Mapping[str, str]] = {
        'begin_upload': 'upload',
        'launch': 'launch',
    }

    def __init__(
        self,
        device: Device,
        stream: Stream,
        sizes: Sequence[SizedContext],
        kernels: FrameKernels,
        headers: HeaderTemplates,
        images: ImagePool | None,
        map_size: str,
    ) -> None:
        self.device = device
        self.stream = stream
        self._sizes = sizes
        self._size = sizes[0]
        self._kernels = kernels
        largest = sizes[-1].spec
        self.places = [FramePlace(device, headers, stream) for _ in range(largest.batch)]
        self._frame_count = 0
        self.launched = False
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            self._called: Event = own(Event())
            self._started: Event = own(Event())
            # On a Jetson, block the thread instead of spinning, because CPU cores are scarce.
            self.finished: Event = own(Event(blocking=device.integrated))
            tensors = (largest.input, *largest.auxiliary_inputs, *largest.outputs)
            buffers = {each.name: own(DeviceBuffer(each.size_bytes)) for each in tensors}
            addresses = {name: buffer.pointer for name, buffer in buffers.items()}
            for size in sizes:
                size.context.bind(addresses)
            # Clear the input tensor, so that unused places of a batch contain defined data.
            clear_async(addresses[largest.input.name], largest.input.size_bytes, stream)
            self.input = addresses[largest.input.name]
            mask = largest.pixel_mask
            self._pixel_mask = None if mask is None else addresses[mask.name]
            self.outputs = {tensor.name: addresses[tensor.name] for tensor in largest.outputs}
            constants = constant_inputs(
                largest.auxiliary_inputs, largest.preprocessing.input_size, largest.batch
            )
            for name, values in constants.items():
                upload_once(values, addresses[name], stream)
            self.decoder: SlotDecoder
            if kernels.has_decode_kernels:
                self.decoder = KernelDecoder(kernels, largest, stream, images)
            elif kernels.map_layout is not None and images is not None:
                self.decoder = MapDecoder(kernels, largest, stream, images, map_size)
            else:
                self.decoder = HostDecoder(largest, kernels.limits)
            self._closing.callback(self.decoder.close)
            self._table: _PlaceTable = own(_PlaceTable(self.places, stream))
            self.places[0].reserve(_INITIAL_FRAME_BYTES - headers.size)
            undo.pop_all()

    @property
    def spec(self) -> ModelSpec:
        """The specification of the model for the size of the last batch."""
        return self._size.spec

    @property
    def context(self) -> TensorRtContext:
        """The execution context of the last batch."""
        return self._size.context

    def warm_up(self, frame: Frame, use_graph: bool) -> bool:
        """Run a frame once in each size without a graph, then capture the graph of this size.

        Args:
            frame: any decoded frame.
            use_graph: whether to capture graphs.

        Returns:
            Whether each size has a graph.
        """
        for size in self._sizes:
            self.stage([frame], [Thresholds()])
            self._size = size
            self.upload()
            self.run()
            self.stream.synchronize()
            self.places[0].remove_frame()
            use_graph = use_graph and self._capture()
        return use_graph

    def begin_upload(
        self, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> list[FramePlace]:
        """Queue the upload of decoded frames. Return the other places, to read before `launch`."""
        self._set_frame_count(len(frames))
        self._called.record(self.stream)
        undecoded = []
        for place, frame, own in zip(self.places, frames, thresholds, strict=False):
            # This test is faster than `is_decoded` and `read`.
            if isinstance(frame, Frame) and not frame.jpeg:
                try:
                    place.stage(frame, own)
                    place.upload()
                except ImageError as error:
                    place.refuse(error)
            else:
                place.put(frame, own)
                undecoded.append(place)
        self._started.record(self.stream)
        return undecoded

    def launch(self) -> None:
        """Start the GPU work on the batch, unless all of its frames have errors."""
        if all(place.error is not None for place in self.places[: self._frame_count]):
            return
        # Filling a place may have allocated larger memory, so addresses are known only here.
        self._table.write_addresses(self._frame_count)
        self._table.write_count(self._frame_count)
        if self._size.graph is not None:
            self._size.graph.launch(self.stream)
        else:
            self.run()
        self.finished.record(self.stream)
        # Queued after the event, so that boxes do not wait for mask images. The decoder of maps
        # waits for its kernels.
        self._queue_images()
        self.launched = True

    def _queue_images(self) -> None:
        for at, place in enumerate(self.places[: self._frame_count]):
            if place.error is None:
                try:
                    self.decoder.queue_images(self.outputs, at, place.letterbox, place.thresholds)
                except GpuMemoryError as error:
                    width, height = place.letterbox.source_wh
                    subject = f'masks or maps of an image of {width}x{height} pixels'
                    no_room = ImageError('too_large', subject, error.statement, fix=error.fix)
                    place.refuse(no_room)

    def collect(self) -> list[Result | FrameError]:
        """Wait for the GPU. Return the result or the error of each frame. Release all frames."""
        if self.launched:
            self.finished.synchronize()
        else:  # uploads of headers may still read the memory of the frames
            self.stream.synchronize()
        places = self.places[: self._frame_count]
        frames = [place.remove_frame() for place in places]
        if not self.launched:
            return [place.error for place in places if place.error is not None]
        decode_started = time.perf_counter()
        # What is found in a frame that cannot be read is meaningless.
        found = self.decoder.read_results(
            self._size.spec,
            [place.letterbox for place in places],
            [place.thresholds for place in places],
        )
        host_decode_s = time.perf_counter() - decode_started
        compute_s = self.finished.seconds_since(self._started) + host_decode_s
        gpu_s = self.finished.seconds_since(self._called)
        results: list[Result | FrameError] = []
        for place, own, frame in zip(places, found, frames, strict=True):
            if place.error is not None:
                results.append(place.error)
            elif isinstance(own, OutputError):
                results.append(own)
            else:
                assert frame is not None
                results.append(Result(own, compute_s, frame, gpu_s))
        return results

    def candidate_count(self) -> int:
        """Return the number of boxes above the threshold, in the first frame of the last batch."""
        return self.decoder.candidate_count(self.spec, self.places[0].thresholds)

    def stage(self, frames: Sequence[Frame], thresholds: Sequence[Thresholds]) -> None:
        """Prepare the upload of decoded frames: write headers, copy pixels if necessary.

        If a frame is larger than all earlier frames in its place, device memory grows first.
        """
        self._set_frame_count(len(frames))
        for place, frame, own in zip(self.places, frames, thresholds, strict=False):
            place.stage(frame, own)
        self._table.write_addresses(self._frame_count)

    def upload(self) -> None:
        """Queue the upload of each frame's header and pixels, and of the number of frames."""
        self._table.write_count(self._frame_count)
        for place in self.places[: self._frame_count]:
            place.upload()

    def _set_frame_count(self, frames: int) -> None:
        """Begin a batch of `frames` frames."""
        self._frame_count = frames
        self.launched = False
        self._size = next(size for size in self._sizes if size.batch >= frames)

    def letterbox(self) -> None:
        """Queue the kernels that write the input tensor, and the pixel mask if there is one."""
        batch = self._size.batch
        self._kernels.letterbox(self._table.pointer, self.input, batch, self.stream)
        if self._pixel_mask is not None:
            self._kernels.mark_image(self._table.pointer, self._pixel_mask, batch, self.stream)

    def infer(self) -> None:
        """Queue the engine."""
        self._size.context.enqueue(self.stream)

    def decode(self) -> None:
        """Queue the decoding kernels, or a copy of the outputs. Results are in pinned memory."""
        self.decoder.queue(self._table.pointer, self.outputs, self._size.spec, self.stream)

    def run(self) -> None:
        """Queue all GPU work of a batch. The graph captures this method."""
        self.letterbox()
        self.infer()
        self.decode()

    def close(self) -> None:
        """Free all resources. May wait for work on the stream."""
        with self._closing, ExitStack() as own:
            for place in self.places:
                own.callback(place.close)
            for size in self._sizes:
                if size.graph is not None:
                    own.callback(size.graph.close)
            if any(place.frame is not None for place in self.places):
                own.callback(self._remove_frames_after_fault)

    def _remove_frames_after_fault(self) -> None:
        """Remove all frames after a fault. Waits first, because uploads may still read them."""
        try:
            self.stream.synchronize()
        finally:
            for place in self.places:
                place.remove_frame()

    def _capture(self) -> bool:
        """Capture the graph of the current size. Return False and log if this fails."""
        try:
            if not self.context.is_capturable(self.stream):
                raise CudaError('TensorRT', 'this engine cannot be captured in a graph')
            self._size.graph = Graph(self.stream, self.run)
        except TrtPerceptionError as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            _LOG.warning('no CUDA graph; the steps of each batch are queued one by one: %s', error)
            return False
        return True
