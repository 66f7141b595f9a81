"""What is wrong with an active node at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = ['Level', 'Problem', 'with_notes']


class Level(IntEnum):
    """As in diagnostic_msgs."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class Problem:
    """What holds at one moment.

    Attributes:
        level: how bad it is.
        kind: a short name, empty where nothing is wrong.
        message: what is seen and what to do.
    """

    level: Level
    kind: str
    message: str


def with_notes(problem: Problem, same_name: str, notes: Sequence[str]) -> Problem:
    """Return the problem with what concerns the whole node.

    Args:
        problem: of a camera, or of all cameras; its kind may be empty.
        same_name: that other nodes have this node's name; empty if none has.
        notes: sentences about other things that somebody should look at. A problem hides them.
    """
    if notes and not problem.kind:
        problem = Problem(Level.WARN, 'note', '; '.join(notes))
    if not same_name or problem.level == Level.ERROR:
        return problem
    also = [problem.message] if problem.kind else []
    return Problem(Level.WARN, 'same_name', '; '.join([same_name, *also]))
