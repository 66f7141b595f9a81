"""Measuring an engine on the GPU: alone, step by step, and used the naive way.

Everything runs on a stream and buffers made here, beside any pipeline. Times on the device come
from CUDA events; short steps are captured many times into one CUDA graph, because one launch from
Python takes longer than they do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import numpy as np

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.frame import Frame
from trt_perception.gpu import Device
from trt_perception.gpu import DeviceBuffer
from trt_perception.gpu import Event
from trt_perception.gpu import Graph
from trt_perception.gpu import PinnedBuffer
from trt_perception.gpu import Stream
from trt_perception.gpu import clear_async
from trt_perception.gpu import copy_async
from trt_perception.letterbox import Letterbox
from trt_perception.manifest import TensorSpec
from trt_perception.model_file import ModelFile
from trt_perception.model_spec import resolve_model_spec
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtEngine
from trt_perception.tools.benchmark_measure import EncodingTime
from trt_perception.tools.benchmark_measure import Spread
from trt_perception.tools.benchmark_measure import StageTime

__all__ = ['FrameSteps', 'measure_encodings', 'measure_steps']

# How often a short step stands in one graph.
_REPEAT: Final = 20
# The GPU raises its clocks only after some work.
_WARM_UP_S: Final = 0.3


class FrameSteps:
    """The GPU's work on one frame, each step callable by itself; each queues and returns.

    Args:
        model: a TensorRT plan.
        config: as for the pipeline.
        frame_bytes: of the largest frame.

    Attributes:
        spec: the model's tensors, preprocessing, decoder and class names.
        runtime: the module that runs the engine.
        device: the GPU.
        stream: all steps are queued on it.
        input: the input tensor on the device.
        output: the output tensor on the device.

    Raises:
        CudaError: no driver, no such device, or not enough memory.
        EngineError: the plan is for another GPU or version, or it is not known how to use it.
    """

    def __init__(self, model: ModelFile, config: DetectorConfig, frame_bytes: int) -> None:
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            self.device = Device(config.device_id)
            engine = TensorRtEngine(model, self.device)
            self._closing.callback(engine.close)
            self.runtime = engine.header.module
            spec = resolve_model_spec(
                model.path.name,
                model.manifest,
                engine.inputs,
                engine.outputs,
                config,
                metadata=model.metadata,
                model_config=model.config,
            )
            self.stream: Stream = own(Stream())
            self._context = engine.create_context(spec.input, self.stream)
            self._closing.callback(self._context.close)
            self.spec = replace(spec, outputs=self._context.outputs)
            self._kernels = FrameKernels(
                self.device,
                self.spec,
                max_detections=config.max_detections,
                class_agnostic=config.class_agnostic_nms,
            )
            self._closing.callback(self._kernels.close)
            self.input: DeviceBuffer = own(DeviceBuffer(_bytes_of(self.spec.input)))
            outputs = [own(DeviceBuffer(_bytes_of(tensor))) for tensor in self.spec.outputs]
            self.output: DeviceBuffer = outputs[0]
            self._scratch = own(DeviceBuffer(self._kernels.scratch_bytes))
            self._result = own(PinnedBuffer(self._kernels.result_bytes))
            size = self._kernels.header.size + frame_bytes
            self._staging: PinnedBuffer = own(PinnedBuffer(size))
            # An integrated GPU reads the frame where it lies.
            self._frame: DeviceBuffer | None = None
            if not self.device.integrated:
                self._frame = own(DeviceBuffer(size))
            self._upload_bytes = 0
            self._context.bind({self.spec.input.name: self.input.pointer})
            for tensor, buffer in zip(self.spec.outputs, outputs, strict=True):
                self._context.bind({tensor.name: buffer.pointer})
            clear_async(self._scratch.pointer, self._scratch.size, self.stream)
            self.stream.synchronize()
            engine.save_runtime_cache()
            undo.pop_all()

    def __enter__(self) -> FrameSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything on the device."""
        self._closing.close()

    def stage(self, frame: Frame, thresholds: Thresholds) -> None:
        """Copy header and pixels to pinned memory."""
        header = self._kernels.header
        preprocessing = self.spec.preprocessing
        letterbox = Letterbox.fit(
            (frame.width, frame.height), preprocessing.input_size, preprocessing.resize
        )
        header.write(self._staging.array, frame, letterbox, thresholds)
        self._staging.array[header.size :][: frame.data.size] = frame.data
        self._upload_bytes = header.size + frame.data.size

    def upload(self) -> None:
        """Copy the staged frame to the device, unless the device shares its memory."""
        if self._frame is not None:
            source = self._staging.pointer
            copy_async(self._frame.pointer, source, self._upload_bytes, self.stream)

    def letterbox(self) -> None:
        """Fill the input tensor from the frame."""
        header = self._header()
        pixels = header + self._kernels.header.size
        self._kernels.letterbox(header, pixels, self.input.pointer, self.stream)

    def infer(self) -> None:
        """Run the engine."""
        self._context.enqueue(self.stream)

    def decode(self) -> None:
        """Filter, NMS and the final boxes, to pinned memory."""
        result = self._result.device_pointer
        self._kernels.decode(
            self._header(), self.output.pointer, self._scratch.pointer, result, self.stream
        )

    def all_after_upload(self) -> None:
        """Queue what the pipeline's graph holds."""
        self.letterbox()
        self.infer()
        self.decode()

    def candidates(self, frame: Frame, thresholds: Thresholds) -> int:
        """Run a frame; return how many boxes were above the threshold before NMS."""
        self.stage(frame, thresholds)
        self.upload()
        self.all_after_upload()
        self.stream.synchronize()
        return int(self._result.array[:8].view(np.int32)[1])

    def capturable(self) -> bool:
        """Tell whether TensorRT lets the engine be captured into a graph."""
        return self._context.capturable(self.stream)

    def _header(self) -> int:
        if self._frame is None:
            return self._staging.device_pointer
        return self._frame.pointer


def measure_steps(
    steps: FrameSteps, frame: Frame, thresholds: Thresholds, *, count: int, warmup: int
) -> dict[str, StageTime]:
    """Time each step on one frame.

    Args:
        steps: nothing queued on its stream.
        frame: all steps see this one.
        thresholds: for the decoding step.
        count: launches of the engine; the others are measured over about as many.
        warmup: launches before that do not count.

    Returns:
        ``engine_graph`` and ``engine_enqueue``: the engine alone, from a CUDA graph and queued
        call by call; ``upload``, ``letterbox``, ``decode``: from CUDA graphs; ``graph``: all but
        the upload in one graph; ``upload_graph``: all. What does not exist here is left out: the
        upload where the GPU shares the host's memory, the engine in a graph where TensorRT does
        not allow it.
    """
    # Fills every buffer, so that each step finds what it works on.
    steps.candidates(frame, thresholds)
    times: dict[str, StageTime] = {}

    def measure(name: str, work: Callable[[], None], repeat: int = 1) -> None:
        times[name] = _replay(steps.stream, work, repeat, count, warmup)

    if steps.capturable():
        measure('engine_graph', steps.infer)
    times['engine_enqueue'] = StageTime(
        _back_to_back(steps.stream, steps.infer, count, warmup) * 1e3,
        _one_by_one(steps.stream, steps.infer, count, warmup),
    )
    if not steps.device.integrated:
        measure('upload', steps.upload, _REPEAT)
    measure('letterbox', steps.letterbox, _REPEAT)
    measure('decode', steps.decode, _REPEAT)
    if steps.capturable():
        measure('graph', steps.all_after_upload)

        def whole() -> None:
            steps.upload()
            steps.all_after_upload()

        measure('upload_graph', whole)
    return times


def measure_encodings(
    steps: FrameSteps,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    *,
    count: int,
    warmup: int,
) -> dict[str, EncodingTime]:
    """Time on frames of several encodings what depends on it, from CUDA graphs.

    Args:
        steps: nothing queued on its stream; made for the largest of the frames.
        frames: one of each encoding.
        thresholds: written into the frames' headers.
        count: how often each step runs, about.
        warmup: launches before that do not count.

    Returns:
        Times by the encoding's name, in the order of the frames.
    """
    times: dict[str, EncodingTime] = {}
    for frame in frames:
        steps.stage(frame, thresholds)
        steps.upload()
        upload = None
        if not steps.device.integrated:
            upload = _replay(steps.stream, steps.upload, _REPEAT, count, warmup).mean_ms
        letterbox = _replay(steps.stream, steps.letterbox, _REPEAT, count, warmup).mean_ms
        times[frame.format.name] = EncodingTime(frame.data.size, upload, letterbox)
    return times


def _replay(
    stream: Stream, work: Callable[[], None], repeat: int, count: int, warmup: int
) -> StageTime:
    """Time work that is captured several times into one graph; alone only if it is there once."""

    def record() -> None:
        for _ in range(repeat):
            work()

    with Graph(stream, record) as graph:
        launch = lambda: graph.launch(stream)  # noqa: E731
        launches = max(10, count // repeat)
        mean = _back_to_back(stream, launch, launches, warmup) / repeat * 1e3
        return StageTime(mean, _one_by_one(stream, launch, count, warmup) if repeat == 1 else None)


def _back_to_back(stream: Stream, launch: Callable[[], None], count: int, warmup: int) -> float:
    """Return seconds for each of many launches, none of which waits for the host."""
    _warm_up(stream, launch, warmup)
    with Event() as started, Event() as ended:
        started.record(stream)
        for _ in range(count):
            launch()
        ended.record(stream)
        ended.synchronize()
        return float(ended.seconds_since(started)) / count


def _one_by_one(stream: Stream, launch: Callable[[], None], count: int, warmup: int) -> Spread:
    """Time launches on an idle device, from before the launch to its end."""
    _warm_up(stream, launch, warmup)
    seconds: list[float] = []
    with Event() as started, Event() as ended:
        for _ in range(count):
            started.record(stream)
            launch()
            ended.record(stream)
            ended.synchronize()
            seconds.append(ended.seconds_since(started))
    return Spread.of_seconds(seconds)


def _warm_up(stream: Stream, launch: Callable[[], None], count: int) -> None:
    end = time.perf_counter() + _WARM_UP_S
    while count > 0 or time.perf_counter() < end:
        for _ in range(16):
            launch()
        stream.synchronize()
        count -= 16


def _bytes_of(tensor: TensorSpec) -> int:
    item = 2 if tensor.dtype == 'bfloat16' else np.dtype(tensor.dtype).itemsize
    return math.prod(tensor.shape) * item
