"""What is wrong with an active node at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ['Level', 'Problem']


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
