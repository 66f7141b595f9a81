# SPDX-License-Identifier: Apache-2.0
"""Which images of a bag are used. This module imports no other, so that options load fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Largest value of --every.
MAX_EVERY: Final = 1_000_000


@dataclass(frozen=True)
class BagSelection:
    """Which images of bags are used.

    Attributes:
        topic: name of the topic; empty for the only topic with colour images.
        every: use each N-th image of the topic, from the first on.
    """

    topic: str = ''
    every: int = 1


#: All images of the only topic with colour images.
ALL_IMAGES: Final = BagSelection()
