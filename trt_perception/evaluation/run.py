"""A pipeline run over pictures, offline: the next ones are decoded while the model works."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.errors import ImageError
from trt_perception.evaluation.images import frame_of
from trt_perception.evaluation.images import read_image
from trt_perception.model_file import ModelFile
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host import HostPipeline
from trt_perception.pipelines.pipeline import Pipeline

__all__ = [
    'CONFIDENCE',
    'Latency',
    'Run',
    'detect_images',
    'open_for_evaluation',
    'read_ahead',
]

#: Detections above this enter mAP; below it they change nothing that can be seen.
CONFIDENCE: Final = 0.001
#: At so low a threshold thousands of boxes enter NMS; a node keeps 1024.
MAX_CANDIDATES: Final = 30_000
_DECODED_AHEAD: Final = 4
_DECODERS: Final = 2

#: Told how many of how many pictures are done.
Progress = Callable[[int, int], None]
_Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Latency:
    """Time of a picture from the start of preprocessing to its boxes, in milliseconds.

    One at a time, the picture decoded before.
    """

    mean_ms: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Latency:
        """Describe at least one value, given in seconds."""
        values = np.array(seconds) * 1e3
        p50, p99 = (float(value) for value in np.percentile(values, (50, 99)))
        return cls(float(values.mean()), p50, p99)

    def as_dict(self) -> dict[str, float]:
        """Return the figures as JSON has them."""
        return {'mean': self.mean_ms, 'p50': self.p50_ms, 'p99': self.p99_ms}


@dataclass(frozen=True)
class Run:
    """What a model found.

    Attributes:
        detections: one entry for each picture, in their order.
        latency: of those pictures.
    """

    detections: tuple[Detections, ...]
    latency: Latency


def open_for_evaluation(model: ModelFile, config: DetectorConfig) -> Pipeline:
    """Open a model with room for all candidates that a low threshold lets through.

    An engine's outputs are decoded on the host then, so latency is not a node's.

    Args:
        model: an ONNX file or an engine.
        config: the node's parameters.

    Raises:
        EngineError: it cannot be used; the message says why and what to do.
        CudaError: an engine, and no GPU to run it.
    """
    if model.is_onnx:
        return HostPipeline(model, config, max_candidates=MAX_CANDIDATES)
    return CudaPipeline(model, config, max_candidates=MAX_CANDIDATES)


def detect_images(
    pipeline: Pipeline,
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    thresholds: Thresholds,
    progress: Progress,
) -> Run:
    """Run a model over picture files, one after the other.

    Args:
        pipeline: nothing in flight.
        images: at least one: file, and the size in pixels that it must have, or None.
        thresholds: for all of them.
        progress: told after each; what it raises ends the run.

    Raises:
        ImageError: a file cannot be read, or is of another size.
    """
    assert images
    detections, seconds = [], []
    progress(0, len(images))
    for number, bgr in read_ahead(images):
        frame = frame_of(bgr)
        if not number:  # the first run of a model allocates: its time says nothing
            pipeline.enqueue(0, frame, thresholds)
            pipeline.collect(0)
        started = time.perf_counter()
        pipeline.enqueue(0, frame, thresholds)
        result = pipeline.collect(0)
        seconds.append(time.perf_counter() - started)
        detections.append(result.detections)
        progress(number + 1, len(images))
    return Run(tuple(detections), Latency.of_seconds(seconds))


def read_ahead(
    images: Sequence[tuple[Path, tuple[int, int] | None]],
    unreadable: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, _Picture]]:
    """Yield decoded pictures in order, while threads decode the next.

    Args:
        images: file, and the size in pixels that it must have, or None.
        unreadable: told of each file that cannot be read, which is then left out; None makes it
            an error.

    Yields:
        Index of the file, and uint8 (height, width, 3), BGR.

    Raises:
        ImageError: a file cannot be read, or is of another size.
    """
    waiting: deque[tuple[int, Future[_Picture]]] = deque()
    todo = enumerate(images)
    with ThreadPoolExecutor(_DECODERS, 'decode') as pool:
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
                    if unreadable is None:
                        raise
                    unreadable(str(error))
                    continue
                yield index, bgr
        finally:
            for _, future in waiting:
                future.cancel()
