"""Measuring an engine on the GPU: alone and step by step.

Everything runs on the stream and the buffers of a pipeline's slot. Times on the device come
from CUDA events; short steps are captured many times into one CUDA graph, because one launch from
Python takes longer than they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from trt_perception.benchmarking.control import MeasurementControl
from trt_perception.benchmarking.measure import EncodingTime, StageTime, TimeStatistics
from trt_perception.gpu import Event, Graph, Stream
from trt_perception.images.frame import Frame
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_results import KernelDecoder
from trt_perception.pipelines.cuda_slot import CudaSlot

__all__ = ['measure_encodings', 'measure_steps', 'run_frame']

# How often a short step stands in one graph.
_STEPS_PER_GRAPH: Final = 20
_MAX_HOST_RUNS: Final = 1000
# Launches between two looks at the clock.
_LAUNCHES_PER_CHECK: Final = 16
# The GPU raises its clocks only after some work.
_WARM_UP_S: Final = 0.3


def measure_steps(
    slot: CudaSlot, frame: Frame, thresholds: Thresholds, control: MeasurementControl
) -> dict[str, StageTime]:
    """Time each step on one frame.

    Args:
        slot: nothing queued on its stream, without a graph of its own.
        frame: all steps see this one.
        thresholds: for the decoding step.
        control: says how often the engine is launched; the others are measured over about as many.

    Returns:
        ``engine_graph`` and ``engine_enqueue``: the engine alone, from a CUDA graph and queued
        call by call; ``upload``, ``letterbox``, ``decode``, ``masks`` of models that have some (or
        ``download`` and ``host_decode``, where the host decodes): from CUDA graphs; ``graph``: all
        but the upload in one graph; ``upload_graph``: all. What does not exist here is left out:
        the upload where the GPU shares the host's memory, the engine in a graph where TensorRT
        does not allow it, and what had not begun when it was stopped; the engine is never.
    """
    # Fills every buffer, so that each step finds what it works on.
    run_frame(slot, frame, thresholds)
    times: dict[str, StageTime] = {}

    def measure(name: str, work: Callable[[], None], repeat: int = 1) -> None:
        if not (times and control.stopped):
            times[name] = _time_graph(slot.stream, work, repeat, control, name)

    capturable = slot.context.is_capturable(slot.stream)
    if capturable:
        measure('engine_graph', slot.infer)
    if not (times and control.stopped):
        times['engine_enqueue'] = StageTime(
            _mean_seconds(slot.stream, slot.infer, control.count, control) * 1e3,
            _time_single_launches(slot.stream, slot.infer, control, 'engine_enqueue'),
        )
    if not slot.device.integrated:
        measure('upload', slot.upload, _STEPS_PER_GRAPH)
    measure('letterbox', slot.letterbox, _STEPS_PER_GRAPH)
    if isinstance(slot.result, KernelDecoder):
        measure('decode', slot.decode, _STEPS_PER_GRAPH)
        _measure_masks(slot, slot.result, measure)
    else:
        measure('download', slot.decode, _STEPS_PER_GRAPH)
        if not control.stopped:
            times['host_decode'] = _time_host_decode(slot, control)
    if capturable:
        measure('graph', slot.run)

        def whole() -> None:
            slot.upload()
            slot.run()

        measure('upload_graph', whole)
    return times


def _measure_masks(
    slot: CudaSlot, result: KernelDecoder, measure: Callable[[str, Callable[[], None], int], None]
) -> None:
    """Time what a frame takes more while somebody looks at its masks."""
    letterbox = slot.places[0].letterbox
    image = result.new_mask_image(letterbox)
    if image is not None:
        draw = partial(result.queue_mask_kernel, image, slot.outputs, 0, letterbox)
        measure('masks', draw, _STEPS_PER_GRAPH)


def run_frame(slot: CudaSlot, frame: Frame, thresholds: Thresholds) -> int:
    """Run a frame step by step; return how many boxes were above the threshold before NMS."""
    slot.stage([frame], [thresholds])
    slot.upload()
    slot.run()
    slot.stream.synchronize()
    return slot.candidate_count()


def measure_encodings(
    slot: CudaSlot,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    control: MeasurementControl,
) -> dict[str, EncodingTime]:
    """Time on frames of several encodings what depends on it, from CUDA graphs.

    Args:
        slot: nothing queued on its stream, without a graph of its own.
        frames: one of each encoding.
        thresholds: written into the frames' headers.
        control: says how often each step runs, about.

    Returns:
        Times by the encoding's name, in the order of the frames; fewer where it was stopped.
    """
    times: dict[str, EncodingTime] = {}
    for frame in frames:
        if control.stopped:
            break
        slot.stage([frame], [thresholds])
        slot.upload()
        upload = None
        if not slot.device.integrated:
            upload = _time_graph(
                slot.stream, slot.upload, _STEPS_PER_GRAPH, control, 'upload'
            ).mean_ms
        letterbox = _time_graph(
            slot.stream, slot.letterbox, _STEPS_PER_GRAPH, control, 'letterbox'
        ).mean_ms
        times[frame.format.name] = EncodingTime(frame.data.size, upload, letterbox)
    return times


def _time_graph(
    stream: Stream, work: Callable[[], None], repeat: int, control: MeasurementControl, name: str
) -> StageTime:
    """Time work that is captured several times into one graph; alone only if it is there once."""

    def record() -> None:
        for _ in range(repeat):
            work()

    with Graph(stream, record) as graph:
        launch = lambda: graph.launch(stream)  # noqa: E731
        launches = max(10, control.count // repeat)
        mean = _mean_seconds(stream, launch, launches, control) / repeat * 1e3
        return StageTime(
            mean, _time_single_launches(stream, launch, control, name) if repeat == 1 else None
        )


def _time_host_decode(slot: CudaSlot, control: MeasurementControl) -> StageTime:
    """Time the decoding of the outputs that the last frame left in pinned memory."""
    seconds: list[float] = []
    control.begin('host_decode', min(control.count, _MAX_HOST_RUNS))
    while control.must_continue(len(seconds)):
        start = time.perf_counter()
        slot.detections()
        seconds.append(time.perf_counter() - start)
    spread = TimeStatistics.of_seconds(seconds)
    return StageTime(spread.mean, spread)


def _mean_seconds(
    stream: Stream, launch: Callable[[], None], most: int, control: MeasurementControl
) -> float:
    """Return seconds for each of many launches, none of which waits for the host."""
    count = control.runs_that_fit(_warm_up(stream, launch, control), most)
    with Event() as started, Event() as ended:
        started.record(stream)
        for _ in range(count):
            launch()
        ended.record(stream)
        ended.synchronize()
        return float(ended.seconds_since(started)) / count


def _time_single_launches(
    stream: Stream, launch: Callable[[], None], control: MeasurementControl, name: str
) -> TimeStatistics:
    """Time launches on an idle device, from before the launch to its end."""
    _warm_up(stream, launch, control)
    seconds: list[float] = []
    control.begin(name)
    with Event() as started, Event() as ended:
        while control.must_continue(len(seconds)):
            started.record(stream)
            launch()
            ended.record(stream)
            ended.synchronize()
            seconds.append(ended.seconds_since(started))
    return TimeStatistics.of_seconds(seconds)


def _warm_up(stream: Stream, launch: Callable[[], None], control: MeasurementControl) -> float:
    """Return seconds of a launch, as the last ones took."""
    end = time.perf_counter() + _WARM_UP_S
    done, seconds = 0, 0.0
    control.begin_warm_up()
    while control.must_continue(done, 0) or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(_LAUNCHES_PER_CHECK):
            launch()
        stream.synchronize()
        done += _LAUNCHES_PER_CHECK
        seconds = (time.perf_counter() - start) / _LAUNCHES_PER_CHECK
    return seconds
