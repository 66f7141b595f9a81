# SPDX-License-Identifier: Apache-2.0
"""The CRC-32 of MCAP files, computed by zlib-ng if it is installed, and otherwise by zlib.

zlib-ng uses instructions of the CPU for CRC-32, and is more than ten times as fast with megabytes.
The checksums are the same.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable


def crc32(data: bytes | memoryview, start: int = 0) -> int:
    """Return the CRC-32 of bytes.

    Args:
        start: the checksum of the bytes before; 0 if there are none.
    """
    return _function()(data, start)


@functools.cache
def _function() -> Callable[[bytes | memoryview, int], int]:
    try:
        from zlib_ng import zlib_ng  # an optional package
    except ImportError:
        return zlib.crc32
    return zlib_ng.crc32
