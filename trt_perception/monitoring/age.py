"""How old an image is when its detections are out, by the clock that stamped it."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

__all__ = ['AgeOfOutput']

# Two clocks that are synchronised agree to within a second; an older image is of a recording.
_AHEAD_NS: Final = 10**9
_BEHIND_NS: Final = 600 * 10**9
# One stamp that cannot be true is a slip; those of so many seconds are of another clock.
_PATIENCE_S: Final = 0.9
_NO_CLOCK: Final = (
    'use_sim_time is set and no clock is published on /clock, so nobody knows how old the '
    'detections are: let the simulator publish it, or ros2 bag play --clock, or set use_sim_time '
    'to false'
)


class AgeOfOutput:
    """Takes the stamps of images, and notices those that come from another clock than the node's.

    Args:
        window: the percentiles are those of so many images.
    """

    def __init__(self, window: int = 512) -> None:
        self._ages_ms: deque[float] = deque(maxlen=window)
        # Since when the stamps show no age, and why.
        self._doubt: tuple[float, str] | None = None

    def add_stamp(self, stamp_ns: int, clock_ns: int, time_s: float) -> None:
        """Take the stamp of an image whose detections are published.

        Args:
            stamp_ns: of the image; 0 is a camera without a clock, whose images have no age.
            clock_ns: the node's clock, 0 while it has no time yet.
            time_s: of a clock that only goes forward.
        """
        if not stamp_ns:
            self._ages_ms.append(math.nan)  # so that older ages leave the window
            self._doubt = None
            return
        age_ns = clock_ns - stamp_ns
        if clock_ns and -_AHEAD_NS <= age_ns <= _BEHIND_NS:
            self._doubt = None
            self._ages_ms.append(age_ns * 1e-6)
            return
        self._ages_ms.clear()
        since_s = time_s if self._doubt is None else self._doubt[0]
        self._doubt = since_s, _describe_clock_offset(age_ns) if clock_ns else _NO_CLOCK

    def ages_ms(self) -> list[float]:
        """Return the ages of those of the last images whose stamps have shown one."""
        return [age for age in list(self._ages_ms) if not math.isnan(age)]

    def clock_problem(self, time_s: float) -> str:
        """Return why there is no age and what to do, empty where nothing is wrong."""
        doubt = self._doubt
        return doubt[1] if doubt is not None and time_s - doubt[0] >= _PATIENCE_S else ''


def _describe_clock_offset(age_ns: int) -> str:
    where = 'behind' if age_ns > 0 else 'ahead of'
    return (
        f"the images are stamped {_span(abs(age_ns) * 1e-9)} {where} the node's clock, so nobody "
        'knows how old the detections are: synchronise the clocks of camera and node (chrony, '
        'PTP); play a recording with ros2 bag play --clock and the node with use_sim_time'
    )


def _span(seconds: float) -> str:
    for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
        if seconds >= 2 * size:
            return f'{seconds / size:.0f} {unit}'
    return f'{seconds:.0f} s'
