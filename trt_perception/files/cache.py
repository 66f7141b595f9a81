"""Small files that are expensive to make again: compiled kernels, TensorRT's caches.

They live below ``$XDG_CACHE_HOME/trt_perception``. Guarantees: what is read is what was written,
byte for byte, because each file begins with the SHA-256 of the rest; each kind keeps its newest
entries only. Non-guarantee: anything may be missing at any time, so every reader can do without.
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
_MAX_BYTES: Final = 1024**3
_DIGEST_BYTES: Final = 32
_LOG: Final = logging.getLogger(__name__)


def cache_folder(kind: str) -> Path:
    """Return the folder of one kind of entry; it may not exist."""
    base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(base) / 'trt_perception' / kind


def read_cached(kind: str, key: str) -> bytes | None:
    """Return an entry, None where there is none.

    An entry that is damaged, or that somebody else could have written, counts as none: the rules
    are those for engines.
    """
    path = cache_folder(kind) / key
    try:
        entry, _ = read_checked(path, _MAX_BYTES)
        os.utime(path)  # newest means last used
    except (EngineError, OSError):
        return None
    content = entry[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != entry[:_DIGEST_BYTES]:
        _LOG.warning('%s is damaged, and is made again', path)
        return None
    return content


def write_cached(kind: str, key: str, content: bytes) -> None:
    """Keep an entry, and only the newest of its kind.

    A cache that cannot be written costs time, so it is no error.
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
            'the cache %s cannot be written, so this is made again each time: %s',
            folder,
            error,
            extra={'show': True},
        )
