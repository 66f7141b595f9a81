"""Standard output and error that fail in words: a full disk behind ``>`` must stop no work.

Without this a print raises in the middle of whatever it reports, or Python ends with exit
code 120 and a message that names nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ['GuardedStream', 'guarded_streams', 'lost_output_reason']


class GuardedStream:
    """A text stream that goes on when it cannot be written; all else is the stream's own.

    Args:
        stream: standard output or error; None where it was closed before the start.

    Attributes:
        error: what went wrong first, None while nothing has.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write, or drop the text where that fails."""
        try:
            if self._stream is not None:
                self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush what was written before."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """Let everything go nowhere from now on, also what still lies in the buffer."""
        self.error = self.error or error
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def guarded_streams() -> Iterator[GuardedStream]:
    """Guard both streams within; gives standard output's guard, flushed at the end."""
    before = sys.stdout, sys.stderr
    output, errors = GuardedStream(sys.stdout), GuardedStream(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = before


def lost_output_reason(output: GuardedStream) -> str:
    """Return why output is missing, '' where none is or nobody wanted it.

    A reader that closed the pipe, as ``head`` does, has read what it wanted.
    """
    if output.error is None or output.error.errno == errno.EPIPE:
        return ''
    return output.error.strerror or str(output.error)
