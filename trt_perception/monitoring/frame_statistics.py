"""What happened to every frame, and how long each stage took."""

from __future__ import annotations

from collections import Counter
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

__all__ = ['FrameStatistics', 'FrameTimes', 'Percentiles', 'StatisticsSnapshot']


class FrameTimes(NamedTuple):
    """Seconds that one frame spent in each stage.

    Attributes:
        wait: handed over until a slot took it.
        copy: reading the message and copying its pixels.
        compute: preprocessing, inference and decoding, on whatever device does it.
        publish: building and publishing the message.
        total: handed over until published.
    """

    wait: float
    copy: float
    compute: float
    publish: float
    total: float


@dataclass(frozen=True)
class Percentiles:
    """Median and 99th percentile in milliseconds."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class StatisticsSnapshot:
    """Counts of one instant: received == published + sum(dropped) + failed + in_flight.

    Attributes:
        received: frames handed over.
        published: frames whose detections were published.
        dropped: frames given up, by reason.
        failed: frames lost to a fault.
        in_flight: frames waiting or being worked on.
        times: of the last frames that were published.
        received_s: when the last frame was handed over, 0 before the first; of any clock.
        published_s: when the detections of the last frame were published, likewise.
    """

    received: int = 0
    published: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    in_flight: int = 0
    times: Sequence[FrameTimes] = ()
    received_s: float = 0.0
    published_s: float = 0.0

    @cached_property
    def latency(self) -> Mapping[str, Percentiles]:
        """Percentiles of ``times`` by the names of FrameTimes; empty where there are none."""
        if not self.times:
            return {}
        p50, p99 = np.percentile(1e3 * np.array(self.times), [50, 99], axis=0)
        return {
            name: Percentiles(float(p50[i]), float(p99[i]))
            for i, name in enumerate(FrameTimes._fields)
        }

    def __str__(self) -> str:
        """Return the counts as the sum that they are, for the log."""
        reasons = ', '.join(f'{count} {reason}' for reason, count in sorted(self.dropped.items()))
        text = (
            f'{self.received} received = {self.published} published + '
            f'{sum(self.dropped.values())} dropped{f" ({reasons})" if reasons else ""} + '
            f'{self.failed} failed'
        )
        return f'{text} + {self.in_flight} in flight' if self.in_flight else text


class FrameStatistics:
    """Counts since the start and the times of the last frames.

    Its owner holds a lock around every call.

    Every frame is in flight from ``receive`` until exactly one of the other three ends it.
    """

    def __init__(self, window: int = 512) -> None:
        self._received = 0
        self._published = 0
        self._failed = 0
        self._in_flight = 0
        self._dropped: Counter[str] = Counter()
        self._times: deque[FrameTimes] = deque(maxlen=window)
        self._received_s = self._published_s = 0.0

    def receive(self, time_s: float) -> None:
        """Count a frame that is handed over now, in seconds of the owner's clock."""
        self._received_s = time_s
        self._received += 1
        self._in_flight += 1

    def publish(self, times: FrameTimes, time_s: float) -> None:
        """Count a frame whose detections are published now."""
        self._published_s = time_s
        self._published += 1
        self._in_flight -= 1
        self._times.append(times)

    def drop(self, reason: str) -> None:
        """Count a frame that was given up."""
        self._dropped[reason] += 1
        self._in_flight -= 1

    def fail(self, count: int) -> None:
        """Count frames lost to a fault."""
        self._failed += count
        self._in_flight -= count

    def snapshot(self) -> StatisticsSnapshot:
        """Return the counts and the times of the last frames."""
        return StatisticsSnapshot(
            self._received,
            self._published,
            dict(self._dropped),
            self._failed,
            self._in_flight,
            tuple(self._times),
            self._received_s,
            self._published_s,
        )
