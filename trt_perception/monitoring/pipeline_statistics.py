"""How many frames a pipeline took at once, and how long that took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property

from trt_perception.monitoring.percentiles import Percentiles, percentiles

__all__ = ['PipelineStatistics']


@dataclass
class PipelineStatistics:
    """Counts since the start and the times of the last batches; the owner holds a lock.

    Attributes:
        frames: that came out of the pipeline, those among them that could not be read, too.
        batches: that they were in.
        compute_s: seconds that each of the last batches took, preprocessing to decoding.
    """

    frames: int = 0
    batches: int = 0
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    def count(self, frames: int, compute_s: float | None) -> None:
        """Count a batch; ``compute_s`` is None where none of its frames could be read."""
        self.frames += frames
        self.batches += 1
        if compute_s is not None:
            self.compute_s.append(compute_s)

    def snapshot(self) -> PipelineStatistics:
        """Return a copy that stays as it is."""
        return replace(self, compute_s=self.compute_s.copy())

    @cached_property
    def compute(self) -> Percentiles | None:
        """Percentiles of a snapshot's times; None without any."""
        return percentiles(1e3 * seconds for seconds in self.compute_s)
