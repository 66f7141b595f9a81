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
import sys
import threading
import time
from types import FrameType
from typing import Final

from trt_perception.errors import InterruptionError

__all__ = [
    *('ENDING_SIGNALS', 'SAME_SIGNAL_S', 'Interruption'),
    *('check_interruption', 'ignore_signals', 'interrupt', 'interrupted'),
]

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SAME_SIGNAL_S: Final = 1.0
_AGAIN_S: Final = 0.01

_ASKED: Final = threading.Event()


def interrupt() -> None:
    """Note that the process was asked to end; from any thread."""
    _ASKED.set()


def interrupted() -> bool:
    """Tell whether it was."""
    return _ASKED.is_set()


def check_interruption() -> None:
    """Go on, or give up between two long calls.

    Raises:
        InterruptionError: the process was asked to end.
    """
    if interrupted():
        raise InterruptionError('this process', 'was asked to end')


class Interruption:
    """A handler of signals that raises KeyboardInterrupt, once.

    After the first it handles both signals that end a process: within a second they do nothing,
    later one ends a process that hangs. Where Python can raise nothing (a finalizer, a callback
    from C) the exception is lost, so it is raised again a moment later.

    Args:
        exit_code: of a process that hangs.
        say: written to standard error at the first, as it stands.
    """

    def __init__(self, exit_code: int, say: str = '') -> None:
        self._exit_code = exit_code
        self._say = say
        self._first_s: float | None = None
        self._lost = False

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._first_s is None:
            self._first_s = time.monotonic()
            for each in ENDING_SIGNALS:
                signal.signal(each, self)
            sys.unraisablehook = self._note_lost
            with contextlib.suppress(OSError):  # not by print, which may be at work already
                os.write(2, self._say.encode())
            raise KeyboardInterrupt
        if self._lost:
            self._lost = False
            raise KeyboardInterrupt
        if time.monotonic() - self._first_s > SAME_SIGNAL_S:
            os._exit(self._exit_code)

    def _note_lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Have a lost KeyboardInterrupt raised again, once the main thread is out of here."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        self._lost = True
        main = threading.main_thread().ident
        assert main is not None
        again = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT))
        again.daemon = True
        again.start()


def ignore_signals() -> None:
    """Let no signal change the exit code any more; for the main thread, when all is done.

    The interpreter's end gives each signal its default back, of which the process would die.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
