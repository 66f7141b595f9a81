"""Environment variables that make large images cheap to receive.

Measured by scripts/bench transport.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ['transport_environment']

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
        # Jazzy's Fast DDS reads the first name only, Kilted's only the second.
        wanted['FASTRTPS_DEFAULT_PROFILES_FILE'] = profile
        wanted['FASTDDS_DEFAULT_PROFILES_FILE'] = profile
    return {name: value for name, value in wanted.items() if name not in environment}
