"""What TensorRT says: passed on to Python's log, and remembered for errors.

TensorRT has one logger in a process: as long as a builder or runtime lives, it ignores another and
only warns. So each TensorRT module gets one logger here, and whoever wants to know what was said
in his time listens to it. Non-guarantee: of two who listen at once, each hears what the other
caused.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import Any, Final

from trt_perception.files.plain_text import escape_controls

__all__ = ['TensorRtLog']

_LOG: Final = logging.getLogger('trt_perception.tensorrt')
_KEEP: Final = 50
_LOGGERS: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()
_LOCK: Final = threading.Lock()


class TensorRtLog:
    """What TensorRT said since this was made.

    Args:
        trt: the TensorRT module.
        quiet: errors become part of an exception here, so they are none in Python's log.
        verbose: pass on what TensorRT says of its own steps too.

    Attributes:
        logger: for TensorRT's constructors; the same for all.
        errors: the last errors.
        warnings: the last warnings, each once.
    """

    def __init__(self, trt: Any, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.errors: deque[str] = deque(maxlen=_KEEP)
        self.warnings: deque[str] = deque(maxlen=_KEEP)
        with _LOCK:
            if trt not in _LOGGERS:
                _LOGGERS[trt] = _make_logger(trt)
            self.logger = _LOGGERS[trt]
        self.logger.listen(self)

    def last_errors(self, count: int = 8) -> str:
        """Return the last errors in one line, ``nothing`` where there are none."""
        return ' | '.join(list(self.errors)[-count:]) or 'nothing'

    def add(self, level: int, message: str) -> None:
        """Remember an error or a warning."""
        if level >= logging.ERROR:
            self.errors.append(message)
        elif level == logging.WARNING and message not in self.warnings:
            self.warnings.append(message)


def _make_logger(trt: Any) -> Any:
    """Return an object of TensorRT's class; it may be called from any thread."""
    levels = {
        'INTERNAL_ERROR': logging.ERROR,
        'ERROR': logging.ERROR,
        'WARNING': logging.WARNING,
        'INFO': logging.DEBUG,  # memory use and timing of its own steps
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._lock = threading.Lock()
            self._listeners: weakref.WeakSet[TensorRtLog] = weakref.WeakSet()

        def listen(self, listener: TensorRtLog) -> None:
            with self._lock:
                self._listeners.add(listener)

        def log(self, severity: Any, message: str) -> None:
            level = levels.get(severity.name, logging.NOTSET)
            message = escape_controls(message)  # it quotes names of the model's layers
            with self._lock:
                listeners = list(self._listeners)
            for listener in listeners:
                listener.add(level, message)
            if level < logging.WARNING and any(listener.verbose for listener in listeners):
                level = logging.INFO
            if level >= logging.ERROR and any(listener.quiet for listener in listeners):
                level = logging.DEBUG
            if level:
                _LOG.log(level, '%s', message)

    return Logger()
