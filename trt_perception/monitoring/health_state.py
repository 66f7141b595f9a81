"""The health of an active node or camera at one moment: its problem, or that it has none."""

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
class HealthState:
    """The health of a camera or a node at one moment. It has one problem, or none.

    Attributes:
        level: severity of the problem; OK without a problem.
        kind: short name of the problem; empty without a problem.
        late_stage: the stage that cannot keep up, if images are lost or replaced; may be empty.
    """

    level: Level
    kind: str
    message: str
    late_stage: str = ''


def with_clock_problem(state: HealthState, problem: str) -> HealthState:
    """Return the health state of a camera, or a problem of its clock if it has no other problem.

    Args:
        problem: sentence about the clock of the camera's stamps; empty if they can be compared.
    """
    if not problem or state.kind:
        return state
    return HealthState(Level.WARN, 'clock', problem)


def with_notes(state: HealthState, same_name: str, notes: Sequence[str]) -> HealthState:
    """Return a health state, combined with the problems of the whole node.

    Args:
        same_name: sentence about other nodes with this node's name; empty if there are none.
        notes: sentences about less urgent problems; shown only if `state` has no problem.
    """
    if notes and not state.kind:
        state = HealthState(Level.WARN, 'note', '; '.join(notes))
    if not same_name or state.level == Level.ERROR:
        return state
    also = [state.message] if state.kind else []
    return HealthState(Level.WARN, 'same_name', '; '.join([same_name, *also]))


def with_unnamed_class(state: HealthState, error: str) -> HealthState:
    """Return the health state of a camera, combined with the error of a class that has no name.

    Args:
        error: error of the first image with such a class; empty if there was none.
    """
    if not error:
        return state
    message = f'a detected class has no name, so all class names may be wrong: {error}'
    if state.level == Level.ERROR:
        return HealthState(Level.ERROR, state.kind, f'{state.message}; {message}')
    also = [state.message] if state.kind else []
    return HealthState(Level.ERROR, 'unnamed_class', '; '.join([message, *also]))
