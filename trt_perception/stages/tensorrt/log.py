# SPDX-License-Identifier: Apache-2.0
"""Forward TensorRT's messages to Python's log, and keep errors and warnings for exceptions.

TensorRT uses one logger per process. While a builder or runtime exists, TensorRT ignores any other
logger and warns. Each TensorRT module therefore gets one logger, and each ``TensorRtLog`` listens
to this logger.
Limitation: two listeners at the same time receive each other's messages.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import Any, Final

from trt_perception.files.plain_text import escape_controls

_LOG: Final = logging.getLogger('trt_perception.tensorrt')
_MAX_KEPT: Final = 50
_LOGGERS: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()
_LOCK: Final = threading.Lock()


class TensorRtLog:
    """The errors and warnings of TensorRT since the construction of this object.

    Args:
        quiet: log errors at level DEBUG, because the caller puts them into an exception.
        verbose: log TensorRT's messages about its own steps at level INFO.

    Attributes:
        logger: logger for TensorRT's constructors, shared by all objects of this class.
        errors: the last errors, at most 50.
        warnings: the last different warnings, at most 50.
    """

    def __init__(self, trt: Any, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.errors: deque[str] = deque(maxlen=_MAX_KEPT)
        self.warnings: deque[str] = deque(maxlen=_MAX_KEPT)
        with _LOCK:
            if trt not in _LOGGERS:
                _LOGGERS[trt] = _make_logger(trt)
            self.logger = _LOGGERS[trt]
        self.logger.listen(self)

    def last_errors(self, count: int = 8) -> str:
        """Return the last errors in one line, or ``nothing`` without errors."""
        return ' | '.join(list(self.errors)[-count:]) or 'nothing'

    def add(self, level: int, message: str) -> None:
        """Keep an error or a warning. Ignore other levels."""
        if level >= logging.ERROR:
            self.errors.append(message)
        elif level == logging.WARNING and message not in self.warnings:
            self.warnings.append(message)


def _make_logger(trt: Any) -> Any:
    """Return an instance of a subclass of TensorRT's ILogger. All threads may call it."""
    levels = {
        'INTERNAL_ERROR': logging.ERROR,
        'ERROR': logging.ERROR,
        'WARNING': logging.WARNING,
        'INFO': logging.DEBUG,  # memory use and duration of TensorRT's steps
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
            message = escape_controls(message)  # escape layer names from the model
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
