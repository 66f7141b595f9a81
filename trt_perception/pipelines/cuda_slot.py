"""One frame in flight on the GPU: its buffers, its stream, its graph, and the steps of its way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from typing import Final
from typing import TypeAlias

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
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.model_spec import ModelSpec
from trt_perception.pipelines.cuda_results import HostDecoded
from trt_perception.pipelines.cuda_results import KernelDecoded
from trt_perception.pipelines.cuda_results import SlotResult
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.ready import grey_frame
from trt_perception.stages.gpu_kernels import MAX_CANDIDATES
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtContext

__all__ = ['CudaSlot']

_LOG: Final = logging.getLogger(__name__)
# Room for a 1080p bgr8 frame from the start; a slot grows to what a camera really sends.
_FIRST_FRAME_BYTES: Final = 8 * 1024 * 1024

_Pixels = npt.NDArray[np.uint8]
#: Copies all of its second argument to the front of the first.
Copy: TypeAlias = Callable[[_Pixels, _Pixels], None]


def _copy(target: _Pixels, source: _Pixels) -> None:
    target[: source.size] = source


class CudaSlot:
    """Everything that one frame in flight needs.

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
        self._bytes = 0
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
            self._staging, self._frame = self._frame_buffers(_FIRST_FRAME_BYTES)
            undo.pop_all()

    def prepare(self, use_graph: bool) -> bool:
        """Run a grey image once without a graph, then capture the graph.

        Returns:
            Whether there is a graph.
        """
        self._use_graph = use_graph
        self.stage(grey_frame(), Thresholds())
        self.upload()
        self.run()
        self.stream.synchronize()
        self._capture()
        return self._graph is not None

    def enqueue(self, frame: Frame, thresholds: Thresholds, copy: Copy) -> None:
        """Copy header and pixels to pinned memory, upload them and launch the graph."""
        self.stage(frame, thresholds, copy)
        self.upload()
        self._started.record(self.stream)
        if self._graph is not None:
            self._graph.launch(self.stream)
        else:
            self.run()
        self.finished.record(self.stream)

    def collect(self) -> Result:
        """Wait for the GPU and return the boxes."""
        self.finished.synchronize()
        began = time.perf_counter()
        detections = self.result.collect(*self.letterbox_and_thresholds)
        on_host = time.perf_counter() - began
        return Result(detections, self.finished.seconds_since(self._started) + on_host)

    def candidates(self) -> int:
        """Return how many boxes of the frame that was collected last were above the threshold."""
        return self.result.candidates(*self.letterbox_and_thresholds)

    def stage(self, frame: Frame, thresholds: Thresholds, copy: Copy = _copy) -> None:
        """Copy header and pixels to pinned memory; a larger frame than before makes room first."""
        header, preprocessing = self._kernels.header, self._spec.preprocessing
        self._bytes = header.size + frame.data.size
        if self._bytes > self._staging.size:
            self._grow(self._bytes)
        letterbox = Letterbox.fit(
            (frame.width, frame.height), preprocessing.input_size, preprocessing.resize
        )
        header.write(self._staging.array, frame, letterbox, thresholds)
        self.letterbox_and_thresholds = letterbox, thresholds
        copy(self._staging.array[header.size :], frame.data)

    def upload(self) -> None:
        """Send header and pixels in one copy of exactly their size.

        An integrated GPU reads them in place.
        """
        if self._frame is not None:
            copy_async(self._frame.pointer, self._staging.pointer, self._bytes, self.stream)

    def letterbox(self) -> None:
        """Fill the input tensor from the frame."""
        header = self._header()
        self._kernels.letterbox(
            header, header + self._kernels.header.size, self.input, self.stream
        )

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
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._staging.close()
        if self._frame is not None:
            self._frame.close()
        self._closing.close()

    def _header(self) -> int:
        """Return the address on the device of the header, which the pixels follow."""
        return self._staging.device_pointer if self._frame is None else self._frame.pointer

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
        """Make room for a larger frame; the graph holds addresses, so it is captured again."""
        self.stream.synchronize()
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        staging, frame = self._frame_buffers(size)
        self._staging.close()
        if self._frame is not None:
            self._frame.close()
        self._staging, self._frame = staging, frame
        self._capture()

    def _frame_buffers(self, size: int) -> tuple[PinnedBuffer, DeviceBuffer | None]:
        staging = PinnedBuffer(size)
        try:
            return staging, None if self.device.integrated else DeviceBuffer(size)
        except BaseException:
            staging.close()
            raise


def _upload_once(values: npt.NDArray[Any], address: int, stream: Stream) -> None:
    """Copy an array to the device and wait for it; done once, when a slot is made."""
    with PinnedBuffer(values.nbytes) as pinned:
        pinned.array[: values.nbytes] = values.reshape(-1).view(np.uint8)
        copy_async(address, pinned.pointer, values.nbytes, stream)
        stream.synchronize()
