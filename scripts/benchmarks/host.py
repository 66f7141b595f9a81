# SPDX-License-Identifier: Apache-2.0
"""Settings of this computer that change the speed of images, and the use of its resources."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

import gpus
from rclpy.utilities import get_rmw_implementation_identifier

from trt_perception.transport.advice import PROFILE_VARIABLES

SHARED_MEMORY = Path('/dev/shm')
_CLOCK_TICKS = os.sysconf('SC_CLK_TCK')
_HUGE_PAGES = Path('/sys/kernel/mm/transparent_hugepage')


def text_of(path):
    """Return the text of a file of the kernel; '-' if the file is missing."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return '-'


def field(path, name):
    """Return the value of a field, as in /proc/meminfo; '-' if it is missing."""
    found = re.search(rf'^{name}\s*:\s*(.*)$', text_of(path), re.MULTILINE)
    return found[1] if found else '-'


def host_settings(environment):
    """Return the settings by name.

    Args:
        environment: variables of the benchmark's processes.
    """
    shared = shutil.disk_usage(SHARED_MEMORY)
    variables = {**os.environ, **environment}
    profiles = {variables[name] for name in PROFILE_VARIABLES if variables.get(name)}
    allocator = [f'{n}={v}' for n, v in sorted(variables.items()) if n.startswith('MALLOC_')]
    huge_pages = (f'{name} {text_of(_HUGE_PAGES / name)}' for name in ('enabled', 'shmem_enabled'))
    return {
        'processor': field('/proc/cpuinfo', 'model name'),
        'cores': f'{os.cpu_count()}, usable {len(os.sched_getaffinity(0))}',
        'CPU quota': text_of('/sys/fs/cgroup/cpu.max'),
        'CPU governor': text_of('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor'),
        'load, 1 minute': f'{os.getloadavg()[0]:.1f}',
        'memory': field('/proc/meminfo', 'MemTotal'),
        'huge pages': ', '.join(huge_pages),
        'net.core.rmem_max': text_of('/proc/sys/net/core/rmem_max'),
        '/dev/shm': f'{shared.total >> 20} MiB, free {shared.free >> 20} MiB',
        'transport profile': ', '.join(sorted(map(profile_text, profiles))) or '-',
        'allocator': ' '.join(allocator) or '-',
        'middleware': get_rmw_implementation_identifier(),
        'GPU': ', '.join(gpus.names()) or '-',
        'GPU driver': gpus.driver() or '-',
        'system': platform.platform(),
    }


def profile_text(path):
    """Return the name of a Fast DDS profile with the sizes of its shared memory."""
    sizes = re.findall(r'<(segment_size|maxMessageSize)>\s*(\d+)', text_of(path))
    return ' '.join([Path(path).name, *(f'{name} {size}' for name, size in sizes)])


def cpu_seconds(process):
    """Return the CPU time of a process so far: user and system, all threads."""
    fields = Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def memory_mib(process):
    """Return RSS and PSS of a process in MiB. PSS divides a shared page among its processes."""
    path = f'/proc/{process}/smaps_rollup'
    return tuple(int(field(path, name).split()[0]) / 1024 for name in ('Rss', 'Pss'))


def shared_memory_mib(process):
    """Return the memory of the files in /dev/shm that belong to a process, in MiB.

    Fast DDS locks the file NAME_el while the owner of the file NAME runs.
    """
    size = 0
    for descriptor in Path(f'/proc/{process}/fd').iterdir():
        try:
            lock = descriptor.readlink()
            if lock.parent == SHARED_MEMORY and lock.name.endswith('_el'):
                size += lock.with_name(lock.name.removesuffix('_el')).stat().st_blocks * 512
        except OSError:  # noqa: PERF203 (closed or deleted in the meantime)
            continue
    return size / 2**20
