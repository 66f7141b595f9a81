# SPDX-License-Identifier: Apache-2.0
"""Read complete regular files of limited size.

Other users may have made the file. Opening a FIFO would block, reading a device would never end,
and a file of gigabytes would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from trt_perception.errors import ConfigError


def real_path(path: Path) -> Path:
    """Return the absolute path without links. A loop of links stays as it is.

    `Path.resolve` raises RuntimeError for a loop before Python 3.13.
    """
    return Path(os.path.realpath(path))


def open_regular(path: Path) -> tuple[BinaryIO, os.stat_result]:
    """Open a file for reading. Return the file and the status of the opened file.

    Raises:
        OSError: the file cannot be opened, or is not a regular file; ``strerror`` gives the
            reason.
    """
    try:
        # Non-blocking, because opening a FIFO would block. The check below refuses a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, 'no file can have this name') from error
    # Close the descriptor by hand, because open() raises an error for a directory's descriptor.
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = stat.filemode(status.st_mode)
            raise OSError(errno.EINVAL, f'expected a regular file (got {kind})')
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, 'rb'), status


def read_regular(path: Path, limit: int) -> bytes:
    """Return the bytes of a file.

    Args:
        path: the file. Links are followed.
        limit: maximum size in bytes.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file; ``strerror``
            gives the reason.
    """
    file, status = open_regular(path)
    with file:
        # The file may grow while it is read, and the size of files in /proc is 0.
        content = b'' if status.st_size > limit else file.read(limit + 1)
    size = max(status.st_size, len(content))
    if size > limit:
        raise OSError(errno.EFBIG, f'expected at most {limit} bytes (got {size})')
    return content


def read_user_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a file that the user chose, with the checks of ``read_regular``.

    Raises:
        ConfigError: the file cannot be read, is too large, or is not a regular file.
    """
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise ConfigError(str(path), f'cannot be read: {error.strerror}') from error
