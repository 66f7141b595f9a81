"""Memory for messages, lent to whoever reads one: it comes back when nobody does any more.

What is lent is an array. Every view of it keeps it, as NumPy's views do, so that memory can be
written again only when the last reader is gone, whoever that is and whatever became of the camera.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import CudaError
from trt_perception.images.memory import HostMemory, NumpyMemory

__all__ = ['MAX_MESSAGE_BYTES', 'Lease', 'MessageBuffers']

_LOG: Final = logging.getLogger(__name__)

#: A larger message is refused: no camera sends it.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
_MIN_BUFFER_BYTES: Final = 2**16


class Lease:
    """Memory that is lent as long as this object, or an array over it, is there.

    Attributes:
        memory: what is lent.
    """

    def __init__(self, memory: HostMemory, give_back: Callable[[HostMemory], None]) -> None:
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

    Any thread lends, and gives back.

    Args:
        allocate: makes memory of a size.
        limit: bytes of the largest message.

    Attributes:
        count: how many there are, lent or not.
    """

    def __init__(
        self,
        allocate: Callable[[int], HostMemory] = NumpyMemory,
        limit: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._allocate = allocate
        self._limit = limit
        self._size = _MIN_BUFFER_BYTES
        self._free: deque[HostMemory] = deque()
        self._closed = False
        self.count = 0
        self._lend_lock = threading.Lock()
        # Reentrant: garbage collection can return a lease while this thread holds the lock.
        self._count_lock = threading.RLock()

    def lend(self, message_bytes: int = 0) -> Lease:
        """Return memory for a message of so many bytes.

        Raises:
            CudaError: the GPU is lost, whose memory it would be.
            MemoryError: there is none left, or the message is larger than the limit.
        """
        if message_bytes > self._limit:
            raise MemoryError(f'{message_bytes} bytes; at most {self._limit}')
        with self._lend_lock:
            return self._lend(message_bytes)

    def _lend(self, message_bytes: int) -> Lease:
        size = self._size
        min_size = max(message_bytes, _MIN_BUFFER_BYTES)
        if min_size > size:
            # Compressed images differ: not each that is a little larger shall move all others.
            size = max(min_size, size + size // 4)
        while self._free:
            memory = self._free.pop()
            if memory.size >= size:
                return Lease(memory, self._give_back)
            self._free_memory(memory)
        try:
            memory = self._allocate_memory(size)
        except MemoryError:
            if size == min_size:
                raise
            # After one message of a size that is rare, others find memory of theirs.
            size, memory = min_size, self._allocate_memory(min_size)
        self._size = size  # only now: a smaller message may find its place where this one did not
        with self._count_lock:
            self.count += 1
        return Lease(memory, self._give_back)

    def _allocate_memory(self, size: int) -> HostMemory:
        try:
            return self._allocate(size)
        except CudaError as error:  # page-locked memory
            if error.sticky:
                raise
            raise MemoryError(str(error)) from error

    def close(self) -> None:
        """Free what is not lent now, and the rest when it comes back.

        Raises:
            CudaError: page-locked memory could not be freed; all other is.
        """
        self._closed = True
        self._free_all()

    def _give_back(self, memory: HostMemory) -> None:
        # From wherever the last reader ended, maybe within the garbage collection: no lock here.
        self._free.append(memory)
        if self._closed:
            try:
                self._free_all()
            except Exception as error:  # nobody hears it here; a lost GPU has taken all with it
                _LOG.debug('memory of a message could not be freed: %s', error)

    def _free_all(self) -> None:
        with ExitStack() as freeing:  # each, whatever became of the others
            while self._free:
                try:
                    memory = self._free.pop()
                except IndexError:  # another thread had it
                    return
                freeing.callback(self._free_memory, memory)

    def _free_memory(self, memory: HostMemory) -> None:
        with self._count_lock:
            self.count -= 1
        memory.close()
