"""Files that belong together appear whole and together, or not at all.

Guarantees: no reader ever sees part of a file; after an error or Ctrl-C what was there before is
there still, and nothing else. Non-guarantees: between two renames there is a moment in which a
reader sees new and old side by side (a manifest's hash tells); killed outright, or without power,
a file whose name begins with a dot may be left; what is no file (a terminal, a pipe, /dev/null) is
written as it stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trt_perception.errors import ConfigError, WriteError

__all__ = ['make_folder', 'write_atomically', 'write_json']


def write_atomically(
    files: Mapping[Path, bytes], mode: int = 0o664, *, is_durable: bool = True
) -> None:
    """Write files so that all are there or none; existing ones are replaced.

    Args:
        files: contents by path, renamed in this order: what others trust last stands last.
        mode: of the files, less what the process leaves out by its umask.
        is_durable: wait until they are on the disk and outlive a loss of power.

    Raises:
        WriteError: one of them cannot be written; the message says why.
    """
    written: list[tuple[Path, Path]] = []
    renamed: list[tuple[Path, Path | None]] = []
    special = [path for path in files if _is_special(path)]
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
                raise _write_error(path, error) from error
        for path in special:
            _write_special(path, files[path])
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
        _sync_folders({path.parent for path in files if path not in special})


def write_json(path: Path, content: object, indent: int | None = None) -> None:
    """Write a JSON file whole or not at all.

    Raises:
        WriteError: it cannot be written.
    """
    text = json.dumps(content, indent=indent, allow_nan=False)
    write_atomically({path: f'{text}\n'.encode()})


def _is_special(path: Path) -> bool:
    """Tell whether a path is a device or pipe, which no file may take the place of."""
    if not path.exists() or path.is_dir():
        return False
    # /dev/stdout is a link, and may lead to a file.
    return str(path.parent) in ('/dev', '/dev/fd', '/proc/self/fd') or not path.is_file()


def _write_special(path: Path, content: bytes) -> None:
    try:
        with open(path, 'ab', buffering=0) as file:
            file.write(content)
    except OSError as error:
        raise _write_error(path, error, len(content)) from error


def _write_temporary(path: Path, content: bytes, mode: int, is_durable: bool) -> Path:
    """Write a temporary file in the same folder."""
    temporary: Path | None = None
    try:
        if path.is_dir():
            raise IsADirectoryError(21, 'is a folder')
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name[:64]}.')
        temporary = Path(name)
        with open(descriptor, 'wb') as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        # Never for everybody to write: the node refuses such files.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(mode & ~umask)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _write_error(path, error, len(content)) from error
        raise
    return temporary


def _write_error(path: Path, error: OSError, size: int = 0) -> WriteError:
    """Return the error of a file that could not be written."""
    if not path.parent.is_dir():
        return WriteError(
            str(path), f'cannot be written: {path.parent} is not a folder', fix='make it first'
        )
    reason = error.strerror or str(error)
    room = ''
    if size:
        with contextlib.suppress(OSError):
            status = os.statvfs(path.parent)
            free = status.f_bavail * status.f_frsize
            room = f' ({size / 2**20:.1f} MiB to write, {free / 2**20:.1f} MiB free)'
    return WriteError(str(path), f'cannot be written: {reason}{room}', fix='nothing was changed')


def _back_up(path: Path, temporary: Path) -> Path | None:
    """Give an existing file a second name, that of what replaces it and more; None without one."""
    if not os.path.lexists(path):
        return None
    backup = temporary.with_name(f'{temporary.name}.old')  # nobody else's: mkstemp made the name
    try:
        try:
            os.link(path, backup, follow_symlinks=False)
        except OSError:  # a memory card's file system has no second names
            path.rename(backup)
    except OSError as error:
        raise _write_error(path, error) from error
    return backup


def _sync_folders(folders: set[Path]) -> None:
    """Make renames last; a file system that cannot is not an error."""
    for folder in folders:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder for results where it is missing.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(str(folder), f'cannot be made: {error.strerror}') from error
