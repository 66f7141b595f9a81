# SPDX-License-Identifier: Apache-2.0
"""Measures the engine and the single steps of the pipeline on the GPU.

All steps use the stream and the buffers of one slot of a pipeline. CUDA events measure times on
the device. Short steps are captured several times into one CUDA graph, because a launch from
Python takes longer than the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from trt_perception.gpu import Event, Graph, Stream
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.depth import DEPTH_TOPIC
from trt_perception.model.tasks.semantic import CLASS_MAP_TOPIC
from trt_perception.model.tasks.task import Task
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.host_steps import stage_times
from trt_perception.offline.benchmarking.measure import (
    EncodingTime,
    StageTime,
    TimeStatistics,
    make_map,
)
from trt_perception.pipelines.cuda.maps import MapDecoder
from trt_perception.pipelines.cuda.results import KernelDecoder
from trt_perception.pipelines.cuda.slot import CudaSlot

#: Topics of the maps that benchmarks make for each frame.
MAP_TOPICS: Final = frozenset((CLASS_MAP_TOPIC.name, DEPTH_TOPIC.name))

# Number of times that a graph contains a short step.
_STEPS_PER_GRAPH: Final = 20
_MAX_HOST_RUNS: Final = 1000
# Launches between two reads of the clock during warm-up.
_LAUNCHES_PER_CHECK: Final = 16
# The GPU raises its clock rate only after some work.
_WARM_UP_S: Final = 0.3


def measure_steps(
    slot: CudaSlot, frame: Frame, thresholds: Thresholds, task: Task, control: MeasurementControl
) -> dict[str, StageTime]:
    """Measure the time of each step on one frame.

    The engine is always measured. The result has no other steps that begin after a stop. It has
    no upload if the GPU shares the host's memory, and no graphs with the engine if TensorRT cannot
    capture the engine.

    Args:
        slot: slot without queued work on its stream and without its own graph.
        control: limits the launches of the engine. The other steps run about equally often.

    Returns:
        Times by step. The engine alone: ``engine_graph`` from a CUDA graph and
        ``engine_enqueue`` without a graph. Single steps from CUDA graphs: ``upload``,
        ``letterbox``, ``decode``, and ``masks`` for models with masks. ``maps`` replaces
        ``decode`` for class or depth maps. If the host decodes, ``download`` and
        ``host_decode`` replace ``decode``, and the host makes ``maps``. ``graph`` is the time of
        one graph with all steps except the upload. ``upload_graph`` also includes the upload.
    """
    # Fill all buffers, so that each step has valid inputs.
    run_and_count_candidates(slot, frame, thresholds)
    times: dict[str, StageTime] = {}

    def measure(name: str, work: Callable[[], None], repeat: int = 1) -> None:
        if not (times and control.stopped):
            times[name] = _time_graph(slot.stream, work, repeat, control, name)

    capturable = slot.context.is_capturable(slot.stream)
    if capturable:
        measure('engine_graph', slot.infer)
    if not (times and control.stopped):
        times['engine_enqueue'] = StageTime(
            _mean_launch_seconds(slot.stream, slot.infer, control.count, control) * 1e3,
            _time_single_launches(slot.stream, slot.infer, control, 'engine_enqueue'),
        )
    if not slot.device.integrated:
        measure('upload', slot.upload, _STEPS_PER_GRAPH)
    measure('letterbox', slot.letterbox, _STEPS_PER_GRAPH)
    make_maps = prepare_maps(slot)
    if isinstance(slot.decoder, KernelDecoder):
        measure('decode', slot.decode, _STEPS_PER_GRAPH)
        letterbox = slot.places[0].letterbox
        image = slot.decoder.new_mask_image(letterbox)
        if image is not None:  # this kernel runs only for subscribers
            draw = partial(slot.decoder.queue_mask_kernel, image, slot.outputs, 0, letterbox)
            measure('masks', draw, _STEPS_PER_GRAPH)
    elif make_maps is not None:
        measure('maps', make_maps, _STEPS_PER_GRAPH)
    else:
        measure('download', slot.decode, _STEPS_PER_GRAPH)
        if not control.stopped:
            times |= _time_host_decode(slot, task, control)
    if capturable:
        measure('graph', lambda: queue_batch(slot, make_maps))
        measure('upload_graph', lambda: queue_batch(slot, make_maps, upload=True))
    return times


def queue_batch(
    slot: CudaSlot, make_maps: Callable[[], None] | None, *, upload: bool = False
) -> None:
    """Queue all GPU work of a batch.

    Args:
        slot: a slot with staged frames.
        make_maps: the result of `prepare_maps`.
        upload: whether the upload is part of the work.
    """
    if upload:
        slot.upload()
    slot.run()
    if make_maps is not None:
        make_maps()


def prepare_maps(slot: CudaSlot, batch: int = 1) -> Callable[[], None] | None:
    """Return a function that queues the kernels and copies of maps; None without maps.

    The memory of the maps is reserved, and their tables are uploaded.

    Args:
        slot: a slot with staged frames, whose engine has run once.
    """
    decoder = slot.decoder
    if not isinstance(decoder, MapDecoder):
        return None
    maps = [
        (decoder.new_maps(place.letterbox, MAP_TOPICS), index, place)
        for index, place in enumerate(slot.places[:batch])
    ]

    def make_maps() -> None:
        for made, index, place in maps:
            if not made:
                continue  # the memory for large maps has no room for the whole batch
            geometry, thresholds = place.letterbox, place.thresholds
            addresses = decoder.queue_kernel(made, slot.outputs, index, geometry, thresholds)
            decoder.queue_copies(made, addresses)

    make_maps()  # the first call uploads tables, which a graph cannot capture
    slot.stream.synchronize()
    return make_maps


def run_and_count_candidates(slot: CudaSlot, frame: Frame, thresholds: Thresholds) -> int:
    """Run all steps on a frame. Return the number of boxes above the threshold before NMS."""
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
    """Measure the steps that depend on the encoding, from CUDA graphs.

    Args:
        slot: slot without queued work on its stream and without its own graph.
        frames: one frame of each encoding.
        control: limits the number of runs of each step, approximately.

    Returns:
        A mapping from each encoding to its times, in the order of the frames; incomplete after a
        stop.
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
    """Return the time of one execution of ``work``, from a graph that repeats the work.

    ``alone_ms`` is measured only if ``repeat`` is 1.
    """

    def record() -> None:
        for _ in range(repeat):
            work()

    with Graph(stream, record) as graph:
        launch = lambda: graph.launch(stream)  # noqa: E731
        launches = max(10, control.count // repeat)
        mean = _mean_launch_seconds(stream, launch, launches, control) / repeat * 1e3
        return StageTime(
            mean, _time_single_launches(stream, launch, control, name) if repeat == 1 else None
        )


def _time_host_decode(
    slot: CudaSlot, task: Task, control: MeasurementControl
) -> dict[str, StageTime]:
    """Measure decoding and making of maps on outputs of the last frame in pinned memory."""
    marks: list[tuple[float, ...]] = []
    place = slot.places[0]
    control.begin('host_decode', min(control.count, _MAX_HOST_RUNS))
    while control.must_continue(len(marks)):
        before = time.perf_counter()
        (found,) = slot.decoder.read_results(slot.spec, [place.letterbox], [place.thresholds])
        decoded = time.perf_counter()
        make_map(found)
        marks.append((before, decoded, time.perf_counter()))
    return stage_times(('host_decode',), marks, task)


def _mean_launch_seconds(
    stream: Stream, launch: Callable[[], None], most: int, control: MeasurementControl
) -> float:
    """Return the mean time of launches in seconds, without waits between them."""
    count = control.runs_that_fit(_warm_up_and_time_launch(stream, launch, control), most)
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
    """Return times on an idle device, from before each launch to the end of its work."""
    _warm_up_and_time_launch(stream, launch, control)
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


def _warm_up_and_time_launch(
    stream: Stream, launch: Callable[[], None], control: MeasurementControl
) -> float:
    """Launch work until the clock rate is high. Return the seconds per launch at the end."""
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
