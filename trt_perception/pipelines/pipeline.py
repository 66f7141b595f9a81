"""The interface between the detector and whatever does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.images.jpeg import AnyFrame
from trt_perception.images.memory import Memory
from trt_perception.model.model_spec import ModelSpec

__all__ = ['Pipeline', 'Result']


@dataclass(frozen=True)
class Result:
    """What came of one frame.

    Attributes:
        detections: in source pixels.
        compute_s: seconds from the start of preprocessing to the end of decoding.
    """

    detections: Detections
    compute_s: float


class Pipeline(Protocol):
    """All the work on a frame.

    Slots are numbered 0 … depth - 1; one thread uses a pipeline at a time.

    Attributes:
        depth: how many frames may be in flight.
        spec: the model's tensors, preprocessing, decoder and class names.
        front: bytes that are to be left free in front of what is put into memory of ``allocate``.
        decodes_jpeg: it takes a JpegFrame, too.
    """

    depth: int
    spec: ModelSpec
    front: int
    decodes_jpeg: bool

    def allocate(self, size: int) -> Memory:
        """Return memory from which frames are taken without copying them; from any thread.

        Whoever asked for it frees it, when no frame in it is in a slot any more.

        Raises:
            CudaError: it is page-locked memory, and there is none left or the GPU is lost.
            MemoryError: there is none left.
        """

    def enqueue(self, slot: int, frame: AnyFrame, thresholds: Thresholds) -> None:
        """Take a frame into a free slot and return without waiting for its result.

        Where its memory is of ``allocate``, the front of that is written until ``collect``: it
        holds one frame, which is in one slot.

        Raises:
            ImageError: the frame cannot be read; the slot stays free.
        """

    def done(self, slot: int) -> bool:
        """Tell, without waiting, whether ``collect`` has nothing left to wait for."""

    def collect(self, slot: int) -> Result:
        """Wait for the slot's result and free the slot.

        Raises:
            ImageError: the frame cannot be read, which shows only here where it is a JpegFrame;
                the slot is free.
        """

    def close(self) -> None:
        """Free everything; may be called again."""
