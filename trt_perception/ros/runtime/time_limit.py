# SPDX-License-Identifier: Apache-2.0
"""Ends the process if one of its steps does not return."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
from collections.abc import Iterator
from typing import Final

from trt_perception.process.hard_exit import hard_exit

#: Exit code of a process that exceeded a time limit.
EXIT_TIME_LIMIT: Final = 1
_STDERR_FD: Final = 2
# The fallback, which needs no interpreter lock, ends the process this much later.
_FALLBACK_DELAY_S: Final = 2.0


@contextlib.contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Exit with code 1 if the block exceeds the limit, and print where each thread hangs.

    The middleware may never return from creating or destroying a node. rclpy then keeps the
    interpreter's lock, so that no signal handler and no Python thread runs. In this case the
    thread of faulthandler, which needs no lock, ends the process without the error message.

    Args:
        what: name of the block in the error message.
        seconds: longest allowed duration of the block.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            print(
                f'error: {what} has not returned for {seconds:g} s; exiting',
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback(_STDERR_FD)
            hard_exit(EXIT_TIME_LIMIT)

    with contextlib.suppress(
        RuntimeError
    ):  # the system cannot start a thread: run without a limit
        faulthandler.dump_traceback_later(seconds + _FALLBACK_DELAY_S, file=_STDERR_FD, exit=True)
        threading.Thread(target=watch, name='time_limit', daemon=True).start()
    try:
        yield
    finally:
        done.set()
        faulthandler.cancel_dump_traceback_later()
