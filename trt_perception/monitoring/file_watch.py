# SPDX-License-Identifier: Apache-2.0
"""Detects that a file was replaced or removed."""

from __future__ import annotations

import os


class FileWatch:
    """Detects that a file was replaced or removed since this object was created.

    Args:
        path: path of the file; a leading ``~`` is the home folder.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.expanduser(path)
        self._identity = self._identify()

    def describe_change(self) -> str:
        """Return a sentence about the change; empty if the file is unchanged."""
        identity = self._identify()
        if identity == self._identity:
            return ''
        what = 'was removed' if identity is None else 'was replaced'
        return (
            f'{self.path} {what} after it was loaded; the node still uses the loaded model; to '
            'load the current file, call cleanup and configure'
        )

    def _identify(self) -> tuple[int, int, int, int] | None:
        try:
            status = os.stat(self.path)
        except (OSError, ValueError):
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
