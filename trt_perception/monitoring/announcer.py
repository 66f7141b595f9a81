# SPDX-License-Identifier: Apache-2.0
"""Decides which problems of the watchdog are logged."""

from __future__ import annotations

from typing import Final

from trt_perception.monitoring.status_summary import Level, StatusSummary

# A problem that lasts is logged every _REPEAT_S. A problem that recurs is logged at most every
# _QUIET_S.
_REPEAT_S: Final = 30.0
_QUIET_S: Final = 10.0


# What ended, for kinds whose names do not say this.
_WORDS: Final = {'engine_slower': 'the camera was faster than the model'}


class Announcer:
    """Makes log lines for new problems, lasting problems, and recovery from a problem."""

    def __init__(self) -> None:
        self._last_kind = ''
        self._logged_s: dict[str, float] = {}
        # Kind of the problem that was logged and still lasts, and the time of its first log line.
        self._current: tuple[str, float] | None = None

    def due_line(self, summary: StatusSummary, time_s: float) -> tuple[Level, str] | None:
        """Return level and text of the line to log now; None if no line is due."""
        fresh = summary.kind != self._last_kind
        self._last_kind = summary.kind
        if summary.kind in ('', 'note'):  # a note is logged once, where it is found
            if self._current is None:
                return None
            (kind, since_s), self._current = self._current, None
            seconds = time_s - since_s
            words = _WORDS.get(kind, kind.replace('_', ' '))
            now = '' if summary.kind else f': {summary.message}'
            return Level.OK, f'recovered after {seconds:.1f} s ({words}){now}'
        since_logged_s = time_s - self._logged_s.get(summary.kind, float('-inf'))
        if since_logged_s < (_QUIET_S if fresh else _REPEAT_S):
            return None
        self._logged_s[summary.kind] = time_s
        if self._current is None or self._current[0] != summary.kind:
            self._current = summary.kind, time_s
        return summary.level, summary.message
