"""Whether the process was asked to end, for whoever makes one long native call after another.

Loading a model is a row of calls into CUDA, TensorRT and the compiler that may take seconds each.
None can be stopped, and no exception may come in the middle of one, where TensorRT calls back: so
what was asked for is looked at in between.
"""

from __future__ import annotations

import threading
from typing import Final

from trt_perception.errors import InterruptionError

__all__ = ['check_interruption', 'interrupt', 'interrupted']

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
        raise InterruptionError('given up, because the process was asked to end')
