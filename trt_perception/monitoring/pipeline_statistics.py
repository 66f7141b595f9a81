# SPDX-License-Identifier: Apache-2.0
"""Counts the batches of a pipeline, and keeps their compute times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property

from trt_perception.monitoring.percentiles import Percentiles, percentiles


@dataclass
class PipelineStatistics:
    """Counts since the start, and times of the last batches. The caller must lock around calls.

    Attributes:
        frames: number of frames that left the pipeline, including unreadable frames.
        compute_s: seconds that each recent batch took from preprocessing to decoding.
        worker_s: seconds in which the worker read images and published results.
        model_s: seconds in which batches were computed, as a mean over the pipeline's slots.
        decodes_jpeg: whether the GPU decodes JPEG images.
        opening_reason: why frames wait until the model is open again; empty if it is open.
    """

    frames: int = 0
    batches: int = 0
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    worker_s: float = 0.0
    model_s: float = 0.0
    depth: int = 1
    decodes_jpeg: bool = False
    opening_reason: str = ''

    def count(self, frames: int, compute_s: float | None, read_s: float = 0.0) -> None:
        """Count a batch.

        Args:
            frames: number of frames.
            compute_s: seconds for computing the batch; None if all its frames were unreadable.
            read_s: seconds in which the worker read the images of the batch.
        """
        self.frames += frames
        self.batches += 1
        self.worker_s += read_s
        if compute_s is not None:
            self.compute_s.append(compute_s)
            self.model_s += compute_s / self.depth

    def snapshot(self, opening_reason: str = '') -> PipelineStatistics:
        """Return a copy that later counts do not change, with this `opening_reason`."""
        return replace(self, compute_s=self.compute_s.copy(), opening_reason=opening_reason)

    @cached_property
    def compute(self) -> Percentiles | None:
        """Percentiles of the compute times of a snapshot; None without times."""
        return percentiles(1e3 * seconds for seconds in self.compute_s)
