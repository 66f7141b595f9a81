# SPDX-License-Identifier: Apache-2.0
"""What the writers of one file of a bag have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from trt_perception.bags.bag import BagMessage

# Not world-writable, whatever the umask is: the node refuses such files.
_MODE = 0o664


class StorageFile(Protocol):
    """A file of a bag that is open for writing. Its methods may raise OSError."""

    def write(self, topic_index: int, message: BagMessage) -> None:
        """Append a message of the topic with this index."""

    def finish(self) -> None:
        """Write all indexes, wait until the file is on the disk, and close it."""

    def abandon(self) -> None:
        """Close the unfinished file. Calling it after `finish` does no harm."""


def create_file(path: Path) -> int:
    """Return the descriptor of a new file.

    Raises:
        OSError: the file exists or cannot be made.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
