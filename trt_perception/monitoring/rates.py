"""Rates that may be said: of a stretch in which events came evenly, by their own times."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

__all__ = ['EvenRate']

# Looks closer than this are one: single events never come evenly.
_PART_S: Final = 0.4
# So much must be seen, and the parts of it must agree this well.
_AT_LEAST_S: Final = 0.9
_AT_LEAST_EVENTS: Final = 3
_AGREEMENT: Final = 1.5


class EvenRate:
    """The rate of events that somebody else counts, from looks at the count.

    Whoever divides a count by the time between two looks takes in a part of an interval where
    events begin, pause or end. So the times are those of the events, and a rate is given only
    where all parts of a stretch have the same one.

    Args:
        looks: so many are kept.
    """

    def __init__(self, looks: int = 20) -> None:
        self._looks: deque[tuple[int, float]] = deque(maxlen=looks)

    def look(self, count: int, last_s: float) -> None:
        """Take the number of events until now and the time of the last one, in seconds.

        May be called as often as one likes.
        """
        if count and (not self._looks or last_s - self._looks[-1][1] >= _PART_S):
            self._looks.append((count, last_s))

    def forget(self) -> None:
        """Begin anew: what was counted until now says nothing of what comes."""
        self._looks.clear()

    def hz(self) -> float | None:
        """Return events a second over the newest stretch of at least 0.9 s and three events.

        None where too few came, or not evenly.
        """
        parts: list[tuple[int, float]] = []
        events, seconds = 0, 0.0
        for (count, last_s), (later, later_s) in pairwise(reversed(self._looks)):
            parts.append((count - later, last_s - later_s))
            events, seconds = events + parts[-1][0], seconds + parts[-1][1]
            if len(parts) > 1 and seconds >= _AT_LEAST_S and events >= _AT_LEAST_EVENTS:
                rates = [part / max(part_s, 1e-9) for part, part_s in parts]
                return events / seconds if max(rates) <= _AGREEMENT * min(rates) else None
        return None
