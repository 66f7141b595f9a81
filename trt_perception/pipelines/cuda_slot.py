"""One batch in flight on the GPU: its buffers, its stream, its graphs, the steps of its way."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from trt_perception.errors import CudaError, ImageError, TrtPerceptionError
from trt_perception.gpu import (
    Device,
    DeviceBuffer,
    Event,
    Graph,
    Stream,
    clear_async,
    fill_async,
    upload_once,
)
from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.task import TaskResult
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_results import HostDecoder, KernelDecoder, SlotDecoder
from trt_perception.pipelines.frame_place import FramePlace
from trt_perception.pipelines.header_templates import HeaderTemplates
from trt_perception.pipelines.mask_images import MaskImagePool
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.frame_header import BATCH_COUNT_BYTES, batch_table
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtContext

__all__ = ['CudaSlot', 'SizedContext', 'UndecodedPlace']

_LOG: Final = logging.getLogger(__name__)
# Room for a 1080p bgr8 frame from the start; a slot grows to what a camera really sends.
_FIRST_FRAME_BYTES: Final = 8 * 1024 * 1024


class UndecodedPlace(NamedTuple):
    """A place whose frame is not decoded yet.

    Attributes:
        place: to be filled by ``stage`` and ``upload``, or else by ``refuse``.
        frame: what to fill it with.
        thresholds: of this frame.
    """

    place: FramePlace
    frame: PipelineInput
    thresholds: Thresholds


@dataclass
class SizedContext:
    """What runs batches of one size.

    Attributes:
        spec: the model's for this size, without open dimensions.
        context: nobody else's, with this size set.
        graph: all that the GPU does for a batch; None: queued call by call.
    """

    spec: ModelSpec
    context: TensorRtContext
    graph: Graph | None = None

    @property
    def batch(self) -> int:
        """Frames that the engine takes at once."""
        return self.spec.batch


class CudaSlot:
    """Everything that one batch in flight needs.

    The smallest size that holds the frames runs. Kernels leave out what is missing to it, and the
    engine runs on what lay there before: nobody reads what comes of that. Where frames lie and
    how many there are is read on the device, so that neither needs another graph.

    ``stage``, ``upload``, ``letterbox``, ``infer`` and ``decode`` are the steps of a batch; all
    but the first queue their work and return. ``begin_upload`` and ``launch`` do all: between
    the two, other threads may fill the places that files have, each by one of them.

    Args:
        device: must be the current one.
        stream: nobody else's.
        sizes: smallest first; their contexts may share memory, as one runs at a time.
        kernels: compiled for the model.
        headers: shared with the other slots.
        mask_images: for pictures of masks; None: what masks are made of comes back instead.

    Attributes:
        device: as given.
        stream: as given; all work is queued on it.
        places: of the frames of a batch, in order.
        finished: the event behind the work on a batch.
        input: device address of the input tensor.
        outputs: device addresses of the output tensors, by name.
        result: what follows the engine.

    Raises:
        CudaError: there is not enough memory.
        EngineError: TensorRT does not take the tensors.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        sizes: Sequence[SizedContext],
        kernels: FrameKernels,
        headers: HeaderTemplates,
        mask_images: MaskImagePool | None,
    ) -> None:
        self.device = device
        self.stream = stream
        self._sizes = sizes
        self._size = sizes[0]
        self._kernels = kernels
        largest = sizes[-1].spec
        self.places = [FramePlace(device, headers, stream) for _ in range(largest.batch)]
        # What the table on the device says: places of headers, and how many frames there are.
        self._table_addresses = [0] * largest.batch
        self._table_count = 0
        self._frame_count = 0
        self._launched = False
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            # A core that spins while a Jetson's engine runs is one that nobody else has there.
            self._started: Event = own(Event())
            self.finished: Event = own(Event(blocking=device.integrated))
            tensors = (largest.input, *largest.auxiliary_inputs, *largest.outputs)
            buffers = {each.name: own(DeviceBuffer(each.size_bytes)) for each in tensors}
            addresses = {name: buffer.pointer for name, buffer in buffers.items()}
            for size in sizes:
                size.context.bind(addresses)
            # What a batch lacks is at least the same each time.
            clear_async(addresses[largest.input.name], largest.input.size_bytes, stream)
            self.input = addresses[largest.input.name]
            self.outputs = {tensor.name: addresses[tensor.name] for tensor in largest.outputs}
            constants = constant_inputs(
                largest.auxiliary_inputs, largest.preprocessing.input_size, largest.batch
            )
            for name, values in constants.items():
                upload_once(values, addresses[name], stream)
            self.result: SlotDecoder = (
                KernelDecoder(kernels, largest, stream, mask_images)
                if kernels.has_decode_kernels
                else HostDecoder(largest, kernels.limits)
            )
            self._closing.callback(self.result.close)
            self._table: DeviceBuffer = own(DeviceBuffer(batch_table(self._table_addresses).size))
            self.places[0].reserve(_FIRST_FRAME_BYTES - headers.size)
            undo.pop_all()

    @property
    def context(self) -> TensorRtContext:
        """The context of the last batch's size."""
        return self._size.context

    def prepare(self, frame: Frame, use_graph: bool) -> bool:
        """Run a frame once in each size without a graph, then capture the graphs.

        Returns:
            Whether there is one for each.
        """
        for size in self._sizes:
            self.stage([frame], [Thresholds()])
            self._size = size
            self.upload()
            self.run()
            self.stream.synchronize()
            self.places[0].release()
            use_graph = use_graph and self._capture()
        return use_graph

    def begin_upload(
        self, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
    ) -> list[UndecodedPlace]:
        """Queue the upload of pixels; return the places to be filled before ``launch``."""
        self._set_frame_count(len(frames))
        undecoded = []
        for place, frame, own in zip(self.places, frames, thresholds, strict=False):
            # Cheaper than is_decoded and read, for each frame.
            if isinstance(frame, Frame) and not frame.jpeg:
                try:
                    place.stage(frame, own)
                    place.upload()
                except ImageError as error:
                    place.refuse(error, own)
            else:
                undecoded.append(UndecodedPlace(place, frame, own))
        self._started.record(self.stream)
        return undecoded

    def launch(self) -> None:
        """Start the work on the frames, unless none is left of them."""
        if all(place.error is not None for place in self.places[: self._frame_count]):
            return
        # Only now is it known where each frame lies.
        self._write_addresses()
        self._write_count()
        if self._size.graph is not None:
            self._size.graph.launch(self.stream)
        else:
            self.run()
        self.finished.record(self.stream)
        self._launched = True
        # Behind that, so that the boxes do not wait for it.
        for at, place in enumerate(self.places[: self._frame_count]):
            if place.error is None and place.thresholds.wants_masks:
                self.result.queue_mask_image(self.outputs, at, place.letterbox)

    def is_done(self) -> bool:
        """Tell without waiting whether ``collect`` has nothing left to wait for."""
        return not self._launched or self.finished.is_done()

    def collect(self) -> list[Result | ImageError]:
        """Wait for the GPU; return the boxes of each frame, or why it has none."""
        places = self.places[: self._frame_count]
        if not self._launched:
            # Headers may still be on their way.
            self.stream.synchronize()
            self._release()
            return [place.error for place in places if place.error is not None]
        self.finished.synchronize()
        frames = self._release()
        decode_started = time.perf_counter()
        found = self.detections()
        host_decode_s = time.perf_counter() - decode_started
        compute_s = self.finished.seconds_since(self._started) + host_decode_s
        results: list[Result | ImageError] = []
        for place, own, frame in zip(places, found, frames, strict=True):
            if place.error is None:
                assert frame is not None
                results.append(Result(own, compute_s, frame))
            else:
                results.append(place.error)
        return results

    def detections(self) -> list[TaskResult]:
        """Return what the last batch's work left; of a frame with an error, of what lay there."""
        places = self.places[: self._frame_count]
        letterboxes = [place.letterbox for place in places]
        return self.result.collect(
            self._size.spec, letterboxes, [place.thresholds for place in places]
        )

    def candidate_count(self) -> int:
        """Return how many boxes of the last batch's first frame were above the threshold."""
        return self.result.candidate_count(self._size.spec, self.places[0].thresholds)

    def stage(self, frames: Sequence[Frame], thresholds: Sequence[Thresholds]) -> None:
        """Write headers where they are uploaded from; frames that are there are not copied.

        One larger than all before at its place makes room on the device first.
        """
        self._set_frame_count(len(frames))
        for place, frame, own in zip(self.places, frames, thresholds, strict=False):
            place.stage(frame, own)
        self._write_addresses()

    def upload(self) -> None:
        """Send each frame's header and pixels, and how many frames there are."""
        self._write_count()
        for place in self.places[: self._frame_count]:
            place.upload()

    def _set_frame_count(self, frames: int) -> None:
        """Take so many frames from now on."""
        self._frame_count = frames
        self._launched = False
        self._size = next(size for size in self._sizes if size.batch >= frames)

    def _write_addresses(self) -> None:
        """Tell the kernels where headers are, where that has changed; waits then."""
        addresses = [place.address for place in self.places]
        if addresses != self._table_addresses:
            upload_once(batch_table(addresses), self._table.pointer, self.stream)
            self._table_addresses, self._table_count = addresses, len(addresses)

    def _write_count(self) -> None:
        """Tell the kernels how many frames there are, where that has changed."""
        if self._table_count != self._frame_count:
            fill_async(self._table.pointer, self._frame_count, BATCH_COUNT_BYTES, self.stream)
            self._table_count = self._frame_count

    def letterbox(self) -> None:
        """Fill the input tensor from the frames."""
        self._kernels.letterbox(self._table.pointer, self.input, self._size.batch, self.stream)

    def infer(self) -> None:
        """Run the engine."""
        self._size.context.enqueue(self.stream)

    def decode(self) -> None:
        """Filter, NMS and the final boxes, or the outputs as they are, to pinned memory."""
        self.result.queue(self._table.pointer, self.outputs, self._size.spec, self.stream)

    def run(self) -> None:
        """Queue all that the GPU does for a batch; this is what the graph holds."""
        self.letterbox()
        self.infer()
        self.decode()

    def close(self) -> None:
        """Free everything; the stream must belong to nobody else's work."""
        with self._closing, ExitStack() as own:
            for place in self.places:
                own.callback(place.close)
            for size in self._sizes:
                if size.graph is not None:
                    own.callback(size.graph.close)
            if any(place.has_frame for place in self.places):
                own.callback(self._release_after_fault)

    def _release_after_fault(self) -> None:
        """Let go of frames that a fault left here, maybe with their upload under way."""
        try:
            self.stream.synchronize()
        finally:
            self._release()

    def _release(self) -> list[Frame | None]:
        """Let go of all frames, and return them."""
        return [place.release() for place in self.places[: self._frame_count]]

    def _capture(self) -> bool:
        """Capture the graph of a size; where that fails the slot does without, and says so."""
        try:
            if not self.context.is_capturable(self.stream):
                raise CudaError('TensorRT', 'reports that this engine cannot be captured')
            self._size.graph = Graph(self.stream, self.run)
        except TrtPerceptionError as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            _LOG.warning('no CUDA graph, each frame is queued call by call: %s', error)
            return False
        return True
