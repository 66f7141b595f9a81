# SPDX-License-Identifier: Apache-2.0
"""Checks a Triton server, and owns the shared memory of the requests of one model.

A thread asks the server once per second whether the model is ready and unchanged. After an error
it asks more often. Until the model is ready again, requests fail at once.

The thread also cleans up: after `close`, at the end of the interpreter, and when the program has
dropped its last reference to the model. So the thread must not refer to the model. A forked child
leaves everything to its parent.

A signal handler may raise in any line of the main thread. In gRPC, an Event or a Condition, such
an exception can leave a lock held. So the threads share only locks and SimpleQueue, which C
implements, and another thread sends the requests of the main thread.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from trt_perception.errors import EngineError, InterruptionError, ServerError
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.interruption import interrupted_for_s
from trt_perception.stages.triton.connection import ServedModel, TritonConnection
from trt_perception.stages.triton.memory import TritonRegion, open_regions, remove_left_regions

_LOG: Final = logging.getLogger(__name__)
_CHECK_PERIOD_S: Final = 1.0
# Time between two checks after an error, and until the model is ready again.
_MIN_CHECK_PERIOD_S: Final = 0.1
# Longest wait for answers of requests whose model is being closed. The server can forget a region
# only after the answer.
_LAST_ANSWERS_S: Final = 1.0
_LAST_ANSWERS_POLL_S: Final = 0.01
# Longest wait at the end of the interpreter. Each call of a server has a shorter time limit.
_EXIT_LIMIT_S: Final = 10.0
_END_POLL_S: Final = 0.005


class ServerWatch:
    """Watches the server of one model.

    Args:
        address: server and model.
        connection: the connection to the server. The watch closes it at the end.
        served: the description of the model when it was opened.

    Attributes:
        lock: protects all other attributes.
        regions: all regions.
        free_regions: regions that no request uses.
        busy_regions: regions of requests that the server has not answered.
        waiting_regions: regions that the server may still use for failed requests, or does not
            know since its restart.
        problem: why requests fail at once; None if the model is ready.
        change: why this model cannot be used any more; None if the server still has it.
        has_ended: whether everything is cleaned up.
    """

    def __init__(
        self, address: TritonAddress, connection: TritonConnection, served: ServedModel
    ) -> None:
        self._address = address
        self._connection = connection
        self._served = served
        self.lock = threading.Lock()
        self.regions: list[TritonRegion] = []
        self.free_regions: list[TritonRegion] = []
        self.busy_regions: set[TritonRegion] = set()
        self.waiting_regions: set[TritonRegion] = set()
        self.problem: EngineError | None = None
        self.change: EngineError | None = None
        self._left_regions = remove_left_regions()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_ending = False
        self.has_ended = False
        self._process = os.getpid()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(
            target=_call_all, args=(self._calls,), name='triton calls', daemon=True
        ).start()
        self._thread = threading.Thread(target=self._run, name='triton', daemon=True)
        _OPEN.add(self)
        self._thread.start()

    def share_memory(self, tensors: Sequence[TensorSpec], count: int) -> None:
        """Make regions that hold these tensors, and let the server use them.

        Raises:
            OSError: there is not enough shared memory, or it is not available.
            EngineError: the regions are too large, or the server cannot use them.
        """
        self.regions = open_regions(tensors, count)
        registered: list[TritonRegion] = []
        try:
            for region in self.regions:
                registered.append(region)
                self._connection.register(region)
        except BaseException:
            regions, self.regions = self.regions, []
            self._remove(regions, registered)
            raise
        with self.lock:
            self.free_regions = list(self.regions)

    def take_region(self) -> TritonRegion | None:
        """Return a region for a request; None if none is free. The caller holds the lock."""
        if not self.free_regions:
            return None
        region = self.free_regions.pop()
        self.busy_regions.add(region)
        return region

    def give_back(self, region: TritonRegion, *, is_free: bool) -> None:
        """Return the region of a request. The caller holds the lock.

        Args:
            region: a region of `take_region`.
            is_free: False if the server may still use the region.
        """
        self.busy_regions.discard(region)
        if is_free:
            self.free_regions.append(region)
        else:
            self.waiting_regions.add(region)

    def ask_now(self) -> None:
        """Ask the server soon, because a request failed."""
        self._wake.put(None)

    def call_uninterrupted(self, function: Callable[[], None]) -> None:
        """Call a function, in another thread if a signal handler could raise in this thread."""
        if threading.current_thread() is threading.main_thread():
            self._calls.put(function)
        else:
            function()

    @property
    def is_in_other_process(self) -> bool:
        """Whether this process is a forked child of the process that opened the model."""
        return os.getpid() != self._process

    def stop(self) -> None:
        """Begin to clean up. The garbage collector may call this method in any thread."""
        self._is_ending = True
        self._calls.put(None)
        self._wake.put(None)

    def close(self, limit_s: float | None = None) -> None:
        """Close the connection and remove the shared memory. May be called again.

        Args:
            limit_s: longest wait for the end; None for no limit.
        """
        if not self.is_in_other_process:
            self.stop()
            # In CPython 3.11, an exception of a signal handler in `join` marks the thread as
            # ended. A later `join` would then not wait.
            end = time.monotonic() + (math.inf if limit_s is None else limit_s)
            while not self.has_ended and time.monotonic() < end:
                time.sleep(_END_POLL_S)

    # Only the thread calls these methods.

    def _run(self) -> None:
        try:
            while True:
                self._wait_for_check()
                if self._is_ending:
                    break
                # A process that was asked to end makes no more calls, but waits for `close`.
                with contextlib.suppress(InterruptionError):
                    self._check()
        finally:
            try:
                self._clean_up()
            finally:  # `close` waits for the end without a limit
                _OPEN.discard(self)
                self.has_ended = True

    def _wait_for_check(self) -> None:
        """Wait until the next check, or until the thread must end."""
        if self.problem is None:
            self._wait_for_wake(_CHECK_PERIOD_S)
        end = time.monotonic() + _MIN_CHECK_PERIOD_S
        while not self._is_ending and (rest := end - time.monotonic()) > 0:
            self._wait_for_wake(rest)

    def _wait_for_wake(self, limit_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=limit_s)

    def _check(self) -> None:
        """Ask whether the model is ready, and let requests fail until it is."""
        try:
            served = self._connection.describe_model()
        except EngineError as error:
            with self.lock:
                if self.problem is None:
                    _LOG.warning('%s', error)
                self.problem = ServerError(error.subject, error.found, fix=error.fix)
            return
        with contextlib.suppress(EngineError):  # requests contain the tensors until it succeeds
            self._register_again()
        with self.lock:
            if self.problem is not None:
                _LOG.info('%s: the model is ready again', self._address)
            self.problem = None
            if served != self._served:
                self.change = EngineError(
                    str(self._address),
                    'the server now has another model under this name',
                    fix='configure again',
                )

    def _register_again(self) -> None:
        """Register regions that a restarted server does not know. Raises EngineError."""
        if not self.regions and not self._left_regions:
            return
        with self.lock:
            free, waiting = set(self.free_regions), set(self.waiting_regions)
        known = self._connection.known_regions()
        while self._left_regions:
            if self._left_regions[-1] in known:
                self._connection.unregister(self._left_regions[-1])
            self._left_regions.pop()
        # A server without a waiting region is another process. A region that began to wait after
        # the server's answer may still be in use, and a new region may be registered since.
        with self.lock:
            free.intersection_update(self.free_regions)
            missing = [region for region in free | waiting if region.name not in known]
            self.free_regions = [each for each in self.free_regions if each not in missing]
            self.waiting_regions.update(missing)
        for region in missing:
            self._connection.register(region)
            with self.lock:
                self.waiting_regions.remove(region)
                self.give_back(region, is_free=True)

    def _clean_up(self) -> None:
        end = time.monotonic() + _LAST_ANSWERS_S - interrupted_for_s()
        while self.problem is None and self.busy_regions and time.monotonic() < end:
            time.sleep(_LAST_ANSWERS_POLL_S)
        with self.lock:
            self.problem = ServerError(str(self._address), 'the connection is closed')
            # A server that still runs a request of a region would crash without the region.
            used = self.busy_regions | self.waiting_regions
            regions, self.regions, self.free_regions = self.regions, [], []
        self._remove(regions, [region for region in regions if region not in used])
        self._connection.close()

    def _remove(
        self, regions: Sequence[TritonRegion], unused_regions: Sequence[TritonRegion]
    ) -> None:
        """Remove regions, and let the server forget the unused regions, if it answers."""
        for region in regions:
            region.close()
        with contextlib.suppress(EngineError):
            self._connection.unregister(*(region.name for region in unused_regions))


def _call_all(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Call functions until None comes."""
    while (function := calls.get()) is not None:
        function()
        del function  # a waiting thread must not refer to the model


#: The watches whose thread has not ended.
_OPEN: Final[set[ServerWatch]] = set()


def _close_all() -> None:
    """Clean up for programs that end without `close`."""
    watches = tuple(_OPEN)
    for watch in watches:
        watch.stop()
    end = time.monotonic() + _EXIT_LIMIT_S
    while any(not watch.has_ended for watch in watches) and time.monotonic() < end:
        # The program already ends, so another Ctrl-C or alarm has nothing else to interrupt.
        with contextlib.suppress(BaseException):
            for watch in watches:
                watch.close(max(0.0, end - time.monotonic()))


# A daemon thread still runs while atexit calls functions. A child does not have the threads of its
# parent, and must not touch the parent's regions.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_OPEN.clear)
