# SPDX-License-Identifier: Apache-2.0
"""Reusable memory for messages. A lease returns the memory when its last array is gone.

Every view of such an array keeps the lease alive, because a NumPy view refers to its base. So
memory is reused only after its last reader has released it, even if the camera has ended before.
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

_LOG: Final = logging.getLogger(__name__)

#: The intake refuses larger messages. No camera sends them.
MAX_MESSAGE_BYTES: Final = 256 * 2**20
_MIN_BUFFER_BYTES: Final = 2**16
_RECENT_MESSAGES: Final = 10
# A message may be four times larger than usual, and its buffer has a margin of a quarter.
_MAX_SIZE_RATIO: Final = 5


class Lease:
    """Reserves memory for a message while this object or an array over the memory exists.

    Args:
        give_back: called with this lease when it ends, in any thread.
        message_bytes: initial value of the attribute.

    Attributes:
        message_bytes: size of the message in the memory; 0 if there is none, or if its image was
            refused.
    """

    def __init__(
        self, memory: HostMemory, give_back: Callable[[Lease], None], message_bytes: int = 0
    ) -> None:
        self.memory = memory
        self.message_bytes = message_bytes
        self._give_back = give_back
        self.__array_interface__ = {
            'data': (memory.pointer, False),
            'shape': (memory.size,),
            'typestr': '|u1',
            'version': 3,
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the memory as uint8 (size,). The array keeps the lease alive."""
        return np.asarray(self)

    def __del__(self) -> None:
        self._give_back(self)


class MessageBuffers:
    """A pool of buffers for the messages of one camera. Their size follows the messages.

    The pool allocates a buffer when no free buffer is large enough. A returned buffer is freed if
    it is more than five times as large as the median of the camera's last ten messages. Messages
    whose images were refused do not count. Any thread may call the methods and release leases.

    Args:
        allocate: returns memory of the given size in bytes.
        limit: size of the largest accepted message in bytes.

    Attributes:
        count: number of buffers, in use or free.
    """

    def __init__(
        self,
        allocate: Callable[[int], HostMemory] = NumpyMemory,
        limit: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._allocate = allocate
        self._limit = limit
        # Large enough for a usual message of the camera.
        self._size = _MIN_BUFFER_BYTES
        self._recent_bytes: tuple[int, ...] = ()  # sizes of the last messages
        self._free: deque[HostMemory] = deque()
        self._closed = False
        self.count = 0
        self._lend_lock = threading.Lock()
        # Reentrant: garbage collection can return a lease while this thread holds the lock.
        self._count_lock = threading.RLock()

    def lend(self, message_bytes: int = 0) -> Lease:
        """Reserve memory for a message of `message_bytes` bytes; 0 means that the size is unknown.

        Raises:
            CudaError: the GPU is lost, so no page-locked memory can be allocated.
            MemoryError: no memory is left, or the message is larger than the limit.
        """
        if message_bytes > self._limit:
            raise MemoryError(f'{message_bytes} bytes; at most {self._limit}')
        with self._lend_lock:
            return Lease(self._lend(message_bytes), self._give_back, message_bytes)

    def _lend(self, message_bytes: int) -> HostMemory:
        size = self._size
        min_size = max(message_bytes, _MIN_BUFFER_BYTES)
        if min_size > size:
            # Compressed images differ in size. Without the margin of a quarter, each slightly
            # larger image would replace all buffers.
            size = max(min_size, size + size // 4)
        # Take the buffer that returned first, so that each free buffer soon returns again and is
        # freed if it has become too large.
        while self._free:
            memory = self._free.popleft()
            if memory.size >= size:
                return memory
            self._free_memory(memory)
        try:
            memory = self._allocate_memory(size)
        except MemoryError:
            if size == min_size:
                raise
            # Retry with the size that this message needs.
            memory = self._allocate_memory(min_size)
        with self._count_lock:
            self.count += 1
        return memory

    def _allocate_memory(self, size: int) -> HostMemory:
        try:
            return self._allocate(size)
        except CudaError as error:  # page-locked memory
            if error.sticky:
                raise
            raise MemoryError(str(error)) from error

    def close(self) -> None:
        """Free all memory that is not in use. Memory in use is freed when its lease ends.

        Raises:
            CudaError: some page-locked memory could not be freed. All other memory is freed.
        """
        self._closed = True
        self._free_all()

    def _give_back(self, lease: Lease) -> None:
        # Runs in the thread that releases the last array, possibly during garbage collection, so
        # it must not take `_lend_lock`. If two threads change an attribute at once, one change is
        # lost, which only delays an adaptation.
        memory = lease.memory
        if lease.message_bytes:
            self._recent_bytes = (*self._recent_bytes, lease.message_bytes)[-_RECENT_MESSAGES:]
        recent = sorted(self._recent_bytes) or [0]
        # The median; of two middle sizes, the lower one.
        usual = max(recent[(len(recent) - 1) // 2], _MIN_BUFFER_BYTES)
        try:
            if memory.size > _MAX_SIZE_RATIO * usual:
                self._size = min(self._size, usual)
                self._free_memory(memory)
                return
            self._size = max(self._size, memory.size)
            self._free.append(memory)
            if self._closed:
                self._free_all()
        except Exception as error:  # no caller can handle it; a lost GPU frees its memory
            _LOG.debug('memory of a message could not be freed: %s', error)

    def _free_all(self) -> None:
        with ExitStack() as freeing:  # frees each buffer even if freeing another one fails
            while self._free:
                try:
                    memory = self._free.pop()
                except IndexError:  # another thread took the last free buffer
                    return
                freeing.callback(self._free_memory, memory)

    def _free_memory(self, memory: HostMemory) -> None:
        with self._count_lock:
            self.count -= 1
        memory.close()
