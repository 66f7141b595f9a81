"""Parts of a process's life that end the process where they take for ever."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ['EXIT_TIME_LIMIT', 'time_limit']

#: Exit code of a process that did not come through a bounded part.
EXIT_TIME_LIMIT: Final = 1
_STDERR: Final = 2
# So much later the process is ended without the interpreter's lock.
_FALLBACK_DELAY_S: Final = 2.0


@contextlib.contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Leave the process with exit code 1 where the block takes longer, and say where it hangs.

    The middleware may not return from making or destroying a node, and rclpy calls it with the
    interpreter's lock held: no signal is seen and no thread of Python runs then. So faulthandler's
    thread, which needs no lock, ends the process where the sentence cannot be said.

    Args:
        what: takes so long, for the sentence.
        seconds: that it may take.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            print(f'error: {what} hangs since {seconds:g} s; leaving', file=sys.stderr, flush=True)
            faulthandler.dump_traceback(_STDERR)
            os._exit(EXIT_TIME_LIMIT)

    with contextlib.suppress(RuntimeError):  # no thread is left: this part is the way out of it
        faulthandler.dump_traceback_later(seconds + _FALLBACK_DELAY_S, file=_STDERR, exit=True)
        threading.Thread(target=watch, name='time_limit', daemon=True).start()
    try:
        yield
    finally:
        done.set()
        faulthandler.cancel_dump_traceback_later()
