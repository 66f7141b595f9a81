# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: socket buffers, shared memory, and write access to the caches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trt_perception.checks.finding import Finding
from trt_perception.files.cache import cache_folder
from trt_perception.transport.shared_memory import (
    SHARED_MEMORY,
    SMALL_PARTICIPANT_BYTES,
    affordable_participants,
    repair_command,
    unfinished_ports,
)

# A 1080p image in bgr8 has 6.2 MB. The kernel's default buffer has 0.2 MB.
_MIN_SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
_MIN_FREE_CACHE_BYTES: Final = 256 * 1024 * 1024
_AREA: Final = 'machine'


def machine_findings(
    segment_bytes: int,
    *,
    raw_cameras: int = 0,
    system: Path = Path('/proc/sys'),
    shared_memory: Path = SHARED_MEMORY,
) -> Iterator[Finding]:
    """Check the socket buffers, the shared memory and the caches of this machine.

    Args:
        segment_bytes: bytes of shared memory that each process allocates.
        raw_cameras: number of cameras of a detector that may send raw images.
    """
    yield _socket_buffer_finding(system / 'net/core/rmem_max')
    yield _shared_memory_finding(shared_memory, segment_bytes, raw_cameras)
    if ports := unfinished_ports(shared_memory):
        yield Finding(
            _AREA,
            'shared memory of a killed process',
            'red',
            f'{", ".join(path.name for path in ports)}: a process was killed while '
            'creating these files; programs that start, or send to these ports, hang forever',
            repair_command(ports),
        )
    yield _cache_finding(cache_folder('kernels').parent)


def _socket_buffer_finding(file: Path) -> Finding:
    name = 'net.core.rmem_max'
    fix = f'for a camera on another machine: sudo sysctl -w {name}=2147483647'
    try:
        size = int(file.read_text())
    except (OSError, ValueError) as error:
        return Finding(_AREA, name, 'yellow', f'cannot be read: {error}', fix)
    if size < _MIN_SOCKET_BUFFER_BYTES:
        found = f'{size} bytes, less than one image: images over the network are lost in bursts'
        return Finding(_AREA, name, 'yellow', found, fix)
    return Finding(_AREA, name, 'green', f'{size} bytes')


def _shared_memory_finding(folder: Path, segment_bytes: int, raw_cameras: int) -> Finding:
    name = str(folder)
    larger = 'in a container: docker run --shm-size=1g (or --ipc=host); else remount it larger'
    try:
        facts = os.statvfs(folder)
    except OSError as error:
        return Finding(_AREA, name, 'red', f'no shared memory: {error.strerror}', larger)
    if not os.access(folder, os.W_OK):
        fix = f'sudo chmod 1777 {folder}'
        return Finding(_AREA, name, 'red', 'this user cannot write to it', fix)
    free, total = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    found = f'{free / 2**20:.0f} of {total / 2**20:.0f} MiB free'
    if free < segment_bytes:
        found += f', but one process needs {segment_bytes / 2**20:.0f} MiB'
        return Finding(
            _AREA, name, 'red', found, f'remove {folder}/fastrtps_* of dead programs; {larger}'
        )
    if free < 4 * segment_bytes:
        found += f', but each process needs {segment_bytes / 2**20:.0f} MiB'
        return Finding(_AREA, name, 'yellow', found, larger)
    count = affordable_participants(raw_cameras, free, SMALL_PARTICIPANT_BYTES)
    if raw_cameras > 1 and count < raw_cameras:
        found += (
            f', room for {count} DDS participants: some of {raw_cameras} raw cameras share one'
        )
        return Finding(_AREA, name, 'yellow', found, larger)
    return Finding(_AREA, name, 'green', found)


def _cache_finding(folder: Path) -> Finding:
    name = 'caches'
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
        facts = os.statvfs(folder)
    except OSError as error:
        found = f'{folder}: {error.strerror}, so each start compiles kernels again'
        fix = 'make it writable, or set XDG_CACHE_HOME to a writable folder'
        return Finding(_AREA, name, 'yellow', found, fix)
    free = facts.f_bavail * facts.f_frsize
    if free < _MIN_FREE_CACHE_BYTES:
        found = f'{folder}: {free / 2**20:.0f} MiB free'
        return Finding(_AREA, name, 'yellow', found, 'free some space on that disk')
    return Finding(_AREA, name, 'green', f'{folder}, writable')
