# SPDX-License-Identifier: Apache-2.0
"""Runs a pipeline on image files, and decodes the next images while the model works."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.task import TaskResult, detections_of
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.coco.images import read_image
from trt_perception.offline.evaluation.coco.run_lengths import with_run_lengths
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import Pipeline, collect_all, split_into_batches

#: Detections above this score enter mAP. Lower scores do not visibly change mAP.
MIN_SCORE: Final = 0.001
#: Maximum boxes before NMS. Thousands exceed MIN_SCORE; the node keeps only 1024.
MAX_CANDIDATES: Final = 30_000
_DECODED_AHEAD: Final = 4
_DECODER_THREADS: Final = 2

#: Called with the number of finished images and the number of all images.
ImageProgress = Callable[[int, int], None]
_Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Latency:
    """Time of an image from the start of preprocessing to its boxes, in milliseconds.

    Decoding of the image file is not included. For a batch, the time is divided by its size.

    Attributes:
        batch: maximum number of images per batch.
    """

    mean_ms: float
    p50_ms: float
    p99_ms: float
    batch: int = 1

    @classmethod
    def of_seconds(cls, seconds: Sequence[float], batch: int = 1) -> Latency:
        """Return the statistics of at least one time in seconds, and the batch size."""
        values = np.array(seconds) * 1e3
        p50, p99 = (float(value) for value in np.percentile(values, (50, 99)))
        return cls(float(values.mean()), p50, p99, batch)

    def as_dict(self) -> dict[str, float]:
        """Return the figures as a JSON object."""
        return {'mean': self.mean_ms, 'p50': self.p50_ms, 'p99': self.p99_ms}


@dataclass(frozen=True)
class RunResult:
    """Results of a model on image files.

    Attributes:
        detections: one entry for each image, in the order of the images.
    """

    detections: tuple[Detections, ...]
    latency: Latency


def open_for_evaluation(model: ModelFile, options: PipelineOptions) -> Pipeline:
    """Open a model for evaluation, with room for all candidates at a low score threshold.

    The host decodes the outputs of an engine in this pipeline, so the latency differs from the
    node's.

    Raises:
        EngineError: the model cannot be used. The message says why, and how to fix it.
        CudaError: the model is an engine, and there is no GPU.
    """
    limits = replace(options.limits, max_candidates=MAX_CANDIDATES)
    return open_offline_pipeline(model, replace(options, limits=limits))


def detect_batch(
    pipeline: Pipeline, frames: Sequence[Frame], thresholds: Thresholds
) -> list[TaskResult]:
    """Run a model on one batch of frames. Return the result of each frame.

    Args:
        pipeline: pipeline that ``open_offline_pipeline`` opened, with no frames in flight.
        frames: 1 to ``pipeline.batch`` frames.

    Raises:
        ImageError: a frame cannot be read.
        OutputError: the model's outputs for a frame are invalid.
    """
    pipeline.enqueue(0, frames, [thresholds] * len(frames))
    return [result.found for result in collect_all(pipeline, 0)]


def detect_in_files(
    pipeline: Pipeline,
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    thresholds: Thresholds,
    progress: ImageProgress,
    measure: Measure = BOXES,
) -> RunResult:
    """Run a model on image files, batch after batch.

    Args:
        pipeline: pipeline with no frames in flight.
        images: at least one pair of file and required (width, height) in pixels; None allows
            any size.
        progress: called after each batch; an exception of this function ends the run.
        measure: measure of the comparison. Masks are kept, as run lengths, only if the measure
            compares masks.

    Raises:
        ImageError: a file cannot be read, or has another size.
    """
    assert images
    detections: list[Detections] = []
    seconds: list[float] = []
    progress(0, len(images))
    for chunk in split_into_batches(read_ahead(images), pipeline.batch):
        frames = [frame_from_bgr(bgr) for _, bgr in chunk]
        if not detections:  # the first run also allocates memory, so it must not be timed
            detect_batch(pipeline, frames, thresholds)
        started = time.perf_counter()
        found = detections_of(detect_batch(pipeline, frames, thresholds))
        seconds.append((time.perf_counter() - started) / len(frames))
        # Unpacked masks of thousands of images would fill the memory.
        if measure.has_masks:
            detections += map(with_run_lengths, found)
        else:
            detections += [replace(one, masks=None) for one in found]
        progress(len(detections), len(images))
    return RunResult(tuple(detections), Latency.of_seconds(seconds, pipeline.batch))


def read_ahead(
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    on_unreadable: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, _Image]]:
    """Yield decoded images in order, while threads decode the next images.

    Args:
        images: pairs of file and required (width, height) in pixels; None allows any size.
        on_unreadable: called with the reason for each file that cannot be read; the file is
            skipped. If None, the error is raised instead.

    Yields:
        Index of the file, and the image: uint8 (height, width, 3), BGR.

    Raises:
        ImageError: a file cannot be read, or has another size.
    """
    waiting: deque[tuple[int, Future[_Image]]] = deque()
    todo = enumerate(images)
    with ThreadPoolExecutor(_DECODER_THREADS, 'decode') as pool:
        try:
            while True:
                while len(waiting) < _DECODED_AHEAD and (entry := next(todo, None)):
                    waiting.append((entry[0], pool.submit(read_image, *entry[1])))
                if not waiting:
                    return
                index, future = waiting.popleft()
                try:
                    bgr = future.result()
                except ImageError as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(str(error))
                    continue
                yield index, bgr
        finally:
            for _, future in waiting:
                future.cancel()
