"""Takes messages as they come, keeps the pipeline busy, publishes in order, counts everything.

Guarantees:
    * ``submit`` returns at once. One message waits at most; a newer one replaces it (newest wins).
    * Results are published in the order in which their messages came, by one worker thread.
    * At any instant received == published + dropped (by reason) + failed + in flight; after
      ``stop`` nothing is in flight.
Knows neither CUDA nor ROS: a message is whatever ``read`` turns into a frame.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from queue import SimpleQueue
from typing import Final
from typing import Generic
from typing import TypeVar

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.errors import ImageError
from trt_perception.images.jpeg import AnyFrame
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.frame_statistics import FrameTimes
from trt_perception.pipelines.pipeline import Pipeline

__all__ = ['Detector']

Message = TypeVar('Message')

# How often an unfinished slot is asked whether it is done, as a share of the last frame's time,
# within limits: a late answer costs latency, a question costs about 20 µs of the interpreter.
_POLL_SHARE: Final = 0.03
_POLL_LIMITS_S: Final = (50e-6, 2e-3)


@dataclass(slots=True)
class _Job(Generic[Message]):
    """One message on its way; times are seconds of the monotonic clock."""

    message: Message
    received: float
    frame: AnyFrame | None = None
    slot: int = -1
    taken: float = 0.0
    copied: float = 0.0


class Detector(Generic[Message]):
    """Runs a pipeline on the newest message.

    Args:
        pipeline: does the work; the detector uses it from its worker thread only and does not
            close it.
        read: makes a frame of a message, in the worker; raises ImageError where it cannot.
        publish: takes a message, its frame and its detections, in the worker.
        refused: called with the error of each message that cannot be read, in the worker.
        faulted: called once with the exception that ended the worker, in the worker; must return
            at once.
        thresholds: used at first.

    Attributes:
        thresholds: for each frame that enters the pipeline from now on; may be set at any time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        read: Callable[[Message], AnyFrame],
        publish: Callable[[Message, AnyFrame, Detections], None],
        refused: Callable[[ImageError], None],
        faulted: Callable[[BaseException], None],
        thresholds: Thresholds,
    ) -> None:
        self._pipeline = pipeline
        self._read = read
        self._publish = publish
        self._refused = refused
        self._faulted = faulted
        self.thresholds = thresholds
        # One lock for everything below. Whoever gives the worker something to do wakes it, only if
        # it sleeps: a Condition would take its lock twice and make another each time.
        self._lock = threading.Lock()
        self._sleeping = False
        self._wake_up: SimpleQueue[None] = SimpleQueue()
        self._waiting: _Job[Message] | None = None
        self._flying: deque[_Job[Message]] = deque()
        self._free = deque(range(pipeline.depth))
        self._statistics = FrameStatistics()
        self._running = False
        self._worker: threading.Thread | None = None
        self._poll_s = _POLL_LIMITS_S[0]

    def start(self) -> None:
        """Start the worker; again after a ``stop``, not after a fault that left frames behind."""
        assert self._worker is None
        assert len(self._free) == self._pipeline.depth, 'the pipeline still holds frames'
        self._running = True
        worker = threading.Thread(target=self._work, name='detector', daemon=True)
        worker.start()
        self._worker = worker  # only now: one that could not start cannot be joined

    def stop(self) -> None:
        """Let the frames in flight finish, drop the one that waits, and join the worker.

        May be called again.
        """
        with self._lock:
            self._running = False
            self._wake()
        if self._worker is not None:
            self._worker.join()
            self._worker = None
        if self._flying or self._waiting is not None:
            self._abandon()  # the worker died without a word

    @property
    def alive(self) -> bool:
        """Whether the worker is there; without it nothing is ever answered."""
        return self._worker is not None and self._worker.is_alive()

    def submit(self, message: Message) -> None:
        """Hand over a message; from any thread, without waiting."""
        job = _Job(message, time.perf_counter())
        with self._lock:
            self._statistics.receive(job.received)
            if not self._running:
                self._statistics.drop('inactive')
                return
            if self._waiting is not None:
                self._statistics.drop('replaced')
            self._waiting = job
            self._wake()

    def _wake(self) -> None:
        """Wake the worker where it sleeps; with the lock held."""
        if self._sleeping:
            self._sleeping = False
            self._wake_up.put(None)

    def statistics(self) -> FrameStatistics:
        """Return counts and stage times of one instant."""
        with self._lock:
            return self._statistics.snapshot()

    def _work(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                if job.slot < 0:
                    self._enqueue(job)
                else:
                    self._collect(job)
        except BaseException as error:
            self._abandon()
            self._faulted(error)

    def _next_job(self) -> _Job[Message] | None:
        """Wait for whichever comes first: a message that a slot can take, or a slot to collect.

        None: stopped.
        """
        while True:
            with self._lock:
                if not self._running and self._waiting is not None:
                    self._waiting = None
                    self._statistics.drop('inactive')
                if self._waiting is not None and self._free:
                    job, self._waiting = self._waiting, None
                    # In flight from here on, so that a fault in reading it is counted.
                    self._flying.append(job)
                    return job
                poll_s = None
                if self._flying:
                    oldest = self._flying[0]
                    if not self._free or not self._running or self._pipeline.done(oldest.slot):
                        return oldest
                    poll_s = self._poll_s
                elif not self._running:
                    return None
                self._sleeping = True
            # One that came after the time was over ends the next sleep, which does no harm.
            with contextlib.suppress(Empty):
                self._wake_up.get(timeout=poll_s)

    def _enqueue(self, job: _Job[Message]) -> None:
        job.taken = time.perf_counter()
        try:
            job.frame = self._read(job.message)
        except ImageError as error:
            self._drop(error, self._flying.pop)
            return
        self._pipeline.enqueue(self._free[0], [job.frame], [self.thresholds])
        job.copied = time.perf_counter()
        job.slot = self._free.popleft()

    def _collect(self, job: _Job[Message]) -> None:
        assert job.frame is not None
        (result,) = self._pipeline.collect(job.slot)
        self._free.append(job.slot)
        if isinstance(result, ImageError):
            self._drop(result, self._flying.popleft)
            return
        collected = time.perf_counter()
        self._publish(job.message, job.frame, result.detections)
        now = time.perf_counter()
        self._poll_s = min(
            max(_POLL_SHARE * result.compute_s, _POLL_LIMITS_S[0]), _POLL_LIMITS_S[1]
        )
        with self._lock:
            self._flying.popleft()
            self._statistics.publish(
                FrameTimes(
                    wait=job.taken - job.received,
                    copy=job.copied - job.taken,
                    compute=result.compute_s,
                    publish=now - collected,
                    total=now - job.received,
                ),
                now,
            )

    def _drop(self, error: ImageError, land: Callable[[], object]) -> None:
        """Count a frame that cannot be read; ``land`` takes it out of those in flight."""
        with self._lock:
            land()
            self._statistics.drop(error.reason)
        self._refused(error)

    def _abandon(self) -> None:
        """Count what a fault leaves behind: frames in flight failed, a waiting one is dropped."""
        with self._lock:
            self._running = False
            self._statistics.fail(len(self._flying))
            self._flying.clear()
            if self._waiting is not None:
                self._waiting = None
                self._statistics.drop('inactive')
