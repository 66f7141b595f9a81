"""Lets code check between long native calls whether the process was asked to end.

Loading a model makes calls into CUDA, TensorRT and the compiler, which may take seconds each. No
call can be stopped, and TensorRT's callbacks must not raise. So the code checks between calls.

A second signal within a second is a duplicate: launch, systemd and timeout forward signals that
the whole process group already received. A duplicate must not disturb an orderly end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Final

from trt_perception.errors import InterruptionError

__all__ = [
    *('ENDING_SIGNALS', 'REPEATED_SIGNAL_S', 'Interruption'),
    *('check_interruption', 'ignore_signals', 'interrupt', 'is_interrupted'),
]

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
REPEATED_SIGNAL_S: Final = 1.0

_END_REQUESTED: Final = threading.Event()


def interrupt() -> None:
    """Record that the process was asked to end. Any thread may call this function."""
    _END_REQUESTED.set()


def is_interrupted() -> bool:
    """Return whether the process was asked to end."""
    return _END_REQUESTED.is_set()


def check_interruption() -> None:
    """Raise if the process was asked to end. Call this function between long native calls.

    Raises:
        InterruptionError: the process was asked to end.
    """
    if is_interrupted():
        raise InterruptionError('this process', 'was asked to end')


class Interruption:
    """A signal handler that raises KeyboardInterrupt once.

    After the first signal, the handler handles both SIGINT and SIGTERM. A signal within the next
    second does nothing. A later signal ends a hanging process.

    Limitation: the exception is lost if Python cannot raise, as in a finalizer or a callback
    from C. A second signal then ends the process.

    Args:
        exit_code: exit code of a process that a later signal ends.
        message: written to standard error at the first signal, unchanged.
    """

    def __init__(self, exit_code: int, message: str = '') -> None:
        self._exit_code = exit_code
        self._message = message
        self._first_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._first_s is None:
            self._first_s = time.monotonic()
            for each in ENDING_SIGNALS:
                signal.signal(each, self)
            with contextlib.suppress(OSError):
                # The signal may have interrupted a print call, and print is not reentrant.
                os.write(2, self._message.encode())
            raise KeyboardInterrupt
        if time.monotonic() - self._first_s > REPEATED_SIGNAL_S:
            os._exit(self._exit_code)


def ignore_signals() -> None:
    """Ignore the ending signals, so that they cannot change the exit code at the end.

    Only the main thread may call this function. Otherwise the interpreter's shutdown would restore
    the default handlers, with which a signal kills the process.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
