# SPDX-License-Identifier: Apache-2.0
"""Passes log messages of the package to the ROS log, where foreign text cannot forge lines."""

from __future__ import annotations

import logging

from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.logging import LoggingSeverity
from rclpy.node import Node

from trt_perception.files.plain_text import escape_controls


def log_text(text: object) -> str:
    """Return a message for the log, indented so that no line looks like a separate message."""
    return escape_controls(text).replace('\n', '\n    ')


def camera_logger(node: Node, camera: str) -> RcutilsLogger:
    """Return the logger of a camera. Each line shows the node's name, then the camera's name.

    Args:
        camera: name of the camera; an empty name gives the node's own logger.
    """
    log: RcutilsLogger = node.get_logger()
    return log.get_child(camera) if camera else log


def log_at(logger: RcutilsLogger, severity: int, message: str) -> None:
    """Log a message at a severity of Python's logging.

    rclpy allows only one severity for each calling line, so each severity has a line here.
    """
    text = log_text(message)
    if severity >= logging.ERROR:
        logger.error(text)
    elif severity >= logging.WARNING:
        logger.warning(text)
    elif severity >= logging.INFO:
        logger.info(text)
    else:
        logger.debug(text)


class NodeLog(logging.Handler):
    """Passes messages of Python's logging to the ROS log, including messages of TensorRT.

    Attributes:
        shown_warnings: warnings logged with ``extra={'show': True}`` since the last call of
            ``clear_shown_warnings``. The node shows each once on /diagnostics, too.
    """

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__()
        self._logger = logger
        self.shown_warnings: tuple[str, ...] = ()
        self._package = logging.getLogger('trt_perception')
        self._package.addHandler(self)
        self._level = self._package.level
        debug = logger.get_effective_level() <= LoggingSeverity.DEBUG
        self._package.setLevel(logging.DEBUG if debug else logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record to the ROS log."""
        text = log_text(record.getMessage())
        if getattr(record, 'show', False) and text not in self.shown_warnings:
            self.shown_warnings = (*self.shown_warnings[-3:], text)
        log_at(self._logger, record.levelno, record.getMessage())

    def clear_shown_warnings(self) -> None:
        """Remove all warnings from `shown_warnings`."""
        self.shown_warnings = ()

    def close(self) -> None:
        """Stop passing messages to the ROS log."""
        self._package.removeHandler(self)
        self._package.setLevel(self._level)
        super().close()
