"""Environment variables that make large images cheap to receive, and what to do without them.

Measured by scripts/bench transport.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ['loss_cure', 'transport_environment']

# Jazzy's Fast DDS reads the first name only, Kilted's only the second.
_PROFILE_VARIABLES: Final = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')

# Images are allocated and freed at the camera's rate. Where glibc returns the memory each time,
# page faults are half of what receiving costs. The C library reads these when a process starts.
_ALLOCATOR: Final = {
    'MALLOC_MMAP_THRESHOLD_': '1073741824',
    'MALLOC_TRIM_THRESHOLD_': '1073741824',
    'MALLOC_TOP_PAD_': '67108864',
}


def transport_environment(
    profile: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables to set for a process that receives images, without those already set.

    Args:
        profile: path of a Fast DDS profile, empty for none.
        environment: what is set already; the user's values win.
    """
    wanted = dict(_ALLOCATOR)
    if profile:
        wanted.update(dict.fromkeys(_PROFILE_VARIABLES, profile))
    return {name: value for name, value in wanted.items() if name not in environment}


def loss_cure(profile: str, reliability: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what to do about large images that get lost on the way to this process.

    Args:
        profile: path of the Fast DDS profile for large images.
        reliability: what the subscription asks for, ``reliable`` or ``best_effort``.
        environment: of this process.
    """
    middleware = environment.get('RMW_IMPLEMENTATION') or 'rmw_fastrtps_cpp'
    buffers = (
        'from another machine, raise net.core.rmem_max on both sides or send less '
        '(image_transport:=compressed, a lower rate)'
    )
    if middleware not in ('rmw_fastrtps_cpp', 'rmw_fastrtps_dynamic_cpp'):
        cure = f'give {middleware} larger buffers or shared memory; {buffers}'
    elif not any(environment.get(name) for name in _PROFILE_VARIABLES):
        cure = (
            'the default transport holds no large image: start the node with detect.launch.py, or '
            f'export {_PROFILE_VARIABLES[0]}={profile} and {_PROFILE_VARIABLES[1]}={profile}, for '
            'the camera, too'
        )
    else:
        cure = (
            f'on this machine, give the camera the profile that the node has: export '
            f'{_PROFILE_VARIABLES[0]} and {_PROFILE_VARIABLES[1]}; {buffers}'
        )
    if reliability == 'best_effort':
        cure += '; a camera that offers reliable loses fewer'
    return cure
