"""The whole frame on the GPU: one upload and one CUDA graph launch; only final boxes come back.

The way of a frame through a slot:

    enqueue   header and pixels → pinned memory → one exact-size upload → graph launch
    graph     letterbox kernel → TensorRT → filter, select, overlaps, keep → result in pinned
              memory
    collect   wait for the event behind the graph, read the rows

That is for dense outputs. All others are small: there the graph ends with the outputs in pinned
memory, and collect decodes them on the host.

Each slot has its own stream, buffers, context and graph, so the upload of one frame runs beside
the engine of another. Everything is allocated when the pipeline is made; a frame larger than any
before grows its slot once.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.errors import CudaError
from trt_perception.errors import EngineError
from trt_perception.errors import TrtPerceptionError
from trt_perception.frame import Frame
from trt_perception.gpu import Device
from trt_perception.gpu import DeviceBuffer
from trt_perception.gpu import Event
from trt_perception.gpu import Graph
from trt_perception.gpu import PinnedBuffer
from trt_perception.gpu import Stream
from trt_perception.gpu import copy_async
from trt_perception.input_layout import constant_inputs
from trt_perception.interruption import check_interruption
from trt_perception.letterbox import Letterbox
from trt_perception.model_file import ModelFile
from trt_perception.model_spec import ModelSpec
from trt_perception.model_spec import resolve_model_spec
from trt_perception.pipelines.cuda_results import HostDecoded
from trt_perception.pipelines.cuda_results import KernelDecoded
from trt_perception.pipelines.cuda_results import SlotResult
from trt_perception.pipelines.cuda_results import tensor_bytes
from trt_perception.pipelines.pipeline import Result
from trt_perception.stages.gpu_kernels import MAX_CANDIDATES
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtContext
from trt_perception.stages.tensorrt_runtime import TensorRtEngine

__all__ = ['CudaPipeline']

_LOG: Final = logging.getLogger(__name__)
# Room for a 1080p bgr8 frame from the start; a slot grows to what a camera really sends.
_FIRST_FRAME_BYTES: Final = 8 * 1024 * 1024
# 6.2 MB took 376 µs with one thread, 232 with two, 196 to 201 with three or four and more
# with six; its 99th percentile was least with four (264 µs, 439 with three; 16 cores).
_COPY_THREADS: Final = 4
_COPY_CHUNK_BYTES: Final = 1024 * 1024

_Pixels = npt.NDArray[np.uint8]


class CudaPipeline:
    """A Pipeline on one GPU.

    Args:
        model: a TensorRT plan.
        config: the node's parameters.
        max_candidates: most boxes that enter NMS. Beyond the 1024 that the kernels have room for,
            outputs come back whole and are decoded on the host: slower, for evaluation.

    Attributes:
        depth: frames in flight.
        spec: the model's tensors, preprocessing, decoder and class names.

    Raises:
        CudaError: no driver, no such device, no NVRTC, or not enough memory.
        EngineError: the plan is for another GPU or version, or it is not known how to use it.
        InterruptionError: the process was asked to end.
    """

    def __init__(
        self, model: ModelFile, config: DetectorConfig, *, max_candidates: int = MAX_CANDIDATES
    ) -> None:
        self.depth = config.pipeline_depth
        self._closing = ExitStack()
        with ExitStack() as undo:
            # Whatever fails below, what was made before it is freed.
            undo.enter_context(self._closing)
            self._device = Device(config.device_id)
            check_interruption()
            engine = TensorRtEngine(model, self._device)
            self._closing.callback(engine.close)
            spec = resolve_model_spec(
                model.path.name,
                model.manifest,
                engine.inputs,
                engine.outputs,
                config,
                metadata=model.metadata,
                model_config=model.config,
            )
            streams = [self._closing.enter_context(Stream()) for _ in range(self.depth)]
            contexts = []
            for stream in streams:
                check_interruption()
                contexts.append(engine.create_context(spec.input, stream, spec.beside))
                self._closing.callback(contexts[-1].close)
            # A dynamic engine's outputs have their final shapes only now.
            self.spec = replace(spec, outputs=contexts[0].outputs)
            self.spec.check_outputs(self.spec.outputs)
            _check_image(model.path.name, self.spec)
            check_interruption()
            kernels = FrameKernels(
                self._device,
                self.spec,
                max_detections=config.max_detections,
                class_agnostic=config.class_agnostic_nms,
            )
            self._closing.callback(kernels.close)
            self._copier = _Copier()
            self._closing.callback(self._copier.close)
            self._slots = []
            use_graph = config.use_cuda_graph
            for stream, context in zip(streams, contexts, strict=True):
                check_interruption()
                slot = _Slot(
                    self._device, self.spec, kernels, context, stream, config, max_candidates
                )
                self._closing.callback(slot.close)
                self._slots.append(slot)
                # Where one slot has no graph the others would fail alike, and say so again.
                use_graph = slot.prepare(use_graph)
            engine.save_runtime_cache()
            undo.pop_all()

    def enqueue(self, slot: int, frame: Frame, thresholds: Thresholds) -> None:
        """Copy the frame to the device and start the work on it."""
        self._device.use()
        self._slots[slot].enqueue(frame, thresholds, self._copier)

    def done(self, slot: int) -> bool:
        """Tell without waiting whether the slot's boxes are there."""
        self._device.use()
        return self._slots[slot].finished.done()

    def collect(self, slot: int) -> Result:
        """Wait for the slot's boxes."""
        self._device.use()
        return self._slots[slot].collect()

    def close(self) -> None:
        """Free everything on the device."""
        self._closing.close()


class _Slot:
    """Everything that one frame in flight needs."""

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
        self._device = device
        self._spec = spec
        self._kernels = kernels
        self._context = context
        self._stream = stream
        self._graph: Graph | None = None
        self._use_graph = True
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            # A core that spins while a Jetson's engine runs is one that nobody else has there.
            self._started: Event = own(Event())
            self.finished: Event = own(Event(blocking=device.integrated))
            tensors = (spec.input, *spec.beside, *spec.outputs)
            buffers = {each.name: own(DeviceBuffer(tensor_bytes(each))) for each in tensors}
            addresses = {name: buffer.pointer for name, buffer in buffers.items()}
            context.bind(addresses)
            self._input = addresses[spec.input.name]
            self._outputs = {tensor.name: addresses[tensor.name] for tensor in spec.outputs}
            constants = constant_inputs(spec.beside, spec.preprocessing.input_size)
            for name, values in constants.items():
                _upload_once(values, addresses[name], stream)
            self._result: SlotResult = (
                KernelDecoded(kernels, stream)
                if kernels.decodes and max_candidates <= MAX_CANDIDATES
                else HostDecoded(spec, config, max_candidates)
            )
            self._closing.callback(self._result.close)
            self._staging, self._frame = self._frame_buffers(_FIRST_FRAME_BYTES)
            undo.pop_all()

    def prepare(self, use_graph: bool) -> bool:
        """Run a grey image once without a graph, then capture the graph.

        Returns:
            Whether there is a graph.
        """
        self._use_graph = use_graph
        grey = Frame.view(
            bytes([114]) * (64 * 48 * 3), width=64, height=48, step=192, encoding='bgr8'
        )
        self._write_header(grey, Thresholds())
        self._staging.array[self._kernels.header.size :][: grey.data.size] = grey.data
        self._upload(grey.data.size)
        self._queue_work()
        self._stream.synchronize()
        self._capture()
        return self._graph is not None

    def enqueue(self, frame: Frame, thresholds: Thresholds, copier: _Copier) -> None:
        """Copy header and pixels to pinned memory, upload them and launch the graph."""
        header = self._kernels.header
        if header.size + frame.data.size > self._staging.size:
            self._grow(header.size + frame.data.size)
        self._write_header(frame, thresholds)
        copier.copy(self._staging.array[header.size :], frame.data)
        self._upload(frame.data.size)
        self._started.record(self._stream)
        if self._graph is not None:
            self._graph.launch(self._stream)
        else:
            self._queue_work()
        self.finished.record(self._stream)

    def collect(self) -> Result:
        """Wait for the GPU and return the boxes."""
        self.finished.synchronize()
        began = time.perf_counter()
        detections = self._result.collect(*self._taken)
        on_host = time.perf_counter() - began
        return Result(detections, self.finished.seconds_since(self._started) + on_host)

    def close(self) -> None:
        """Free everything; the stream must belong to nobody else's work."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._staging.close()
        if self._frame is not None:
            self._frame.close()
        self._closing.close()

    def _write_header(self, frame: Frame, thresholds: Thresholds) -> None:
        preprocessing = self._spec.preprocessing
        letterbox = Letterbox.fit(
            (frame.width, frame.height), preprocessing.input_size, preprocessing.resize
        )
        self._kernels.header.write(self._staging.array, frame, letterbox, thresholds)
        self._taken = letterbox, thresholds

    def _upload(self, pixel_bytes: int) -> None:
        """Send header and pixels in one copy of exactly their size.

        An integrated GPU reads them in place.
        """
        if self._frame is not None:
            size = self._kernels.header.size + pixel_bytes
            copy_async(self._frame.pointer, self._staging.pointer, size, self._stream)

    def _queue_work(self) -> None:
        """Queue all that the GPU does for a frame; this is what the graph holds."""
        header = self._staging.device_pointer if self._frame is None else self._frame.pointer
        pixels = header + self._kernels.header.size
        self._kernels.letterbox(header, pixels, self._input, self._stream)
        self._context.enqueue(self._stream)
        self._result.queue(header, self._outputs, self._stream)

    def _capture(self) -> None:
        """Capture the graph; where that fails the slot goes on without one, and says so once."""
        if not self._use_graph:
            return
        try:
            if not self._context.capturable(self._stream):
                raise CudaError('TensorRT says that this engine cannot be captured')
            self._graph = Graph(self._stream, self._queue_work)
        except TrtPerceptionError as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            self._use_graph = False
            _LOG.warning('no CUDA graph, each frame is queued call by call: %s', error)

    def _grow(self, size: int) -> None:
        """Make room for a larger frame; the graph holds addresses, so it is captured again."""
        self._stream.synchronize()
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
            return staging, None if self._device.integrated else DeviceBuffer(size)
        except BaseException:
            staging.close()
            raise


class _Copier:
    """Copies pixels with several threads, because one is about as slow as the engine.

    NumPy releases the GIL while it copies. Queues made in C hand the parts over: a thread pool's
    futures cost as much as a tenth of the copy.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[tuple[_Pixels, _Pixels] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f'copy {index}', daemon=True)
            for index in range(1, _COPY_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def copy(self, target: _Pixels, source: _Pixels) -> None:
        """Copy the whole source to the front of the target."""
        parts = min(_COPY_THREADS, max(1, source.size // _COPY_CHUNK_BYTES))
        bounds = [source.size * part // parts for part in range(parts + 1)]
        ranges = [slice(low, high) for low, high in itertools.pairwise(bounds)]
        for part in ranges[1:]:
            self._parts.put((target[part], source[part]))
        np.copyto(target[ranges[0]], source[ranges[0]])
        errors = [self._done.get() for _ in ranges[1:]]
        for error in filter(None, errors):
            raise error

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._parts.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            try:
                np.copyto(*part)
                self._done.put(None)
            except BaseException as error:  # noqa: PERF203  whoever waits must hear of it
                self._done.put(error)


def _upload_once(values: npt.NDArray[Any], address: int, stream: Stream) -> None:
    """Copy an array to the device and wait for it; done once, when a slot is made."""
    with PinnedBuffer(values.nbytes) as pinned:
        pinned.array[: values.nbytes] = values.reshape(-1).view(np.uint8)
        copy_async(address, pinned.pointer, values.nbytes, stream)
        stream.synchronize()


def _check_image(name: str, spec: ModelSpec) -> None:
    """Refuse an input that the letterbox kernel does not write."""
    if spec.preprocessing.layout != 'nchw' or spec.input.dtype == 'uint8':
        raise EngineError(
            f'{name}: on the GPU an image input must be float and (1, 3, height, width) (got '
            f'{spec.input.dtype}{list(spec.input.shape)}); export the detector so (tf2onnx: '
            '--inputs-as-nchw), or run its ONNX file'
        )
