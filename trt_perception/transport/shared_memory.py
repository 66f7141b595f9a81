# SPDX-License-Identifier: Apache-2.0
"""Shared memory of Fast DDS: its size, and files that a killed process did not finish creating.

Processes on one machine communicate through the ports /dev/shm/fastrtps_port* (fastdds_port* since
Fast DDS 3). A process that opens a port waits, without a time limit, until the creator has
initialised it. Meanwhile, the process sends nothing. If the creator was killed, the wait never
ends. So each process that sends to this port, or gets its number at startup, hangs in native
code until the file is repaired.
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

SHARED_MEMORY: Final = Path('/dev/shm')
#: Shared memory of a DDS participant with the profile of the node, and with a profile of cameras.
SMALL_PARTICIPANT_BYTES: Final = 4 * 2**20
LARGE_PARTICIPANT_BYTES: Final = 68 * 2**20
# The participants for raw images may use this share of the free shared memory.
_MAX_SHARE: Final = 0.25
_PORT_FILE_NAME: Final = re.compile(r'fast(rtps|dds)_port\d+')
# Creating a port takes less than a millisecond, but the process may wait for a CPU core.
_MAX_CREATION_S: Final = 5.0
# boost::interprocess stores a state in the first word: 0 or 1 at first, 2 when initialised.
_STATE_INITIALISED: Final = 2
_STATE_WORD: Final = struct.Struct('=I')


def affordable_participants(
    cameras: int, free_bytes: int, bytes_each: int, *, nodes: int = 1
) -> int:
    """Return a number of participants: one for each camera or for two, or as memory permits.

    Args:
        free_bytes: free shared memory in bytes.
        bytes_each: shared memory of one participant in bytes.
        nodes: number of nodes that share the memory; each node may use an equal part.
    """
    most = int(_MAX_SHARE * free_bytes / nodes) // bytes_each
    per_two_cameras = -(-cameras // 2)
    return cameras if cameras <= most else min(per_two_cameras, most)


def unfinished_ports(folder: Path = SHARED_MEMORY) -> list[Path]:
    """Return the ports whose creator was killed; empty if the folder cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if _is_unfinished(path))
    return []


def _is_unfinished(path: Path) -> bool:
    if not _PORT_FILE_NAME.fullmatch(path.name):
        return False
    try:
        facts = path.stat()
        # repair_command truncates a port to one byte, which all processes refuse at once.
        if facts.st_size == 1 or time.time() - facts.st_mtime < _MAX_CREATION_S:
            return False
        file, _ = open_regular(path)  # a pipe may have the name of a port
        with file:
            start = file.read(_STATE_WORD.size)
    except PermissionError:  # the file belongs to another user
        return facts.st_size == 0
    except OSError:  # the file was removed meanwhile or is not regular
        return False
    return len(start) < _STATE_WORD.size or _STATE_WORD.unpack(start)[0] < _STATE_INITIALISED


def repair_command(ports: Sequence[Path]) -> str:
    """Return the command that releases the waiting processes and removes the ports."""
    files = ' '.join(map(str, ports))
    return f'truncate -s 1 {files}; rm {files}; restart programs that still hang'
