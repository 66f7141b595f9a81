# SPDX-License-Identifier: Apache-2.0
"""The limit of open files of this process, which is usually 1024."""

from __future__ import annotations

import resource
from typing import Final

_OPEN_FILES: Final = 65536


def raise_file_limit() -> int:
    """Allow this process as many open files as the system permits, at most 65536.

    Returns:
        The limit from now on.
    """
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _OPEN_FILES if highest == unlimited else min(_OPEN_FILES, highest)
    if limit != unlimited and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))
        return wanted
    return _OPEN_FILES if limit == unlimited else limit
