# SPDX-License-Identifier: Apache-2.0
"""Sort names by the numbers in them: ``img2`` before ``img10``."""

from __future__ import annotations

import re
from pathlib import Path


def natural_key(path: Path) -> list[tuple[list[tuple[int, int, str]], str]]:
    """Return a key that sorts numbers in names by value: ``img2`` before ``img10``.

    The files of a folder stay together. The name itself sorts ``1`` and ``01``.
    """
    return [(_natural_parts(name), name) for name in path.parts]


def _natural_parts(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r'[0-9]+|[^0-9]+', name)
    return [(0, int(part), '') if part.isdecimal() else (1, 0, part) for part in parts]
