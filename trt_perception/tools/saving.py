"""Writing the results of a tool one by one: what fails keeps nothing else from being written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from trt_perception.errors import TrtPerceptionError
from trt_perception.plain_text import plain

__all__ = ['Saver']


class Saver:
    """Says of each result whether it was saved.

    Args:
        tool: its name, for messages.

    Attributes:
        failed: something was not saved.
    """

    def __init__(self, tool: str) -> None:
        self.failed = False
        self._tool = tool

    def save(self, path: Path, write: Callable[[], str | None]) -> None:
        """Write a result.

        Args:
            path: where.
            write: does it, and may return what to say of it.
        """
        try:
            told = write()
        except TrtPerceptionError as error:
            self._not_saved(str(error))
        except OSError as error:
            self._not_saved(f'{path}: {error.strerror or error}')
        else:
            print(plain(told or f'saved {path}'), flush=True)

    def _not_saved(self, why: str) -> None:
        self.failed = True
        print(plain(f'{self._tool}: not saved: {why}'), file=sys.stderr)
