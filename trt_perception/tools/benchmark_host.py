"""Measuring an ONNX model on the CPU, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from trt_perception.config import Thresholds
from trt_perception.frame import Frame
from trt_perception.pipelines.host import HostPipeline
from trt_perception.stages.decoders.decode import count_candidates
from trt_perception.tools.benchmark_measure import Spread
from trt_perception.tools.benchmark_measure import StageTime

__all__ = ['measure_host_steps']


def measure_host_steps(
    pipeline: HostPipeline,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    *,
    count: int,
    warmup: int,
) -> tuple[dict[str, StageTime], list[int]]:
    """Time preprocessing, inference and decoding, one after the other, frame by frame.

    Args:
        pipeline: nothing in flight.
        frames: taken in turn.
        thresholds: for all frames.
        count: frames measured.
        warmup: frames before that do not count; at least each frame once.

    Returns:
        ``preprocess``, ``inference`` and ``decode``; and for each frame how many boxes were above
        the threshold before NMS.

    Raises:
        EngineError: the model's outputs are not what its decoder reads.
    """
    marks, candidates = [], []
    for index in range(-max(warmup, len(frames)), count):
        before = time.perf_counter()
        tensor, letterboxes = pipeline.preprocess([frames[index % len(frames)]])
        preprocessed = time.perf_counter()
        outputs = pipeline.infer(tensor)
        inferred = time.perf_counter()
        pipeline.decode(outputs, letterboxes, thresholds)
        if index >= 0:
            marks.append((before, preprocessed, inferred, time.perf_counter()))
        elif index >= -len(frames):
            candidates.append(count_candidates(outputs, pipeline.spec, thresholds))
    times = np.diff(np.array(marks), axis=1).T
    names = ('preprocess', 'inference', 'decode')
    spreads = [Spread.of_seconds(row.tolist()) for row in times]
    stages = {
        name: StageTime(spread.mean, spread) for name, spread in zip(names, spreads, strict=True)
    }
    return stages, candidates
