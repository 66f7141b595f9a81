# SPDX-License-Identifier: Apache-2.0
"""Read files that can run code, after a check of owner and permissions.

Guarantee: the returned bytes come from a regular file (after links are resolved) that root or this
user owns and that is not world-writable. The checks apply to the opened file, not to its path, so
replacing the file between check and reading has no effect.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from trt_perception.errors import EngineError, MissingFileError
from trt_perception.files.regular_files import open_regular

MODEL_MAX_BYTES: Final = 16 * 1024**3
#: A protobuf message, such as an ONNX model, cannot be larger.
ONNX_MAX_BYTES: Final = 2 * 1024**3 - 1
_OWNERSHIP_REASON: Final = 'because loading the file can run code'


def read_checked(path: Path, limit: int = MODEL_MAX_BYTES) -> tuple[bytes, Path]:
    """Return a file's bytes and its resolved path, after the checks of ``open_checked``.

    Raises:
        MissingFileError: the file is missing, or is not a regular file.
        EngineError: the file is too large or unsafe (owner, permissions), or it changes while it
            is read.
    """
    file, size, resolved = open_checked(path, limit)
    with file:
        return read_exactly(file, size, path), resolved


def open_checked(path: Path, limit: int) -> tuple[BinaryIO, int, Path]:
    """Open a file and check it. Return the file, its size in bytes and its resolved path.

    Raises:
        MissingFileError: the file is missing, or is not a regular file.
        EngineError: the file is too large, has another owner, or is world-writable.
    """
    try:
        resolved = path.resolve(strict=True)
        file, status = open_regular(resolved)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MissingFileError(str(path), f'cannot be opened: {reason}') from error
    try:
        # The path of the opened file: a parent folder may have been replaced by a link since.
        resolved = Path(os.path.realpath(f'/proc/self/fd/{file.fileno()}'))
        _check_owner_and_mode(status, resolved)
        if not 0 < status.st_size <= limit:
            raise EngineError(str(path), str(status.st_size), expected=f'1 to {limit} bytes')
    except BaseException:
        file.close()
        raise
    return file, status.st_size, resolved


def read_exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    """Read exactly ``size`` bytes, because another process may be writing the file.

    Raises:
        EngineError: the file cannot be read, or its size has changed.
    """
    try:
        content = file.read(size)
        more = file.read(1)
    except OSError as error:
        raise EngineError(str(path), f'cannot be read: {error.strerror}') from error
    if len(content) != size or more:
        found = f'{"more" if more else len(content)}, another process is writing the file'
        fix = 'try again when the file is complete'
        raise EngineError(str(path), found, expected=f'{size} bytes', fix=fix)
    return content


def _check_owner_and_mode(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise EngineError(
            str(path),
            f'uid {status.st_uid}',
            expected=f'root or this user as the owner, {_OWNERSHIP_REASON}',
            fix=f'copy it: cp {path} ~/',
        )
    if status.st_mode & stat.S_IWOTH:
        found = f'must not be writable by everybody, {_OWNERSHIP_REASON}'
        raise EngineError(str(path), found, fix=f'chmod o-w {path}')
