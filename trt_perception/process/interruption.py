# SPDX-License-Identifier: Apache-2.0
"""Lets code check between long native calls whether the process was asked to end.

Loading a model makes calls into CUDA, TensorRT and the compiler, which may take seconds each. No
call can be stopped, and TensorRT's callbacks must not raise. So the code checks between calls.

A second signal within a second is a duplicate: launch, systemd and timeout forward signals that
the whole process group already received. A duplicate must not disturb an orderly end.

SIGHUP ends a process like the other signals, unless it was ignored at the start (nohup).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from trt_perception.errors import InterruptionError
from trt_perception.process.hard_exit import hard_exit

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEATED_SIGNAL_S: Final = 1.0

# time.monotonic() of the first request to end.
_REQUESTED_S: Final[list[float]] = []
_RUNNING_STEPS: Final[list[str]] = []


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end this process: all but an ignored SIGHUP.

    nohup ignores SIGHUP, so that a closed terminal does not end the process.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [each for each in ENDING_SIGNALS if each != signal.SIGHUP or not is_ignored]


def interrupt() -> None:
    """Record that the process was asked to end. Any thread may call this function."""
    _REQUESTED_S.append(time.monotonic())


def is_interrupted() -> bool:
    """Return whether the process was asked to end."""
    return bool(_REQUESTED_S)


def interrupted_for_s() -> float:
    """Return the seconds since the process was first asked to end; 0 before."""
    return time.monotonic() - _REQUESTED_S[0] if _REQUESTED_S else 0.0


def check_interruption() -> None:
    """Raise if the process was asked to end. Call this function between long native calls.

    Raises:
        InterruptionError: the process was asked to end.
    """
    if is_interrupted():
        raise InterruptionError('this process', 'was asked to end')


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Name a step that may take long. The name appears if the step does not return at the end."""
    _RUNNING_STEPS.append(what)
    try:
        yield
    finally:
        _RUNNING_STEPS.remove(what)


def running_step() -> str:
    """Return the name of the step that has run longest; '' if no step runs."""
    # A copy, because other threads may end steps.
    return next(iter(_RUNNING_STEPS[:1]), '')


class Interruption:
    """A signal handler that raises KeyboardInterrupt once.

    After the first signal, the handler handles all ending signals. A signal within the next
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
        """Raise KeyboardInterrupt; after a second, end the process instead."""
        if self._first_s is None:
            self._first_s = time.monotonic()
            for each in ending_signals():
                signal.signal(each, self)
            with contextlib.suppress(OSError):
                # The signal may have interrupted a print call, and print is not reentrant.
                os.write(2, self._message.encode())
            raise KeyboardInterrupt
        if time.monotonic() - self._first_s > REPEATED_SIGNAL_S:
            hard_exit(self._exit_code)


def ignore_signals() -> None:
    """Ignore the ending signals, so that they cannot change the exit code at the end.

    Only the main thread may call this function. Otherwise the interpreter's shutdown would restore
    the default handlers, with which a signal kills the process.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
