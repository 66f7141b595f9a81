"""Memory for messages, lent to whoever reads one: it comes back when nobody does any more.

What is lent is an array. Every view of it keeps it, as NumPy's views do, so that memory can be
written again only when the last reader is gone, whoever that is and whatever became of the camera.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ['MAX_MESSAGE_BYTES', 'Lease', 'Memory', 'MessageBuffers', 'PlainMemory']

#: A larger message is refused: no camera sends it.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
_FIRST_BYTES: Final = 2**16


class Memory(Protocol):
    """Memory with a fixed place; ``pointer`` is its address, ``size`` its bytes."""

    pointer: int
    size: int

    def close(self) -> None:
        """Free it."""


class PlainMemory:
    """Memory of the host, as Memory."""

    def __init__(self, size: int) -> None:
        self._array = np.empty(size, np.uint8)
        self.pointer = self._array.ctypes.data
        self.size = size

    def close(self) -> None:
        """Free it with the object."""


class Lease:
    """Memory that is lent as long as this object, or an array over it, is there.

    Attributes:
        memory: what is lent.
    """

    def __init__(self, memory: Memory, give_back: Callable[[Memory], None]) -> None:
        self.memory = memory
        self._give_back = give_back
        self.__array_interface__ = {
            'data': (memory.pointer, False),
            'shape': (memory.size,),
            'typestr': '|u1',
            'version': 3,
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the memory as uint8 (size,); it keeps the lease."""
        return np.asarray(self)

    def __del__(self) -> None:
        self._give_back(self.memory)


class MessageBuffers:
    """As many buffers as are in use at once, all as large as the largest message so far.

    ``lend`` is for one thread; buffers come back from any.

    Args:
        allocate: makes memory of a size.
        front: bytes kept free in front of each message.
        limit: bytes of the largest message.

    Attributes:
        front: as given.
        count: how many there are, lent or not.
    """

    def __init__(
        self,
        allocate: Callable[[int], Memory] = PlainMemory,
        front: int = 0,
        limit: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._allocate = allocate
        self.front = front
        self._limit = limit
        self._size = _FIRST_BYTES
        self._free: deque[Memory] = deque()
        self._closed = False
        self.count = 0
        # Memory may come back, and be freed, within whatever a thread does, even in here.
        self._counting = threading.RLock()

    def lend(self, message_bytes: int = 0) -> Lease:
        """Return memory for a message of so many bytes behind ``front``.

        Raises:
            CudaError: the memory is page-locked, and there is none left.
            MemoryError: there is none left, or the message is larger than the limit.
        """
        if message_bytes > self._limit:
            raise MemoryError(f'{message_bytes} bytes; at most {self._limit}')
        self._size = max(self._size, self.front + message_bytes)
        while self._free:
            memory = self._free.pop()
            if memory.size >= self._size:
                return Lease(memory, self._give_back)
            self._free_memory(memory)
        memory = self._allocate(self._size)
        with self._counting:
            self.count += 1
        return Lease(memory, self._give_back)

    def close(self) -> None:
        """Free what is not lent now, and the rest when it comes back."""
        self._closed = True
        self._free_all()

    def _give_back(self, memory: Memory) -> None:
        # From wherever the last reader ended, maybe within the garbage collection: no lock here.
        self._free.append(memory)
        if self._closed:
            self._free_all()

    def _free_all(self) -> None:
        while self._free:
            try:
                memory = self._free.pop()
            except IndexError:  # another thread had it
                return
            self._free_memory(memory)

    def _free_memory(self, memory: Memory) -> None:
        with self._counting:
            self.count -= 1
        memory.close()
