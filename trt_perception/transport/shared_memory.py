"""Shared memory of Fast DDS that a process left half made when it was killed.

Processes of one machine send to each other through /dev/shm/fastrtps_port* (since Fast DDS 3
fastdds_port*). Whoever opens one waits for the process that makes it, without end, and holds what
all sending needs; a process that was killed meanwhile never makes it. So each process that sends
there, or starts and gets that number, hangs in native code until somebody mends the file.
"""

from __future__ import annotations

import contextlib
import re
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trt_perception.files.regular_files import open_regular

__all__ = ['SHARED_MEMORY', 'repair_command', 'unfinished_ports']

SHARED_MEMORY: Final = Path('/dev/shm')
_PORT: Final = re.compile(r'fast(rtps|dds)_port\d+')
# A process makes one in less than a millisecond, but it may wait for a core.
_MAX_CREATION_S: Final = 5.0
# boost::interprocess counts in the first word: 0 and 1 come before 2, which is whole.
_INITIALISED: Final = 2
_WORD: Final = struct.Struct('=I')


def unfinished_ports(folder: Path = SHARED_MEMORY) -> list[Path]:
    """Return the ports in a folder that nobody makes any more; none where it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if _is_unfinished(path))
    return []


def _is_unfinished(path: Path) -> bool:
    if not _PORT.fullmatch(path.name):
        return False
    try:
        facts = path.stat()
        # A single byte is what repair_command leaves until it is removed: all refuse that at once.
        if facts.st_size == 1 or time.time() - facts.st_mtime < _MAX_CREATION_S:
            return False
        file, _ = open_regular(path)  # what has the name of a port may be a pipe
        with file:
            start = file.read(_WORD.size)
    except PermissionError:  # another user's
        return facts.st_size == 0
    except OSError:  # gone meanwhile, or no file
        return False
    return len(start) < _WORD.size or _WORD.unpack(start)[0] < _INITIALISED


def repair_command(ports: Sequence[Path]) -> str:
    """Return what to type: what waits for these ports goes on, and nobody finds them again."""
    files = ' '.join(map(str, ports))
    return f'truncate -s 1 {files}; rm {files}; start again what still hangs'
