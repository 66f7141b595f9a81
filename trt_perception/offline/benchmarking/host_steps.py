# SPDX-License-Identifier: Apache-2.0
"""Measures the steps of an ONNX model in host memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.task import MapTask, Task
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.measure import StageTime, TimeStatistics, make_map
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.stages.decode import count_candidates


def measure_host_steps(
    pipeline: ArrayPipeline,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    control: MeasurementControl,
) -> tuple[dict[str, StageTime], list[int]]:
    """Measure preprocessing, inference and decoding, frame after frame.

    Args:
        pipeline: pipeline with no frames in flight.
        frames: used in order, repeatedly if necessary.
        control: ends the measurement. In the warm-up before it, each frame runs at least once,
            unless the run was stopped.

    Returns:
        Times of ``preprocess``, ``inference`` and ``decode``; for class or depth maps also of
        ``maps``, which a node makes for a subscriber. For each frame, the number of boxes above
        the threshold before NMS.

    Raises:
        EngineError: the decoder cannot read the outputs of the model.
        OutputError: the outputs for a frame are invalid.
    """
    candidates: list[int] = []

    def run(index: int) -> tuple[float, ...]:
        frame = frames[index % len(frames)]
        before = time.perf_counter()
        tensor, letterboxes = pipeline.preprocess([frame])
        preprocessed = time.perf_counter()
        outputs = pipeline.infer(tensor)
        inferred = time.perf_counter()
        (found,) = pipeline.decode(outputs, letterboxes, [thresholds])
        decoded = time.perf_counter()
        if isinstance(found, OutputError):
            raise found
        make_map(found)
        made = time.perf_counter()
        if len(candidates) < len(frames):
            candidates.append(count_candidates(outputs, pipeline.spec, thresholds))
        return before, preprocessed, inferred, decoded, made

    done = 0
    control.begin_warm_up(len(frames))
    while control.must_continue(done, 0 if control.stopped else len(frames)):
        run(done)
        done += 1
    marks: list[tuple[float, ...]] = []
    control.begin('step by step')
    while control.must_continue(len(marks)):
        marks.append(run(len(marks)))
    names = ('preprocess', 'inference', 'decode')
    return stage_times(names, marks, pipeline.spec.task), candidates


def stage_times(
    names: Sequence[str], marks: Sequence[tuple[float, ...]], task: Task
) -> dict[str, StageTime]:
    """Return the time of each stage, and of ``maps`` for class or depth maps.

    Args:
        names: the stages before ``maps``.
        marks: for each frame, the clock in seconds before, between and after all stages.
    """
    if isinstance(task, MapTask):
        names = (*names, 'maps')
    times = np.diff(np.array(marks), axis=1).T
    all_statistics = [TimeStatistics.of_seconds(row.tolist()) for row in times]
    return {
        name: StageTime(statistics.mean, statistics)
        for name, statistics in zip(names, all_statistics, strict=False)
    }
