# SPDX-License-Identifier: Apache-2.0
"""Host memory for images. Each pipeline allocates the kind that it reads fastest."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class HostMemory(Protocol):
    """Host memory at a fixed address. Implementations may have further attributes.

    Attributes:
        pointer: address of the first byte.
        size: bytes.
        array: the memory as uint8 (size,), valid until ``close``.
    """

    pointer: int
    size: int
    array: npt.NDArray[np.uint8]

    def close(self) -> None:
        """Free the memory. Further calls do nothing."""


class NumpyMemory:
    """``HostMemory`` that NumPy allocates."""

    def __init__(self, size: int) -> None:
        self.array: npt.NDArray[np.uint8] = np.empty(size, np.uint8)
        self.pointer: int = self.array.ctypes.data
        self.size = size

    def close(self) -> None:
        """Do nothing: the memory is freed together with this object."""
