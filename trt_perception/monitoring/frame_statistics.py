# SPDX-License-Identifier: Apache-2.0
"""Counts the outcomes of frames, and keeps the times of their stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from trt_perception.monitoring.percentiles import Percentiles, percentiles


class FrameTimes(NamedTuple):
    """Seconds that one frame spent in each stage.

    Attributes:
        wait: from ``receive`` until the frame enters a batch.
        copy: reading the message and copying its pixels. The pipeline may decode a JPEG later, in
            ``compute``.
        compute: preprocessing, inference and decoding, on the GPU or the CPU.
        publish: building and publishing the message.
        total: from ``receive`` until published.
    """

    wait: float
    copy: float
    compute: float
    publish: float
    total: float


@dataclass
class FrameStatistics:
    """Counts of frames since the start, and stage times of the last frames.

    Each frame is in flight from ``receive`` until exactly one call of ``publish``, ``drop`` or
    ``fail``: received == published + sum(dropped) + failed + in_flight. The caller must lock
    around every call.

    Attributes:
        failed: number of frames lost by faults.
        in_flight: number of frames that wait or are processed.
        times: stage times of the last published frames.
        received_s: time of the last ``receive`` by the owner's clock; 0 before the first.
        published_s: time of the last ``publish`` by the same clock; 0 before the first.
    """

    received: int = 0
    published: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    in_flight: int = 0
    times: deque[FrameTimes] = field(default_factory=lambda: deque(maxlen=512))
    received_s: float = 0.0
    published_s: float = 0.0

    def receive(self, time_s: float) -> None:
        """Count a received frame. `time_s` is the time in seconds of the owner's clock."""
        self.received_s = time_s
        self.received += 1
        self.in_flight += 1

    def publish(self, times: FrameTimes, time_s: float) -> None:
        """Count a published frame, with its stage times and the time of publication."""
        self.published_s = time_s
        self.published += 1
        self.in_flight -= 1
        self.times.append(times)

    def drop(self, reason: str) -> None:
        """Count a dropped frame."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.in_flight -= 1

    def fail(self, count: int) -> None:
        """Count the frames that were lost by a fault."""
        self.failed += count
        self.in_flight -= count

    def snapshot(self) -> FrameStatistics:
        """Return a copy that later counts do not change."""
        return replace(self, dropped=dict(self.dropped), times=self.times.copy())

    @classmethod
    def merge(cls, parts: Sequence[FrameStatistics]) -> FrameStatistics:
        """Return the sum of snapshots, with the latest stage times of each in equal shares."""
        whole = cls()
        each = (whole.times.maxlen or 0) // max(1, len(parts))
        for part in parts:
            whole.received += part.received
            whole.published += part.published
            whole.failed += part.failed
            whole.in_flight += part.in_flight
            for reason, count in part.dropped.items():
                whole.dropped[reason] = whole.dropped.get(reason, 0) + count
            whole.times.extend(list(part.times)[-each:])
            whole.received_s = max(whole.received_s, part.received_s)
            whole.published_s = max(whole.published_s, part.published_s)
        return whole

    @cached_property
    def latency(self) -> Mapping[str, Percentiles]:
        """Percentiles of the stage times, by field of FrameTimes; empty without times."""
        stages = zip(*self.times, strict=True)  # empty without times
        return {
            stage: both
            for stage, seconds in zip(FrameTimes._fields, stages, strict=False)
            if (both := percentiles(1e3 * value for value in seconds))
        }

    def __str__(self) -> str:
        """Return the counts as an equation for the log."""
        reasons = ', '.join(f'{count} {reason}' for reason, count in sorted(self.dropped.items()))
        text = (
            f'{self.received} received = {self.published} published + '
            f'{sum(self.dropped.values())} dropped{f" ({reasons})" if reasons else ""} + '
            f'{self.failed} failed'
        )
        return f'{text} + {self.in_flight} in flight' if self.in_flight else text
