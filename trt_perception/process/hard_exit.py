# SPDX-License-Identifier: Apache-2.0
"""Ends the process at once, without leaving files behind.

`os._exit` skips the cleanup of Python and of native libraries, which may hang.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from typing import Final, NoReturn

_STDERR_FD: Final = 2
_REMOVERS: Final[list[Callable[[], object]]] = []


def before_hard_exit(remove: Callable[[], object]) -> None:
    """Call a function before each `hard_exit`, for example to remove files.

    The function may run in any thread while other threads work. It must not wait for a lock.
    """
    _REMOVERS.append(remove)


def hard_exit(code: int, text: str = '') -> NoReturn:
    """Remove files, and end the process. Any thread may call this function.

    Args:
        code: the exit code.
        text: a line for standard error, unless nobody reads it.
    """
    for remove in _REMOVERS:
        with contextlib.suppress(Exception):
            remove()
    # Standard error may be a full pipe. Its lock in Python may be held by a thread that hangs.
    with contextlib.suppress(OSError):
        if text and select.select([], [_STDERR_FD], [], 0)[1]:
            os.write(_STDERR_FD, f'{text}\n'.encode())
    os._exit(code)
