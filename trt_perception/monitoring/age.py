# SPDX-License-Identifier: Apache-2.0
"""Measures the age of output: the time from the stamp of an image to its publication."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

# Synchronised clocks differ by less than a second. An image older than 10 min is a recording.
_MAX_AHEAD_NS: Final = 10**9
_MAX_BEHIND_NS: Final = 600 * 10**9
# A single impossible stamp is ignored. Impossible stamps for this long come from another clock.
_REPORT_DELAY_S: Final = 0.9
_NO_CLOCK: Final = (
    'use_sim_time is set, but no publisher sends /clock, so the age of the results is unknown: '
    'publish /clock with the simulator or ros2 bag play --clock, or set use_sim_time to false'
)


class AgeOfOutput:
    """Collects the ages of published images, and detects stamps of another clock."""

    def __init__(self, window: int = 512) -> None:
        self._ages_ms: deque[float] = deque(maxlen=window)
        # Time of the first impossible stamp, and the explanation.
        self._doubt: tuple[float, str] | None = None

    def add_stamp(self, stamp_ns: int, clock_ns: int, time_s: float) -> None:
        """Add the stamp of an image whose results are published now.

        Args:
            stamp_ns: stamp of the image; 0 if the camera has no clock. The age is then unknown.
            clock_ns: time of the node's clock; 0 if this clock has no time yet.
            time_s: time of a monotonic clock in seconds.
        """
        if not stamp_ns:
            self._ages_ms.append(math.nan)  # pushes older ages out of the window
            self._doubt = None
            return
        age_ns = clock_ns - stamp_ns
        if clock_ns and -_MAX_AHEAD_NS <= age_ns <= _MAX_BEHIND_NS:
            self._doubt = None
            self._ages_ms.append(age_ns * 1e-6)
            return
        self._ages_ms.clear()
        since_s = time_s if self._doubt is None else self._doubt[0]
        self._doubt = since_s, _describe_clock_offset(age_ns) if clock_ns else _NO_CLOCK

    def ages_ms(self) -> list[float]:
        """Return the known ages of the last images in milliseconds."""
        return [age for age in list(self._ages_ms) if not math.isnan(age)]

    def clock_problem(self, time_s: float) -> str:
        """Return why the ages are unknown and how to fix the clocks; empty without a problem."""
        doubt = self._doubt
        return doubt[1] if doubt is not None and time_s - doubt[0] >= _REPORT_DELAY_S else ''


def _describe_clock_offset(age_ns: int) -> str:
    where = 'behind' if age_ns > 0 else 'ahead of'
    return (
        f'the stamps of the images are {_duration_text(abs(age_ns) * 1e-9)} {where} the '
        "node's clock, so the age of the results is unknown: synchronise "
        'the clocks of camera and node (chrony, '
        'PTP); for a recording, use ros2 bag play --clock and set use_sim_time to true'
    )


def _duration_text(seconds: float) -> str:
    for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
        if seconds >= 2 * size:
            return f'{seconds / size:.0f} {unit}'
    return f'{seconds:.0f} s'
