# SPDX-License-Identifier: Apache-2.0
"""Shared memory through which a Triton server on this machine reads inputs and writes outputs.

A region is a file in /dev/shm. Its process holds a lock on it, so a file without a lock belongs to
a process that was killed. Names are random, because a server can serve many processes. The file
keeps its name while it is used, because a restarted server opens it again by this name.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import size_text
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.hard_exit import before_hard_exit

#: The largest sum of all regions of this process.
MAX_SHARED_BYTES: Final = 512 * 2**20

_FOLDER: Final = Path('/dev/shm')
_PREFIX: Final = 'trt_perception_triton_'
_ALIGNMENT: Final = 64
#: Bytes of a mark. Smaller outputs cannot be marked.
MARK_BYTES: Final = 8
# Marks of an output. More marks find smaller unwritten parts, and take longer.
_MAX_MARKS: Final = 4096
#: Beginnings of the paths of regions: complete ones, and those that are being made.
REGION_PATHS: Final = (f'{_FOLDER}/{_PREFIX}', f'{_FOLDER}/.{_PREFIX}')


class TritonRegion:
    """Shared memory for the inputs and outputs of one request.

    Args:
        tensors: the inputs and outputs. All dimensions are fixed.

    Attributes:
        size: bytes of the region.
        arrays: a view of the memory for each tensor.
        offsets: position of each tensor in the region, in bytes.

    Raises:
        OSError: there is not enough shared memory, or it is not available.
    """

    def __init__(self, tensors: Sequence[TensorSpec]) -> None:
        self.name = _PREFIX + secrets.token_hex(8)
        *self.offsets, self.size = _offsets(tensors)
        self._path = _FOLDER / f'.{self.name}'
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        _OPEN_REGIONS.add(self)
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
        self._marks: dict[int, bytes] = {}

    def mark(self, index: int) -> None:
        """Write marks into an output of at least MARK_BYTES bytes, before a request.

        Marks are random bytes, so an output of any type cannot contain them by chance.
        """
        self._marks[index] = mark = secrets.token_bytes(MARK_BYTES)
        places, end = self._marked(index)
        places[:] = np.frombuffer(mark, places.dtype)
        end[:] = np.frombuffer(mark, end.dtype)

    def is_written(self, index: int) -> bool:
        """Return whether the server has overwritten all marks of an output.

        Outputs of up to 32 KiB consist of marks, so that an unwritten part of 8 aligned bytes is
        found. In a larger output, parts below 1/4096 may stay undetected between its ends.
        """
        mark = self._marks[index]
        places, end = self._marked(index)
        return mark != end.tobytes() and not (places == np.frombuffer(mark, places.dtype)).any()

    def _marked(self, index: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Return the marked parts of an output: values at equal distances, and the last bytes."""
        content = self.arrays[index].reshape(-1).view(np.uint8)
        whole = content[: content.size // MARK_BYTES * MARK_BYTES].view(np.uint64)
        return whole[:: -(-len(whole) // _MAX_MARKS)], content[-MARK_BYTES:]

    def close(self) -> None:
        """Remove the file. The memory stays until the last view of it is gone. Call once."""
        self._unlink()
        _OPEN_REGIONS.discard(self)
        os.close(self._file)

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    @classmethod
    def unlink_all(cls) -> None:
        """Remove the files of all regions of this process. The regions stay usable."""
        for region in list(_OPEN_REGIONS):
            region._unlink()


#: The regions of this process whose file exists.
_OPEN_REGIONS: Final[set[TritonRegion]] = set()
before_hard_exit(TritonRegion.unlink_all)
# A child must not remove the regions of its parent.
os.register_at_fork(after_in_child=_OPEN_REGIONS.clear)
_OPENING: Final = threading.Lock()


def open_regions(tensors: Sequence[TensorSpec], count: int) -> list[TritonRegion]:
    """Return new regions, each for these tensors.

    Raises:
        OSError: there is not enough shared memory, or it is not available.
        EngineError: the regions of this process would be larger than MAX_SHARED_BYTES.
    """
    wanted = count * _offsets(tensors)[-1]
    regions: list[TritonRegion] = []
    with _OPENING:
        used = sum(region.size for region in _OPEN_REGIONS.copy())
        if used + wanted > MAX_SHARED_BYTES:
            others = f', and {size_text(used)} are in use' if used else ''
            raise EngineError(
                'shared memory of a process',
                f'{count} regions need {size_text(wanted)}{others}',
                expected=f'at most {size_text(MAX_SHARED_BYTES)}',
                fix='lower pipeline_depth, or serve a model with smaller inputs and outputs',
            )
        try:
            while len(regions) < count:
                regions.append(TritonRegion(tensors))
        except BaseException:
            for region in regions:
                region.close()
            raise
    return regions


def _offsets(tensors: Sequence[TensorSpec]) -> list[int]:
    """Return the position of each tensor in a region, and the size of the region, in bytes."""
    sizes = (-(-tensor.size_bytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)
    return list(itertools.accumulate(sizes, initial=0))


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
