"""The interface between the detector and whatever does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trt_perception.errors import EngineError, ImageError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.images.memory import HostMemory
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.task import TaskResult
from trt_perception.parameters.frame import Thresholds

__all__ = ['Pipeline', 'Result', 'collect_all', 'detect_one']


@dataclass(frozen=True)
class Result:
    """What came of one frame.

    Attributes:
        found: by the model's task.
        compute_s: seconds from the start of preprocessing to the end of decoding, of all frames
            that were enqueued together.
        frame: the frame as it was read.
    """

    found: TaskResult
    compute_s: float
    frame: Frame

    @property
    def detections(self) -> Detections:
        """What a task of objects found, in source pixels.

        Raises:
            EngineError: the model's task is another one.
        """
        if not isinstance(self.found, Detections):
            raise EngineError(
                'the model',
                f'it finds no objects, but a {type(self.found).__name__}',
                expected='a detector of objects',
            )
        return self.found


class Pipeline(Protocol):
    """All the work on frames, as many at once as the model takes.

    Slots are numbered 0 … depth - 1; one thread uses a pipeline at a time.

    Attributes:
        depth: how many slots there are: batches that may be in flight.
        batch: most frames that a slot takes at once.
        spec: the model's tensors, preprocessing, decoder and class names.
        decodes_jpeg: it takes frames that are not decoded or not read yet; else a frame must be
            decoded.
    """

    depth: int
    batch: int
    spec: ModelSpec
    decodes_jpeg: bool

    def allocate(self, size: int) -> HostMemory:
        """Return memory from which frames are taken without copying them; from any thread.

        Whoever asked for it frees it, when no frame in it is in a slot any more.

        Raises:
            CudaError: it is page-locked memory, and there is none left or the GPU is lost.
            MemoryError: there is none left.
        """

    def enqueue(
        self, slot: int, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
    ) -> None:
        """Take frames into a free slot and return without waiting for their results.

        Memory of ``allocate`` holds one frame, which is in one slot until ``collect``. A frame
        that cannot be read costs the others nothing: ``collect`` says it.

        Args:
            slot: nothing in it.
            frames: 1 … ``batch``; may differ in everything.
            thresholds: one for each frame.
        """

    def is_done(self, slot: int) -> bool:
        """Tell, without waiting, whether ``collect`` has nothing left to wait for."""

    def collect(self, slot: int) -> list[Result | ImageError]:
        """Wait for the slot's results and free the slot.

        Returns:
            For each frame, in their order, what came of it, or why it cannot be read.
        """

    def close(self) -> None:
        """Free everything; may be called again."""


def collect_all(pipeline: Pipeline, slot: int) -> list[Result]:
    """Wait for a slot's results, for whom a frame that cannot be read is an error.

    Raises:
        ImageError: the first of those; the slot is free.
    """
    results: list[Result] = []
    for result in pipeline.collect(slot):
        if isinstance(result, ImageError):
            raise result
        results.append(result)
    return results


def detect_one(pipeline: Pipeline, frame: Frame, thresholds: Thresholds, slot: int = 0) -> Result:
    """Run one frame alone and wait for its result.

    Args:
        pipeline: nothing in the slot.
        frame: as ``enqueue`` takes it.
        thresholds: of this frame.
        slot: the slot to use.

    Raises:
        ImageError: the frame cannot be read.
    """
    pipeline.enqueue(slot, [frame], [thresholds])
    (result,) = collect_all(pipeline, slot)
    return result
