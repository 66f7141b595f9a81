"""One frame in flight on the GPU: its buffers, its stream, its graph, and the steps of its way."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.errors import CudaError
from trt_perception.errors import TrtPerceptionError
from trt_perception.gpu import Device
from trt_perception.gpu import DeviceBuffer
from trt_perception.gpu import Event
from trt_perception.gpu import Graph
from trt_perception.gpu import PinnedBuffer
from trt_perception.gpu import Stream
from trt_perception.gpu import copy_async
from trt_perception.gpu.nvjpeg import JpegDecoder
from trt_perception.images.frame import Frame
from trt_perception.images.jpeg import AnyFrame
from trt_perception.images.jpeg import JpegFrame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.model_spec import ModelSpec
from trt_perception.pipelines.cuda_results import HostDecoded
from trt_perception.pipelines.cuda_results import KernelDecoded
from trt_perception.pipelines.cuda_results import SlotResult
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.gpu_kernels import MAX_CANDIDATES
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtContext

__all__ = ['CudaSlot']

_LOG: Final = logging.getLogger(__name__)
# Room for a 1080p bgr8 frame from the start; a slot grows to what a camera really sends.
_FIRST_FRAME_BYTES: Final = 8 * 1024 * 1024


class CudaSlot:
    """Everything that one frame in flight needs.

    A frame whose memory is page-locked, with room for the header in front of the pixels, is
    uploaded from where it lies; any other is copied first. Kernels read the pixels where they come
    to lie. A frame is kept until its upload is done, so that nobody writes its memory meanwhile.
    A JPEG is decoded to where its pixels would be uploaded.

    ``stage``, ``upload``, ``letterbox``, ``infer`` and ``decode`` are the steps of a frame; all
    but the first queue their work and return; ``enqueue`` does all of them.

    Args:
        device: must be the current one.
        spec: the model's, without open dimensions.
        kernels: compiled for the model.
        context: nobody else's.
        stream: likewise.
        config: the node's parameters.
        max_candidates: most boxes that enter NMS.

    Attributes:
        device: as given.
        context: as given.
        stream: as given; all work is queued on it.
        finished: the event behind the work on a frame.
        input: device address of the input tensor.
        outputs: device addresses of the output tensors, by name.
        result: what follows the engine.
        letterbox_and_thresholds: where the last frame lies in the input, and its thresholds.

    Raises:
        CudaError: there is not enough memory.
        EngineError: TensorRT does not take the tensors.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        kernels: FrameKernels,
        context: TensorRtContext,
        stream: Stream,
        config: DetectorConfig,
        max_candidates: int,
    ) -> None:
        self.device = device
        self._spec = spec
        self._kernels = kernels
        self.context = context
        self.stream = stream
        self._graph: Graph | None = None
        self._use_graph = False
        # What the header says, with what it says it of, and the frame with the address and size
        # of what is uploaded of its memory.
        self._content: tuple[tuple[Any, ...], npt.NDArray[np.uint8]] | None = None
        self._staged: tuple[AnyFrame, int, int] | None = None
        # Of frames that lie elsewhere, from the first such on.
        self._staging: PinnedBuffer | None = None
        # Of JPEGs on an integrated GPU, likewise.
        self._decoded: DeviceBuffer | None = None
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            # A core that spins while a Jetson's engine runs is one that nobody else has there.
            self._started: Event = own(Event())
            self.finished: Event = own(Event(blocking=device.integrated))
            tensors = (spec.input, *spec.auxiliary_inputs, *spec.outputs)
            buffers = {each.name: own(DeviceBuffer(each.size_bytes)) for each in tensors}
            addresses = {name: buffer.pointer for name, buffer in buffers.items()}
            context.bind(addresses)
            self.input = addresses[spec.input.name]
            self.outputs = {tensor.name: addresses[tensor.name] for tensor in spec.outputs}
            constants = constant_inputs(spec.auxiliary_inputs, spec.preprocessing.input_size)
            for name, values in constants.items():
                _upload_once(values, addresses[name], stream)
            self.result: SlotResult = (
                KernelDecoded(kernels, stream)
                if kernels.decodes and max_candidates <= MAX_CANDIDATES
                else HostDecoded(spec, config, max_candidates)
            )
            self._closing.callback(self.result.close)
            # An integrated GPU reads frames where they lie, and their headers in memory of their
            # own, whose place the graph knows.
            self._mapped_header: PinnedBuffer | None = None
            self._frame: DeviceBuffer | None = None
            if device.integrated:
                self._mapped_header = own(PinnedBuffer(kernels.header.size))
            else:
                self._frame = DeviceBuffer(_FIRST_FRAME_BYTES)
            undo.pop_all()

    def prepare(self, frame: Frame, use_graph: bool) -> bool:
        """Run a frame once without a graph, then capture the graph.

        Returns:
            Whether there is a graph.
        """
        self._use_graph = use_graph
        self.stage(frame, Thresholds())
        self.upload()
        self.run()
        self.stream.synchronize()
        self._staged = None
        self._capture()
        return self._graph is not None

    def enqueue(self, frame: Frame, thresholds: Thresholds) -> None:
        """Write the header, upload it with the pixels and launch the graph."""
        self.stage(frame, thresholds)
        self.upload()
        self._started.record(self.stream)
        self._launch()

    def enqueue_jpeg(self, frame: JpegFrame, thresholds: Thresholds, decoder: JpegDecoder) -> str:
        """Upload the header, decode the pixels behind it and launch the graph.

        Blocks for as long as nvJPEG does, about a millisecond.

        Args:
            frame: the file.
            thresholds: of this frame.
            decoder: nobody else's until the frame is collected.

        Returns:
            Empty, or why nvJPEG does not decode it: nothing is launched then.
        """
        place = self._stage_jpeg(frame, thresholds)
        self.upload()
        # On some GPUs nvJPEG writes before earlier work on the stream has ended.
        self.stream.synchronize()
        self._started.record(self.stream)
        size_wh = frame.width, frame.height
        reason = decoder.decode(frame.data, size_wh, place, frame.step, self.stream)
        if reason:
            # What it had begun ends, and a file that is bad is told from a GPU that is lost.
            self.stream.raise_if_lost()
        else:
            self._launch()
        return reason

    def _launch(self) -> None:
        if self._graph is not None:
            self._graph.launch(self.stream)
        else:
            self.run()
        self.finished.record(self.stream)

    def collect(self) -> Result:
        """Wait for the GPU and return the boxes."""
        self.finished.synchronize()
        self._staged = None
        began = time.perf_counter()
        detections = self.result.collect(*self.letterbox_and_thresholds)
        on_host = time.perf_counter() - began
        return Result(detections, self.finished.seconds_since(self._started) + on_host)

    def candidates(self) -> int:
        """Return how many boxes of the frame that was collected last were above the threshold."""
        return self.result.candidates(*self.letterbox_and_thresholds)

    def stage(self, frame: Frame, thresholds: Thresholds) -> None:
        """Write the header where it is uploaded from; a frame that is there already is not copied.

        A larger one than before makes room on the device first.
        """
        memory, offset = self._in_place(frame) or self._copied(frame)
        size = offset + frame.data.size
        if self._frame is not None and size > self._frame.size:
            self._grow(size)
        self._staged = frame, memory.pointer, size
        target, pixels = memory, offset
        if self._mapped_header is not None:
            target = self._mapped_header
            pixels += memory.device_pointer - target.device_pointer
        self._kernels.header.write(target.array, self._header_content(frame, thresholds), pixels)

    def _stage_jpeg(self, frame: JpegFrame, thresholds: Thresholds) -> int:
        """Write the header where it is uploaded from; return the device address of the pixels."""
        front, pixels = self._kernels.header.size, frame.height * frame.step
        if self._mapped_header is not None:
            if self._decoded is None or self._decoded.size < pixels:
                larger = DeviceBuffer(pixels)
                if self._decoded is not None:
                    self._decoded.close()
                self._decoded = larger
            target, place = self._mapped_header, self._decoded.pointer
            offset = place - target.device_pointer
        else:
            assert self._frame is not None
            if front + pixels > self._frame.size:
                self._grow(front + pixels)
            target, place = self._staging_of(front), self._frame.pointer + front
            offset = front
        self._staged = frame, target.pointer, front
        self._kernels.header.write(target.array, self._header_content(frame, thresholds), offset)
        return place

    def upload(self) -> None:
        """Send header and pixels in one copy, from the start of their memory to the last pixel.

        An integrated GPU reads them in place.
        """
        if self._frame is not None:
            assert self._staged is not None
            _, source, size = self._staged
            copy_async(self._frame.pointer, source, size, self.stream)

    def letterbox(self) -> None:
        """Fill the input tensor from the frame."""
        self._kernels.letterbox(self._header(), self.input, self.stream)

    def infer(self) -> None:
        """Run the engine."""
        self.context.enqueue(self.stream)

    def decode(self) -> None:
        """Filter, NMS and the final boxes, or the outputs as they are, to pinned memory."""
        self.result.queue(self._header(), self.outputs, self.stream)

    def run(self) -> None:
        """Queue all that the GPU does for a frame; this is what the graph holds."""
        self.letterbox()
        self.infer()
        self.decode()

    def close(self) -> None:
        """Free everything; the stream must belong to nobody else's work."""
        with self._closing, ExitStack() as own:
            for each in (self._frame, self._staging, self._decoded, self._graph):
                if each is not None:
                    own.callback(each.close)
            if self._staged is not None:
                own.callback(self._give_up)

    def _give_up(self) -> None:
        """Let go of a frame that a fault left here, maybe with its upload under way."""
        try:
            self.stream.synchronize()
        finally:
            self._staged = None

    def _header(self) -> int:
        """Return the address on the device of the header."""
        if self._mapped_header is not None:
            return self._mapped_header.device_pointer
        assert self._frame is not None
        return self._frame.pointer

    def _in_place(self, frame: Frame) -> tuple[PinnedBuffer, int] | None:
        """Return the memory and how far behind its start the pixels are; None: not from there."""
        memory = frame.memory
        if not isinstance(memory, PinnedBuffer):
            return None
        offset = frame.data.__array_interface__['data'][0] - memory.pointer
        room = self._kernels.header.size <= offset <= memory.size - frame.data.size
        return (memory, offset) if room else None

    def _copied(self, frame: Frame) -> tuple[PinnedBuffer, int]:
        """Copy the pixels behind room for the header; return as ``_in_place``."""
        offset = self._kernels.header.size
        size = offset + frame.data.size
        staging = self._staging_of(size)
        np.copyto(staging.array[offset:size], frame.data)
        return staging, offset

    def _staging_of(self, size: int) -> PinnedBuffer:
        """Return the slot's own page-locked memory, at least so large."""
        if self._staging is None or self._staging.size < size:
            larger = PinnedBuffer(size)
            if self._staging is not None:
                self._staging.close()
            self._staging = larger
        return self._staging

    def _header_content(self, frame: AnyFrame, thresholds: Thresholds) -> npt.NDArray[np.uint8]:
        """Return the frame's header; one camera's are all alike."""
        step, form = frame.step, frame.format
        looks = frame.width, frame.height, step, form, frame.big_endian, thresholds
        if self._content is None or self._content[0] != looks:
            preprocessing = self._spec.preprocessing
            letterbox = Letterbox.fit(
                (frame.width, frame.height), preprocessing.input_size, preprocessing.resize
            )
            self.letterbox_and_thresholds = letterbox, thresholds
            self._content = looks, self._kernels.header.content(frame, letterbox, thresholds)
        return self._content[1]

    def _capture(self) -> None:
        """Capture the graph; where that fails the slot goes on without one, and says so once."""
        if not self._use_graph:
            return
        try:
            if not self.context.capturable(self.stream):
                raise CudaError('TensorRT', 'reports that this engine cannot be captured')
            self._graph = Graph(self.stream, self.run)
        except TrtPerceptionError as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            self._use_graph = False
            _LOG.warning('no CUDA graph, each frame is queued call by call: %s', error)

    def _grow(self, size: int) -> None:
        """Make room for a larger frame; the graph holds its address, so it is captured again."""
        assert self._frame is not None
        self.stream.synchronize()
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        larger = DeviceBuffer(size)
        self._frame.close()
        self._frame = larger
        self._capture()


def _upload_once(values: npt.NDArray[Any], address: int, stream: Stream) -> None:
    """Copy an array to the device and wait for it; done once, when a slot is made."""
    with PinnedBuffer(values.nbytes) as pinned:
        pinned.array[: values.nbytes] = values.reshape(-1).view(np.uint8)
        copy_async(address, pinned.pointer, values.nbytes, stream)
        stream.synchronize()
