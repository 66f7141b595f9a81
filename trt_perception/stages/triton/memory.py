"""Shared memory through which a Triton server on this machine reads inputs and writes outputs.

A region is a file in /dev/shm. Its process holds a lock on it, so a file without a lock belongs to
a process that was killed. Names are random, because a server can serve many processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import mmap
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.model.tensors import TensorSpec
from trt_perception.process.hard_exit import before_hard_exit

__all__ = ['REGION_PATHS', 'TritonRegion', 'remove_left_regions']

_FOLDER: Final = Path('/dev/shm')
_PREFIX: Final = 'trt_perception_triton_'
_ALIGNMENT: Final = 64
#: Beginnings of the paths of regions: complete ones, and those that are being made.
REGION_PATHS: Final = (f'{_FOLDER}/{_PREFIX}', f'{_FOLDER}/.{_PREFIX}')
# The regions of this process whose file exists.
_OPEN: Final[set[TritonRegion]] = set()


class TritonRegion:
    """Shared memory for the inputs and outputs of one request.

    Args:
        tensors: the inputs and outputs. All dimensions are fixed.

    Attributes:
        name: name of the region, and of its file.
        size: bytes of the region.
        arrays: a view of the memory for each tensor.
        offsets: position of each tensor in the region, in bytes.

    Raises:
        OSError: there is not enough shared memory, or it is not available.
    """

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self.name = _PREFIX + secrets.token_hex(8)
        sizes = [math.ceil(tensor.size_bytes / _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
        *self.offsets, self.size = itertools.accumulate(sizes, initial=0)
        self._path = _FOLDER / f'.{self.name}'
        _OPEN.add(self)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            # Without a lock, another process could remove a file with the final name.
            self._path = self._path.rename(_FOLDER / self.name)
            # Without reserved pages, writing to a full /dev/shm would end the process (SIGBUS).
            os.posix_fallocate(self._file, 0, self.size)
            memory = mmap.mmap(self._file, self.size)
        except BaseException:
            self.close()
            raise
        self.arrays: list[npt.NDArray[Any]] = [
            np.ndarray(tensor.shape, tensor.dtype, memory, offset)
            for tensor, offset in zip(tensors, self.offsets, strict=True)
        ]

    def close(self) -> None:
        """Remove the file. The memory stays until the last view of it is gone. Call once."""
        self._unlink()
        _OPEN.discard(self)
        os.close(self._file)

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    @classmethod
    def unlink_all(cls) -> None:
        """Remove the files of all regions of this process. The regions stay usable."""
        for region in list(_OPEN):
            region._unlink()


before_hard_exit(TritonRegion.unlink_all)


def remove_left_regions() -> list[str]:
    """Remove the files of this user's processes that were killed. Return the names of regions."""
    names = []
    for path in _FOLDER.glob(f'{_PREFIX}*'):
        with contextlib.suppress(OSError):  # another user's file, or its process is alive
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                names.append(path.name)
            finally:
                os.close(file)
    return names
