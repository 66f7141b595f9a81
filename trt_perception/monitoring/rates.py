# SPDX-License-Identifier: Apache-2.0
"""Rates of periodic events, reported only while the intervals are regular."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

# Updates at shorter intervals are ignored, because the intervals of single events vary.
_MIN_UPDATE_INTERVAL_S: Final = 0.4
# A rate needs this duration and number of events. The rates between two updates may differ by this
# factor at most.
_MIN_DURATION_S: Final = 0.9
_MIN_EVENTS: Final = 3
_MAX_RATE_RATIO: Final = 1.5


class EvenRate:
    """Estimates the rate of events that the caller counts, while their intervals are regular.

    The estimate uses the times of events. The time between two calls would be wrong, because it
    includes parts of intervals at both ends.
    """

    def __init__(self, updates: int = 20) -> None:
        self._updates: deque[tuple[int, float]] = deque(maxlen=updates)

    def update(self, count: int, last_s: float) -> None:
        """Add the number of events until now, and the time of the last event in seconds."""
        if count and (
            not self._updates or last_s - self._updates[-1][1] >= _MIN_UPDATE_INTERVAL_S
        ):
            self._updates.append((count, last_s))

    def reset(self) -> None:
        """Ignore all earlier updates."""
        self._updates.clear()

    def hz(self) -> float | None:
        """Return the rate over the last 0.9 s or more, with at least three events.

        The result is None after too few events, or with irregular intervals.
        """
        parts: list[tuple[int, float]] = []
        events, seconds = 0, 0.0
        for (count, last_s), (later, later_s) in pairwise(reversed(self._updates)):
            parts.append((count - later, last_s - later_s))
            events, seconds = events + parts[-1][0], seconds + parts[-1][1]
            if len(parts) > 1 and seconds >= _MIN_DURATION_S and events >= _MIN_EVENTS:
                rates = [part / max(part_s, 1e-9) for part, part_s in parts]
                return events / seconds if max(rates) <= _MAX_RATE_RATIO * min(rates) else None
        return None
