"""The problem of an active node or camera at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = ['Level', 'Problem', 'with_notes', 'with_unnamed_class']


class Level(IntEnum):
    """The levels of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class Problem:
    """The state of a camera or a node at one moment.

    Attributes:
        level: severity of the problem.
        kind: short name of the problem; empty without a problem.
        message: the observation and the fix.
        late_stage: the stage that cannot keep up, if images are lost or replaced; may be empty.
    """

    level: Level
    kind: str
    message: str
    late_stage: str = ''


def with_notes(problem: Problem, same_name: str, notes: Sequence[str]) -> Problem:
    """Return a problem, combined with the problems of the whole node.

    Args:
        problem: problem of a camera, or of all cameras; its kind may be empty.
        same_name: sentence about other nodes with this node's name; empty if there are none.
        notes: sentences about less urgent problems; shown only if the problem has no kind.
    """
    if notes and not problem.kind:
        problem = Problem(Level.WARN, 'note', '; '.join(notes))
    if not same_name or problem.level == Level.ERROR:
        return problem
    also = [problem.message] if problem.kind else []
    return Problem(Level.WARN, 'same_name', '; '.join([same_name, *also]))


def with_unnamed_class(problem: Problem, error: str) -> Problem:
    """Return a problem of a camera, combined with the error of a class that has no name.

    Args:
        problem: problem of the camera; its kind may be empty.
        error: error of the first image with such a class; empty if there was none.
    """
    if not error:
        return problem
    message = f'a detected class has no name, so all class names may be wrong: {error}'
    if problem.level == Level.ERROR:
        return Problem(Level.ERROR, problem.kind, f'{problem.message}; {message}')
    also = [problem.message] if problem.kind else []
    return Problem(Level.ERROR, 'unnamed_class', '; '.join([message, *also]))
