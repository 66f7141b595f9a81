"""Copying pixels into pinned memory, which one thread does about as slowly as the engine runs."""

from __future__ import annotations

import itertools
import threading
from queue import SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ['Copier']

# 6.2 MB took 376 µs with one thread, 232 with two, 196 to 201 with three or four and more
# with six; its 99th percentile was least with four (264 µs, 439 with three; 16 cores). Measured by
# scripts/benchmarks/copy_threads.py.
_COPY_THREADS: Final = 4
_COPY_CHUNK_BYTES: Final = 1024 * 1024

_Pixels = npt.NDArray[np.uint8]


class Copier:
    """Copies pixels with several threads.

    NumPy releases the GIL while it copies. Queues made in C hand the parts over: a thread pool's
    futures cost as much as a tenth of the copy.

    Args:
        threads: which copy, the caller's among them.
    """

    def __init__(self, threads: int = _COPY_THREADS) -> None:
        self._count = threads
        self._parts: SimpleQueue[tuple[_Pixels, _Pixels] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for index in range(1, threads):
                thread = threading.Thread(target=self._work, name=f'copy {index}', daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def copy(self, target: _Pixels, source: _Pixels) -> None:
        """Copy the whole source to the front of the target."""
        parts = min(self._count, max(1, source.size // _COPY_CHUNK_BYTES))
        bounds = [source.size * part // parts for part in range(parts + 1)]
        ranges = [slice(low, high) for low, high in itertools.pairwise(bounds)]
        for part in ranges[1:]:
            self._parts.put((target[part], source[part]))
        try:
            np.copyto(target[ranges[0]], source[ranges[0]])
        finally:  # the next copy must not take this one's answers for its own
            errors = [self._done.get() for _ in ranges[1:]]
        for error in filter(None, errors):
            raise error

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._parts.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            try:
                np.copyto(*part)
                self._done.put(None)
            except BaseException as error:  # noqa: PERF203  whoever waits must hear of it
                self._done.put(error)
