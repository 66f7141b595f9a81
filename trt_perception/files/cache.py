"""The cache of small files that are expensive to make: compiled kernels, TensorRT's caches.

The folder is ``$XDG_CACHE_HOME/trt_perception``, by default ``~/.cache/trt_perception``.
Guarantees: an entry is returned only if it is intact, because each file begins with the SHA-256 of
its content. Each kind keeps its 32 most recently used entries. Limitation: any entry may be
missing at any time, so callers must be able to make it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from trt_perception.errors import EngineError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.checked_files import read_checked

__all__ = ['cache_folder', 'read_cached', 'write_cached']

_MAX_ENTRIES: Final = 32
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
        entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in entries[_MAX_ENTRIES:]:
            with contextlib.suppress(OSError):
                old.unlink()
    except (OSError, WriteError) as error:
        _LOG.warning(
            'The cache folder %s cannot be written, so its content is made again each time: %s',
            folder,
            error,
            extra={'show': True},
        )
