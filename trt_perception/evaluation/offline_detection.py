"""A pipeline run over images, offline: the next ones are decoded while the model works."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.evaluation.coco.images import read_image
from trt_perception.evaluation.coco.run_lengths import with_run_lengths
from trt_perception.evaluation.metrics.measure import BOXES, Measure
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.open_pipeline import open_offline
from trt_perception.pipelines.pipeline import Pipeline, collect_all

__all__ = [
    'MIN_SCORE',
    'Latency',
    'RunResult',
    'detect_batch',
    'detect_in_files',
    'open_for_evaluation',
    'read_ahead',
    'split_into_batches',
]

#: Detections above this enter mAP; below it they change nothing that can be seen.
MIN_SCORE: Final = 0.001
#: At so low a threshold thousands of boxes enter NMS; a node keeps 1024.
MAX_CANDIDATES: Final = 30_000
_DECODED_AHEAD: Final = 4
_DECODER_THREADS: Final = 2

#: Called with how many of how many images are done.
ImageProgress = Callable[[int, int], None]
_Image = npt.NDArray[np.uint8]
_Item = TypeVar('_Item')


@dataclass(frozen=True)
class Latency:
    """Time of an image from the start of preprocessing to its boxes, in milliseconds.

    The image is decoded before. Where a model takes several at once, it is an image's share.
    """

    mean_ms: float
    p50_ms: float
    p99_ms: float
    batch: int = 1

    @classmethod
    def of_seconds(cls, seconds: Sequence[float], batch: int = 1) -> Latency:
        """Describe at least one value, given in seconds, and how many images run at once."""
        values = np.array(seconds) * 1e3
        p50, p99 = (float(value) for value in np.percentile(values, (50, 99)))
        return cls(float(values.mean()), p50, p99, batch)

    def as_dict(self) -> dict[str, float]:
        """Return the figures as JSON has them."""
        return {'mean': self.mean_ms, 'p50': self.p50_ms, 'p99': self.p99_ms}


@dataclass(frozen=True)
class RunResult:
    """What a model found.

    Attributes:
        detections: one entry for each image, in their order.
        latency: of those images.
    """

    detections: tuple[Detections, ...]
    latency: Latency


def open_for_evaluation(model: ModelFile, options: PipelineOptions) -> Pipeline:
    """Open a model with room for all candidates that a low threshold lets through.

    An engine's outputs are decoded on the host then, so latency is not a node's.

    Args:
        model: an ONNX file or an engine.
        options: how a node would run the model.

    Raises:
        EngineError: it cannot be used; the message says why and what to do.
        CudaError: an engine, and no GPU to run it.
    """
    limits = replace(options.limits, max_candidates=MAX_CANDIDATES)
    return open_offline(model, replace(options, limits=limits))


def detect_batch(
    pipeline: Pipeline, frames: Sequence[Frame], thresholds: Thresholds
) -> list[Detections]:
    """Run a model once, on as many frames as it takes at once or fewer.

    Args:
        pipeline: as ``open_offline`` opens it, nothing in flight.
        frames: at least one, at most ``pipeline.batch``.
        thresholds: for all of them.

    Raises:
        ImageError: one of them cannot be read.
    """
    pipeline.enqueue(0, frames, [thresholds] * len(frames))
    return [result.detections for result in collect_all(pipeline, 0)]


def detect_in_files(
    pipeline: Pipeline,
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    thresholds: Thresholds,
    progress: ImageProgress,
    measure: Measure = BOXES,
) -> RunResult:
    """Run a model over image files, one after the other.

    Args:
        pipeline: nothing in flight.
        images: at least one: file, and the size in pixels that it must have, or None.
        thresholds: for all of them.
        progress: called after each; what it raises ends the run.
        measure: what will be compared: masks are kept, as run lengths, only where they are.

    Raises:
        ImageError: a file cannot be read, or is of another size.
    """
    assert images
    detections: list[Detections] = []
    seconds: list[float] = []
    progress(0, len(images))
    for chunk in split_into_batches(read_ahead(images), pipeline.batch):
        frames = [frame_from_bgr(bgr) for _, bgr in chunk]
        if not detections:  # the first run of a model allocates: its time says nothing
            detect_batch(pipeline, frames, thresholds)
        started = time.perf_counter()
        found = detect_batch(pipeline, frames, thresholds)
        seconds.append((time.perf_counter() - started) / len(frames))
        # Masks of thousands of images would fill the memory.
        if measure.has_masks:
            detections += map(with_run_lengths, found)
        else:
            detections += [replace(one, masks=None) for one in found]
        progress(len(detections), len(images))
    return RunResult(tuple(detections), Latency.of_seconds(seconds, pipeline.batch))


def split_into_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of ``size`` items; the last may be shorter."""
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, size)):
        yield chunk


def read_ahead(
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    on_unreadable: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, _Image]]:
    """Yield decoded images in order, while threads decode the next.

    Args:
        images: file, and the size in pixels that it must have, or None.
        on_unreadable: called with the reason for each file that cannot be read, which is then left
            out; None makes it an error.

    Yields:
        Index of the file, and uint8 (height, width, 3), BGR.

    Raises:
        ImageError: a file cannot be read, or is of another size.
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
