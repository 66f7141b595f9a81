# SPDX-License-Identifier: Apache-2.0
"""The interface between the pool and the pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from trt_perception.errors import EngineError, ImageError, OutputError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.memory import HostMemory
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds

#: The error of one frame. The node drops the frame and counts it by the error's ``reason``.
FrameError: TypeAlias = ImageError | OutputError
_Item = TypeVar('_Item')


@dataclass(frozen=True)
class Result:
    """The result of one frame.

    Attributes:
        found: the result of the model's task.
        compute_s: seconds from the start of preprocessing to the end of decoding, for the whole
            batch of the frame.
        frame: the frame that was processed. For a deferred frame, the frame that was read.
        gpu_s: seconds from the call of `Pipeline.enqueue` to the end of the batch on the GPU, as
            the GPU measures it, including uploads. 0 if the pipeline does not measure this time.
    """

    found: TaskResult
    compute_s: float
    frame: Frame
    gpu_s: float = 0.0

    @property
    def detections(self) -> Detections:
        """The detections in source pixels, if the model's task finds objects.

        Raises:
            EngineError: the model's task has results of another type.
        """
        if not isinstance(self.found, Detections):
            raise EngineError(
                'the model',
                f'a result of type {type(self.found).__name__}',
                expected='detections of objects',
            )
        return self.found


class Pipeline(Protocol):
    """Processes batches of frames, from preprocessing to decoded results.

    Slots have the indices 0 … depth - 1. Only one thread may use a pipeline at a time.

    Attributes:
        depth: number of slots, which is the number of batches in flight.
        max_in_flight: number of slots that the pool may use now, 1 … `depth`. `collect` may
            change it.
        batch: largest number of frames in a batch.
        spec: tensors, preprocessing, decoder and class names of the model.
        decodes_jpeg: whether frames may be JPEG files or deferred. If False, frames must be
            decoded.
        diagnostic_values: keys and values about the model's runtime for /diagnostics.
        opening_reason: why frames wait until the model is open again; empty if it is open. Any
            thread may read this text.
    """

    depth: int
    max_in_flight: int
    batch: int
    spec: ModelSpec
    decodes_jpeg: bool
    diagnostic_values: tuple[tuple[str, str], ...]
    opening_reason: str

    def allocate(self, size: int) -> HostMemory:
        """Return memory of `size` bytes. Frames in this memory are processed without a copy.

        Any thread may call this method. The caller frees the memory when no slot uses it.

        Raises:
            CudaError: page-locked memory is not sufficient, or the GPU is lost.
            MemoryError: ordinary memory is not sufficient.
        """

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Start a batch in a free slot. Does not wait for the results.

        A block of memory from `allocate` holds one frame at most, which may be in only one slot
        until `collect`. If a frame cannot be read, `collect` returns its error, and the other
        frames are not affected.

        Args:
            slot: index of a free slot.
            frames: 1 … `batch` frames. They may differ in size, encoding and memory.
            thresholds: thresholds of each frame.
        """

    def is_done(self, slot: int) -> bool:
        """Return whether `collect` would return at once. Does not wait."""

    def collect(self, slot: int) -> list[Result | FrameError]:
        """Wait for the results of a slot and free the slot.

        Returns:
            The result of each frame, or its error if the frame cannot be read or its outputs are
            invalid, in the order of frames.
        """

    def close(self) -> None:
        """Free all resources. May be called again."""


def collect_all(pipeline: Pipeline, slot: int) -> list[Result]:
    """Wait for the results of a slot, and raise the error of the first frame with an error.

    Raises:
        ImageError: the frame cannot be read. The slot is free.
        OutputError: the model's outputs for the frame are invalid. The slot is free.
    """
    results: list[Result] = []
    for result in pipeline.collect(slot):
        if isinstance(result, FrameError):
            raise result
        results.append(result)
    return results


def detect_one(pipeline: Pipeline, frame: Frame, thresholds: Thresholds, slot: int = 0) -> Result:
    """Process a single frame and wait for its result.

    Args:
        pipeline: processes the frame.
        frame: the frame, as for `Pipeline.enqueue`.
        thresholds: thresholds of the frame.
        slot: index of a free slot.

    Raises:
        ImageError: the frame cannot be read.
        OutputError: the model's outputs are invalid.
    """
    pipeline.enqueue(slot, [frame], [thresholds])
    (result,) = collect_all(pipeline, slot)
    return result


def split_into_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of ``size`` items. The last list may be shorter."""
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, size)):
        yield chunk
