# SPDX-License-Identifier: Apache-2.0
"""Standard output and error whose writes never raise, so that a full disk stops no program.

With Python's own streams, ``print`` may raise in the middle of the work, or Python ends with exit
code 120 and an unclear message.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

_LAST_STREAM_FD: Final = 2


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed before the start.

    Otherwise the next opened file or pipe gets the number of the stream. Text of native libraries
    for standard error then goes into this file or pipe. Call this function first in a program.
    """
    opened = 0
    while opened <= _LAST_STREAM_FD:
        opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
        if opened <= _LAST_STREAM_FD:
            os.set_inheritable(opened, True)
    os.close(opened)


class GuardedStream:
    """A text stream that drops text if writing fails. It forwards all other attributes.

    Args:
        stream: standard output or error; None if it was closed before the start.

    Attributes:
        error: the first error; None without an error.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it if writing fails."""
        try:
            if self._stream is not None:
                self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Flush the written text, or drop it if writing fails."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """Redirect all further output to /dev/null, including buffered text."""
        self.error = self.error or error
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def guarded_streams() -> Iterator[GuardedStream]:
    """Replace sys.stdout and sys.stderr by guarded streams within the block.

    Yield the guarded standard output. Both streams are flushed at the end of the block.
    """
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
    """Return why output is missing, or '' if all output was written.

    A closed pipe is not an error: its reader, such as ``head``, needed no more output.
    """
    if output.error is None or output.error.errno == errno.EPIPE:
        return ''
    return output.error.strerror or str(output.error)
