"""Memory that images lie in, as whoever runs the model wants it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ['HostMemory', 'NumpyMemory']


class HostMemory(Protocol):
    """Memory of the host with a fixed place. A pipeline may keep more of it to itself.

    Attributes:
        pointer: its address.
        size: bytes.
        array: the same bytes, uint8 (size,), valid until ``close``.
    """

    pointer: int
    size: int
    array: npt.NDArray[np.uint8]

    def close(self) -> None:
        """Free it; may be called again."""


class NumpyMemory:
    """What NumPy allocates, as Memory."""

    def __init__(self, size: int) -> None:
        self.array: npt.NDArray[np.uint8] = np.empty(size, np.uint8)
        self.pointer: int = self.array.ctypes.data
        self.size = size

    def close(self) -> None:
        """Free it with the object."""
