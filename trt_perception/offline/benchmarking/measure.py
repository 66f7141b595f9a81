# SPDX-License-Identifier: Apache-2.0
"""Measures latency, throughput, host time and repeatability of any pipeline.

The measurement uses the pipeline as the detector does. It enqueues a batch as soon as a slot is
free, and otherwise collects the oldest batch. Nothing else waits or synchronises.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.pipelines.pipeline import Pipeline, collect_all

#: Largest memory in bytes of the results that each run keeps: 16 depth maps of 1080p.
_MAX_KEPT_BYTES: Final = 128 * 2**20
# Upper bound of the memory in bytes of a result, without its arrays.
_RESULT_BYTES: Final = 1024


# Batches whose times are kept for a time line.
_MAX_LAST_BATCHES: Final = 12


@dataclass(frozen=True)
class TimeStatistics:
    """Distribution of a time, in milliseconds.

    Attributes:
        p999: 99.9th percentile.
    """

    mean: float
    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    count: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> TimeStatistics:
        """Return the statistics, in milliseconds, of one or more times in seconds."""
        values = np.array(seconds) * 1e3
        p50, p95, p99, p999, most = map(float, np.percentile(values, (50, 95, 99, 99.9, 100)))
        return cls(float(values.mean()), p50, p95, p99, p999, most, len(values))


@dataclass(frozen=True)
class BatchTimes:
    """When a batch was enqueued and collected, in milliseconds since the first batch shown.

    Attributes:
        slot: the slot of the pipeline, from 0 on.
        enqueue_start: the calling thread begins to enqueue the batch.
        collect_start: the calling thread begins to wait for the results.
        collect_end: the results and maps are complete.
    """

    slot: int
    enqueue_start: float
    enqueue_end: float
    collect_start: float
    collect_end: float


@dataclass(frozen=True)
class StageTime:
    """Time of one step.

    Attributes:
        mean_ms: total time of consecutive runs divided by their number.
        alone_ms: time of single runs; None for steps that are shorter than a launch.
    """

    mean_ms: float
    alone_ms: TimeStatistics | None = None


@dataclass(frozen=True)
class EncodingTime:
    """Times that depend on the encoding of a frame.

    Attributes:
        frame_bytes: size of the pixels.
        upload_ms: time to upload header and pixels; None if the device reads them in place.
    """

    frame_bytes: int
    upload_ms: float | None
    letterbox_ms: float


@dataclass(frozen=True)
class PipelineReport:
    """Results of a pipeline at one depth and batch size.

    "At full load" means that the next frame is always waiting.

    Attributes:
        latency_ms: time from enqueueing a batch to its results and maps, in an idle pipeline.
        frames_per_s: frames per second at full load.
        busy_latency_ms: time from enqueueing a batch to its results and maps, at full load.
        enqueue_ms: time of the calling thread to enqueue a batch, at full load.
        collect_ms: time of the calling thread to collect a batch, including waits and the maps
            that the host makes, at full load.
        cpu_ms: CPU time of all threads per frame, at full load.
        detections: mean number of boxes per frame; None if the task has no objects.
        unequal: number of results that differ in any bit from the first run of the same frame.
            Only the first 128 MiB of results are compared.
        load_s: time to open the pipeline, set by the caller.
        device_memory_bytes: GPU memory of the pipeline, set by the caller; None on the CPU.
        latency_percentiles_ms: percentiles 0 to 100 of ``latency_ms``.
        busy_latency_percentiles_ms: percentiles 0 to 100 of ``busy_latency_ms``.
        last_batches: the last batches at full load, at most 12, in the order of their results.
    """

    depth: int
    latency_ms: TimeStatistics
    frames_per_s: float
    busy_latency_ms: TimeStatistics
    enqueue_ms: TimeStatistics
    collect_ms: TimeStatistics
    cpu_ms: float
    detections: float | None
    unequal: int
    load_s: float = 0.0
    device_memory_bytes: int | None = None
    batch: int = 1
    latency_percentiles_ms: tuple[float, ...] = ()
    busy_latency_percentiles_ms: tuple[float, ...] = ()
    last_batches: tuple[BatchTimes, ...] = ()

    @property
    def name(self) -> str:
        """Name that distinguishes this report from other reports of the same model."""
        return measurement_name(self.batch, self.depth)


def measurement_name(batch: int, depth: int) -> str:
    """Return the name of a measurement at this batch size and depth."""
    return f'depth {depth}' if batch == 1 else f'batch {batch}, depth {depth}'


def measure_pipeline(
    pipeline: Pipeline,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    expected: Sequence[TaskResult],
    control: MeasurementControl,
    batch: int = 1,
) -> PipelineReport:
    """Measure single batches in an idle pipeline, then the pipeline at full load.

    Args:
        pipeline: pipeline with no frames in flight.
        frames: used in order, repeatedly; at least as many batches as are in flight.
        expected: result of ``detect_all``. Frames without an expected result are not compared.
        control: ends each of the two runs, and the warm-up before each.
        batch: frames per batch, at most ``pipeline.batch``.
    """
    feeder = _BatchFeeder(pipeline, frames, thresholds, batch)
    control.begin_warm_up()
    _run_one_by_one(feeder, control, min_frames=0)
    control.begin('one at a time')
    latencies, alone = _run_one_by_one(feeder, control)
    unequal = _count_unequal(alone, expected, len(frames))
    del alone
    control.begin_warm_up()
    _run_saturated(feeder, control, min_frames=0)
    control.begin('full load')
    busy = _run_saturated(feeder, control)
    count = busy.frames
    unequal += _count_unequal(busy.results, expected, len(frames))
    return PipelineReport(
        depth=pipeline.depth,
        latency_ms=TimeStatistics.of_seconds(latencies),
        frames_per_s=count / busy.wall_s,
        busy_latency_ms=TimeStatistics.of_seconds(busy.latency_s),
        enqueue_ms=TimeStatistics.of_seconds(busy.enqueue_s),
        collect_ms=TimeStatistics.of_seconds(busy.collect_s),
        cpu_ms=busy.cpu_s / count * 1e3,
        detections=_mean_detections(expected),
        unequal=unequal,
        batch=batch,
        latency_percentiles_ms=_percentiles_ms(latencies),
        busy_latency_percentiles_ms=_percentiles_ms(busy.latency_s),
        last_batches=_since_first(busy.last_batches),
    )


def _percentiles_ms(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple((np.percentile(seconds, range(101)) * 1e3).tolist())


def _since_first(
    batches: Iterable[tuple[int, float, float, float, float]],
) -> tuple[BatchTimes, ...]:
    """Return times in milliseconds since the first enqueue, from clock times in seconds."""
    rows = list(batches)
    first = min((row[1] for row in rows), default=0.0)
    return tuple(
        BatchTimes(slot, *((one - first) * 1e3 for one in times)) for slot, *times in rows
    )


def _mean_detections(expected: Sequence[TaskResult]) -> float | None:
    """Return the mean number of detections of an image; None for other tasks."""
    counts = [len(found) for found in expected if isinstance(found, Detections)]
    return float(np.mean(counts)) if counts else None


def detect_all(
    pipeline: Pipeline,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    control: MeasurementControl,
    batch: int = 1,
) -> list[TaskResult] | None:
    """Run all frames in order, and return the first 128 MiB of their results.

    Args:
        pipeline: pipeline with no frames in flight.
        frames: their number is a multiple of ``batch``.

    Returns:
        The results in the order of the frames; None if the run was stopped before its end.
    """
    feeder = _BatchFeeder(pipeline, frames, thresholds, batch)
    control.begin('each image once', len(frames))
    kept, done = _KeptResults(), 0
    while control.must_continue(done, len(frames)) and not control.stopped:
        feeder.enqueue(0, done)
        kept.add(feeder.collect(0))
        done += batch
    return kept.results if done >= len(frames) else None


class _KeptResults:
    """The first results of a run, in the order of the frames, to compare after the run.

    Attributes:
        results: the results that fit into ``_MAX_KEPT_BYTES``, but at least the first one.
    """

    def __init__(self) -> None:
        self.results: list[TaskResult] = []
        self._free_bytes = _MAX_KEPT_BYTES

    def add(self, found: Iterable[TaskResult]) -> None:
        """Keep results in order, until one does not fit. Later results are not kept."""
        for result in found:
            if self._free_bytes > 0:
                self._free_bytes -= _RESULT_BYTES + _array_bytes(result)
                if self._free_bytes >= 0 or not self.results:
                    self.results.append(result)


def _array_bytes(value: Any) -> int:
    """Return the bytes of all arrays and maps of a result."""
    if isinstance(value, KernelMaps):
        return sum(math.prod(each.size_wh) * each.dtype.itemsize for each in value.maps.values())
    if isinstance(value, np.ndarray):
        return value.nbytes
    if is_dataclass(value):
        return sum(_array_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


def make_map(found: TaskResult | OutputError) -> None:
    """Make the class or depth map of a result, if any, in the size of the image.

    If kernels make the maps, wait for the copies to the host.
    """
    if isinstance(found, KernelMaps):
        for made in found.maps.values():
            made.memory()
    elif isinstance(found, ClassMap):
        replace(found).class_ids()  # a copy, because a ClassMap keeps its best classes in memory
    elif isinstance(found, DepthMap):
        found.depth()


@dataclass(frozen=True)
class _BatchFeeder:
    """Enqueues frames in batches, and starts again after the last frame."""

    pipeline: Pipeline
    frames: Sequence[Frame]
    thresholds: Thresholds
    batch: int

    def enqueue(self, slot: int, done: int) -> None:
        """Enqueue the batch that follows the first ``done`` frames."""
        count = len(self.frames)
        frames = [self.frames[(done + index) % count] for index in range(self.batch)]
        self.pipeline.enqueue(slot, frames, [self.thresholds] * self.batch)

    def collect(self, slot: int) -> list[TaskResult]:
        """Return the results of a batch, after making their maps."""
        results = [result.found for result in collect_all(self.pipeline, slot)]
        for found in results:
            make_map(found)
        return results


def _run_one_by_one(
    feeder: _BatchFeeder, control: MeasurementControl, min_frames: int = 1
) -> tuple[list[float], list[TaskResult]]:
    """Return latencies of batches in seconds, and the kept results in the order of the frames."""
    latencies: list[float] = []
    kept = _KeptResults()
    while control.must_continue(done := len(latencies) * feeder.batch, min_frames):
        slot = len(latencies) % feeder.pipeline.depth
        start = time.perf_counter()
        feeder.enqueue(slot, done)
        found = feeder.collect(slot)
        latencies.append(time.perf_counter() - start)
        kept.add(found)
    return latencies, kept.results


@dataclass
class _SaturatedRun:
    """A run at full load. Each list of times has one entry for each batch.

    Attributes:
        results: the kept results, in the order of the frames.
        last_batches: slot, and the clock in seconds at the four times of ``BatchTimes``.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    frames: int = 0
    latency_s: list[float] = field(default_factory=list)
    enqueue_s: list[float] = field(default_factory=list)
    collect_s: list[float] = field(default_factory=list)
    results: list[TaskResult] = field(default_factory=list)
    last_batches: deque[tuple[int, float, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=_MAX_LAST_BATCHES)
    )


def _run_saturated(
    feeder: _BatchFeeder, control: MeasurementControl, min_frames: int = 1
) -> _SaturatedRun:
    """Enqueue if a slot is free, else collect the oldest batch, as scheduling/worker.py does."""
    run, kept = _SaturatedRun(), _KeptResults()
    free = deque(range(feeder.pipeline.depth))
    in_flight: deque[tuple[int, float, float]] = deque()
    submitted = 0
    cpu = time.process_time()
    start = time.perf_counter()
    more = True
    while True:
        more = more and control.must_continue(submitted, min_frames)
        before = time.perf_counter()
        if free and more:
            feeder.enqueue(free[0], submitted)
            now = time.perf_counter()
            in_flight.append((free.popleft(), before, now))
            submitted += feeder.batch
            run.enqueue_s.append(now - before)
        elif not in_flight:
            break
        else:
            slot, enqueue_start, enqueue_end = in_flight.popleft()
            found = feeder.collect(slot)
            free.append(slot)
            now = time.perf_counter()
            run.collect_s.append(now - before)
            run.latency_s.append(now - enqueue_start)
            run.last_batches.append((slot, enqueue_start, enqueue_end, before, now))
            kept.add(found)
            run.frames += len(found)
    run.wall_s = time.perf_counter() - start
    run.cpu_s = time.process_time() - cpu
    run.results = kept.results
    return run


def _count_unequal(
    results: Sequence[TaskResult], expected: Sequence[TaskResult], frame_count: int
) -> int:
    """Return the number of results that differ from the expected result of their frame."""
    of_frames = ((index % frame_count, found) for index, found in enumerate(results))
    return sum(
        not _are_equal(found, expected[frame])
        for frame, found in of_frames
        if frame < len(expected)
    )


def _are_equal(one: TaskResult, other: TaskResult) -> bool:
    if isinstance(one, KernelMaps):
        assert isinstance(other, KernelMaps)
        return one.maps.keys() == other.maps.keys() and all(
            np.array_equal(made.memory()[HEADER_ROOM:], other.maps[kind].memory()[HEADER_ROOM:])
            for kind, made in one.maps.items()
        )
    names = ['xyxy', 'scores', 'class_ids']
    if not isinstance(one, Detections):
        names = [field.name for field in fields(one)]
    return all(_are_same_bits(getattr(one, name), getattr(other, name)) for name in names)


def _are_same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):  # NaN, an unknown depth, does not equal itself
        return bool(one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other)
