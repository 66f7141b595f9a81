# SPDX-License-Identifier: Apache-2.0
"""Write several files together: all files appear complete, or no file appears.

Guarantees: no reader sees part of a file. After an error or Ctrl-C, the folder is as before.

Non-guarantees: between two renames, a reader may see a new file next to an old one (the hash in a
manifest reveals this). SIGKILL or a loss of power may leave a temporary file, whose name begins
with a dot. A path that is not a file (a terminal, a pipe, /dev/null) is written directly.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trt_perception.errors import ConfigError, WriteError
from trt_perception.files.plain_text import size_text

_FREE_SPACE: Final = 'free space on this disk, or choose another place'
_FIXES_BY_ERRNO: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EISDIR: 'name a file',
    errno.ENXIO: 'name a file, or start the program that reads this pipe',
}


def write_atomically(
    files: Mapping[Path, bytes], mode: int = 0o664, *, is_durable: bool = True
) -> None:
    """Write all files or none. Existing files are replaced.

    Args:
        files: contents by path. The files appear in this order. The last one should be the file
            that readers look for.
        mode: permissions of the files, restricted by the umask of the process.
        is_durable: wait until the files are on the disk and survive a loss of power.

    Raises:
        WriteError: a file cannot be written; the message gives the reason. No file was changed,
            but a device or pipe may have received bytes.
    """
    written: list[tuple[Path, Path]] = []
    renamed: list[tuple[Path, Path | None]] = []
    special = [path for path in files if _is_device_or_pipe(path)]
    try:
        for path, content in files.items():
            if path not in special:
                written.append((_write_temporary(path, content, mode, is_durable), path))
        for temporary, path in written:
            backup = _back_up(path, temporary)
            renamed.append((path, backup))
            try:
                temporary.replace(path)
            except OSError as error:
                raise error_of_failed_write(path, error) from error
        for path in special:
            _write_to_device_or_pipe(path, files[path])
    except BaseException:
        for path, backup in reversed(renamed):
            with contextlib.suppress(OSError):
                path.unlink() if backup is None else backup.replace(path)
        raise
    finally:
        leftovers = [temporary for temporary, _ in written]
        leftovers += [backup for _, backup in renamed if backup is not None]
        for path in leftovers:
            with contextlib.suppress(OSError):
                path.unlink()
    if is_durable:
        for folder in {path.parent for path in files if path not in special}:
            sync_folder(folder)


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a complete JSON file, or no file.

    Raises:
        WriteError: the file cannot be written.
    """
    text = json.dumps(content, indent=indent, allow_nan=False)
    write_atomically({path: f'{text}\n'.encode()})


def _is_device_or_pipe(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which must not be replaced by a file."""
    if not path.exists() or path.is_dir():
        return False
    # /dev/stdout is a link that may lead to a regular file.
    return str(path.parent) in ('/dev', '/dev/fd', '/proc/self/fd') or not path.is_file()


def _write_to_device_or_pipe(path: Path, content: bytes) -> None:
    try:
        # Non-blocking, because opening a FIFO without a reader would wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        with open(os.open(path, flags), 'ab') as file:
            os.set_blocking(file.fileno(), True)
            file.write(content)
    except OSError as error:
        size = 0 if error.errno == errno.ENXIO else len(content)  # a pipe without a reader
        raise error_of_failed_write(path, error, size) from error


def _write_temporary(path: Path, content: bytes, mode: int, is_durable: bool) -> Path:
    """Write a temporary file into the folder of ``path``."""
    temporary: Path | None = None
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, 'is a folder')
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name[:64]}.')
        temporary = Path(name)
        with open(descriptor, 'wb') as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        # mkstemp ignores the umask. No mode is world-writable: the node refuses such files.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(mode & ~umask)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise error_of_failed_write(path, error, len(content)) from error
        raise
    return temporary


def error_of_failed_write(path: Path, error: OSError, size: int = 0) -> WriteError:
    """Return the error for a file that could not be written.

    Args:
        path: the file.
        error: the reason.
        size: bytes that were to be written. If given, the error also states the free space.
    """
    if not path.parent.is_dir():
        fix = 'choose another place' if path.parent.exists() else 'make it first'
        return WriteError(str(path), f'cannot be written: {path.parent} is not a folder', fix=fix)
    reason = error.strerror or str(error)
    room = ''
    if size:
        with contextlib.suppress(OSError):
            status = os.statvfs(path.parent)
            free = status.f_bavail * status.f_frsize
            room = f' ({size_text(size)} to write, {size_text(free)} free)'
    fix = _FIXES_BY_ERRNO.get(
        error.errno or 0, 'choose another place, or make that folder writable'
    )
    return WriteError(str(path), f'cannot be written: {reason}{room}', fix=fix)


def _back_up(path: Path, temporary: Path) -> Path | None:
    """Give an existing file a second name, and return that name; None if no file exists."""
    if not os.path.lexists(path):
        return None
    backup = temporary.with_name(f'{temporary.name}.old')  # unique, because mkstemp made the name
    try:
        try:
            os.link(path, backup, follow_symlinks=False)
        except OSError:  # file systems of memory cards have no hard links
            path.rename(backup)
    except OSError as error:
        raise error_of_failed_write(path, error) from error
    return backup


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a loss of power, if the file system supports this."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder for results, unless it exists.

    Raises:
        ConfigError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(str(folder), f'cannot be made: {error.strerror}') from error
