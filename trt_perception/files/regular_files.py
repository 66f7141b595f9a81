"""Files that somebody else may have put there, read whole: regular ones only, of limited size.

A FIFO would be waited for without end, a device has none, and a file of gigabytes takes as much
memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from trt_perception.errors import ConfigError

__all__ = ['open_regular', 'read_regular', 'read_user_file']


def open_regular(path: Path) -> tuple[BinaryIO, os.stat_result]:
    """Open a file for reading; return it and its status, of what was really opened.

    Raises:
        OSError: it cannot be opened, or is no regular file; ``strerror`` says why, in words.
    """
    try:
        # Non-blocking, so that a FIFO is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, 'no file can have this name') from error
    # Closed by hand until it is known to be a file: open() raises on a directory's descriptor.
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
        path: the file, links are followed.
        limit: most bytes; a larger file is not read.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; ``strerror`` says why.
    """
    file, status = open_regular(path)
    with file:
        # It may grow meanwhile, and files of /proc have no size.
        content = b'' if status.st_size > limit else file.read(limit + 1)
    size = max(status.st_size, len(content))
    if size > limit:
        raise OSError(errno.EFBIG, f'expected at most {limit} bytes (got {size})')
    return content


def read_user_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a file that a person named; see read_regular.

    Raises:
        ConfigError: it cannot be read, is no regular file, or is larger.
    """
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise ConfigError(str(path), f'cannot be read: {error.strerror}') from error
