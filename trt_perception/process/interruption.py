"""Whether the process was asked to end, for whoever makes one long native call after another.

Loading a model is a row of calls into CUDA, TensorRT and the compiler that may take seconds each.
None can be stopped, and no exception may come in the middle of one, where TensorRT calls back: so
what was asked for is looked at in between.

A signal that follows another within a second is the same once more: launch, systemd and timeout
pass on what the whole process group was sent. It must not disturb what the first one ends.
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
    """Note that the process was asked to end; from any thread."""
    _END_REQUESTED.set()


def is_interrupted() -> bool:
    """Return whether the process was asked to end."""
    return _END_REQUESTED.is_set()


def check_interruption() -> None:
    """Go on, or give up between two long calls.

    Raises:
        InterruptionError: the process was asked to end.
    """
    if is_interrupted():
        raise InterruptionError('this process', 'was asked to end')


class Interruption:
    """A handler of signals that raises KeyboardInterrupt, once.

    After the first it handles both signals that end a process: within a second they do nothing,
    later one ends a process that hangs.

    Non-guarantee: where Python cannot raise (a finalizer, a callback from C) the exception is
    lost. A second signal then ends the process.

    Args:
        exit_code: of a process that hangs.
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
            with contextlib.suppress(OSError):  # not by print, which may be at work already
                os.write(2, self._message.encode())
            raise KeyboardInterrupt
        if time.monotonic() - self._first_s > REPEATED_SIGNAL_S:
            os._exit(self._exit_code)


def ignore_signals() -> None:
    """Let no signal change the exit code any more; for the main thread, when all is done.

    The interpreter's end gives each signal its default back, of which the process would die.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
