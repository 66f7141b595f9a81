# SPDX-License-Identifier: Apache-2.0
"""The cache of small files that are expensive to make: compiled kernels, TensorRT's caches.

The folder is ``$XDG_CACHE_HOME/trt_perception``, by default ``~/.cache/trt_perception``.
Guarantees: an entry is returned only if it is intact, because each file begins with the SHA-256 of
its content. Each kind keeps its 32 most recently used entries. Limitation: any entry may be
missing at any time, so callers must be able to make it again. Files that a library writes itself
into a `private_cache_folder` are protected by the folder's owner and permissions only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trt_perception.errors import EngineError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.checked_files import read_checked

_MAX_ENTRIES: Final = 32
_MAX_FOLDERS: Final = 8
_MAX_ENTRY_BYTES: Final = 1024**3
_DIGEST_BYTES: Final = 32
_LOG: Final = logging.getLogger(__name__)


def cache_folder(kind: str) -> Path:
    """Return the folder for one kind of entries. The folder may be missing."""
    base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(base) / 'trt_perception' / kind


def read_cached(kind: str, key: str) -> bytes | None:
    """Return an entry, or None if it is missing, damaged, or writable by other users.

    Owner and permissions are checked as for engines, because entries run as code, too.
    """
    path = cache_folder(kind) / key
    try:
        entry, _ = read_checked(path, _MAX_ENTRY_BYTES)
        os.utime(path)  # marks the entry as recently used
    except (EngineError, OSError):
        return None
    content = entry[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != entry[:_DIGEST_BYTES]:
        _LOG.warning('The cache entry %s is damaged; its content is made again', path)
        return None
    return content


def write_cached(kind: str, key: str, content: bytes) -> None:
    """Store an entry, and remove the least recently used entries above the limit.

    A cache that cannot be written only costs time, so the failure is logged as a warning.
    """
    folder = cache_folder(kind)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry = hashlib.sha256(content).digest() + content
        write_atomically({folder / key: entry}, mode=0o600)
        for old in _least_recently_used(folder, _MAX_ENTRIES):
            with contextlib.suppress(OSError):
                old.unlink()
    except (OSError, WriteError) as error:
        _warn_unusable(folder, str(error))


def private_cache_folder(kind: str, key: str) -> Path | None:
    """Return a folder that only this user may write, for files that a library writes itself.

    Each kind keeps its 8 most recently used folders. If the folder cannot be made, or other users
    may write it, the failure is logged as a warning, and the result is None.
    """
    folder = cache_folder(kind) / key
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        for each in (folder.parent, folder):
            status = each.stat()
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                _warn_unusable(each, 'other users can write it')
                return None
        os.utime(folder)  # marks the folder as recently used
        for old in _least_recently_used(folder.parent, _MAX_FOLDERS):
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        _warn_unusable(folder, str(error))
        return None
    return folder


def _least_recently_used(folder: Path, kept: int) -> Sequence[Path]:
    """Return all entries of a folder except the `kept` most recently used ones."""
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[kept:]


def _warn_unusable(folder: Path, reason: str) -> None:
    _LOG.warning(
        'The cache folder %s cannot be written, so its content is made again each time: %s',
        folder,
        reason,
        extra={'show': True},
    )
