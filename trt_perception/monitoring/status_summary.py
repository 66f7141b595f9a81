# SPDX-License-Identifier: Apache-2.0
"""The summary of the status of a node or camera: level and message, as in diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """The levels of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class StatusSummary:
    """Level and message of a camera or a node at one moment. It has one problem, or none.

    Attributes:
        level: severity of the problem; OK without a problem.
        kind: short name of the problem; empty without a problem.
        late_stage: the stage that cannot keep up, if images are lost or replaced; may be empty.
    """

    level: Level
    kind: str
    message: str
    late_stage: str = ''


def with_clock_problem(summary: StatusSummary, problem: str) -> StatusSummary:
    """Return the summary of a camera, or a problem of its clock if it has no other problem.

    Args:
        problem: sentence about the clock of the camera's stamps; empty if they can be compared.
    """
    if not problem or summary.kind:
        return summary
    return StatusSummary(Level.WARN, 'clock', problem)


def with_notes(summary: StatusSummary, same_name: str, notes: Sequence[str]) -> StatusSummary:
    """Return a summary, combined with the problems of the whole node.

    Args:
        same_name: sentence about other nodes with this node's name; empty if there are none.
        notes: sentences about less urgent problems; shown only if `summary` has no problem.
    """
    if notes and not summary.kind:
        summary = StatusSummary(Level.WARN, 'note', '; '.join(notes))
    if not same_name or summary.level == Level.ERROR:
        return summary
    also = [summary.message] if summary.kind else []
    return StatusSummary(Level.WARN, 'same_name', '; '.join([same_name, *also]))


def with_unnamed_class(summary: StatusSummary, error: str) -> StatusSummary:
    """Return the summary of a camera, combined with the error of a class that has no name.

    Args:
        error: error of the first image with such a class; empty if there was none.
    """
    if not error:
        return summary
    message = (
        f'the model reports a class that has no name, so all class names may be wrong: {error}'
    )
    if summary.level == Level.ERROR:
        return StatusSummary(Level.ERROR, summary.kind, f'{summary.message}; {message}')
    also = [summary.message] if summary.kind else []
    return StatusSummary(Level.ERROR, 'unnamed_class', '; '.join([message, *also]))
