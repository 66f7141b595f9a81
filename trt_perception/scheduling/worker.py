"""One pipeline's thread: takes what waits, keeps the slots full, publishes in order.

The detector owns the lock and the counts, which are of all cameras and pipelines together.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from trt_perception.errors import ImageError
from trt_perception.images.jpeg import GivenFrame, UnreadFrame
from trt_perception.monitoring.frame_statistics import FrameStatistics, FrameTimes
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.pipelines.pipeline import Pipeline, Result
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.scheduler import Scheduler

__all__ = ['Job', 'Ledger', 'Worker']

Message = TypeVar('Message')

# How often an unfinished slot is asked whether it is done, as a share of the last batch's time,
# within limits: a late answer costs latency, a question costs about 20 µs of the interpreter.
_POLL_SHARE: Final = 0.03
_POLL_LIMITS_S: Final = (80e-6, 2e-3)
# It is asked at once, as some pipelines are done at once, and again not before such a share of the
# least time has passed that batches of so many frames took lately. What is lately: a longer time
# moves the least one up by so much.
_NOT_BEFORE: Final = 0.95
_SLOWER: Final = 1.25


@dataclass
class Ledger:
    """What the detector and all its workers share.

    Attributes:
        lock: for the rest of it and for what waits; one, so that all counts are of one instant.
        cameras: counts of each.
        running: messages are taken.
    """

    cameras: list[FrameStatistics]
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: bool = False


@dataclass(slots=True, eq=False)
class Job(Generic[Message]):
    """One message on its way; times are seconds of the detector's clock."""

    camera: int
    message: Message
    received: float
    frame: GivenFrame | None = None
    taken: float = 0.0
    copied: float = 0.0


@dataclass(slots=True, eq=False)
class _Batch(Generic[Message]):
    """The frames of one slot."""

    jobs: list[Job[Message]]
    slot: int = -1
    begun: float = 0.0


class Worker(Generic[Message]):
    """The frames of one pipeline: waiting, in its slots, and out of them.

    Args:
        name: of the thread.
        pipeline: used from the worker's thread only.
        cameras: all of the detector's.
        ledger: of the detector.
        ended: called with the exception that ended the thread, in it.
        max_delay_s: how long a message may wait for others to fill a batch.
        clock: returns seconds.

    Attributes:
        statistics: of the pipeline; guarded by the ledger's lock.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        cameras: Sequence[Camera[Message]],
        ledger: Ledger,
        *,
        ended: Callable[[Worker[Message], BaseException], None],
        max_delay_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._cameras = cameras
        self._ledger = ledger
        self._ended = ended
        self._clock = clock
        self._max_delay_s = max_delay_s
        self.statistics = PipelineStatistics()
        self._scheduler: Scheduler[Job[Message]] = Scheduler(pipeline.batch, max_delay_s)
        # Which of the cameras are this pipeline's.
        self._own: list[Camera[Message]] = []
        # Batches in slots, in the order in which they were taken, and results to be published.
        self._flying: deque[_Batch[Message]] = deque()
        self._results: deque[tuple[Job[Message], Result | ImageError]] = deque()
        self._free = deque(range(pipeline.depth))
        # Whoever gives the worker something to do wakes it, only if it sleeps: a Condition would
        # take its lock twice and make another each time.
        self._sleeping = False
        self._wake_up: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._poll_s = _POLL_LIMITS_S[0]
        self._least_s: dict[int, float] = {}  # by number of frames

    # From other threads.

    def serve(self, camera: Camera[Message]) -> None:
        """Take note of a camera; before the start."""
        self._own.append(camera)

    def start(self) -> None:
        """Start the thread; not after a fault that left frames behind."""
        assert self._thread is None
        assert len(self._free) == self._pipeline.depth, 'the pipeline still holds frames'
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # only now: one that could not start cannot be joined

    def join(self) -> None:
        """Wait for the thread to end; without one return at once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and self._thread.is_alive()

    def offer(self, job: Job[Message]) -> Job[Message] | None:
        """Let a message wait; return the one that it replaces. With the lock held."""
        replaced = self._scheduler.offer(job.camera, job, job.received)
        self.wake()
        return replaced

    def wake(self) -> None:
        """Wake the thread where it sleeps; with the lock held."""
        if self._sleeping:
            self._sleeping = False
            self._wake_up.put(None)

    def abandon(self) -> None:
        """Count what a fault leaves behind as failed, what waits as dropped; with the lock."""
        self.drop_waiting('inactive')
        for batch in self._flying:
            for job in batch.jobs:
                self._ledger.cameras[job.camera].fail(1)
        for job, _ in self._results:
            self._ledger.cameras[job.camera].fail(1)
        self._flying.clear()
        self._results.clear()

    def drop_waiting(self, reason: str, *, all_cameras: bool = True) -> None:
        """Drop what waits, of all cameras or of those switched off; with the lock held."""
        for camera in list(self._scheduler.waiting):
            if all_cameras or not self._cameras[camera].enabled:
                self._scheduler.withdraw(camera)
                self._ledger.cameras[camera].drop(reason)

    # In the worker's thread. What holds a message ends with the function that does: while the
    # worker sleeps, it must keep nobody's memory.

    def _run(self) -> None:
        try:
            while self.step():
                pass
        except BaseException as error:
            self._ended(self, error)

    def step(self) -> bool:
        """Do what is most urgent, or sleep until there is something; return False at the end.

        A slot is filled before anything is published: the pipeline works meanwhile.
        """
        with self._ledger.lock:
            batch, wait_s = self._take()
            idle = batch is None and not self._results
            if idle and not self._flying and not self._ledger.running:
                return False
            # Nothing else can be done: rather than ask, wait in the pipeline.
            stuck = not (self._free and self._ledger.running) and bool(self._flying)
            self._sleeping = idle and not stuck
            while self._sleeping and not self._wake_up.empty():
                self._wake_up.get()  # for something that was found meanwhile
        if batch is not None:
            self._enqueue(batch)
        elif self._results:
            self._publish()
        elif stuck:
            self._collect()
        elif not self._flying:
            self._sleep(wait_s)
        elif self._pipeline.done(self._flying[0].slot):
            self._sleeping = False
            self._collect()
        else:
            poll_s = max(self._poll_s, self._early_s(self._flying[0]))
            self._sleep(poll_s if wait_s is None else min(poll_s, wait_s))
        return True

    def _early_s(self, batch: _Batch[Message]) -> float:
        """Return for how many seconds a batch need not be asked for."""
        least_s = self._least_s.get(len(batch.jobs), 0.0)
        return batch.begun + _NOT_BEFORE * least_s - self._clock()

    def _sleep(self, seconds: float | None) -> None:
        with contextlib.suppress(Empty):
            self._wake_up.get(timeout=seconds)

    def _take(self) -> tuple[_Batch[Message] | None, float | None]:
        """Return the next batch, or in how many seconds there may be one; with the lock held."""
        for camera in self._scheduler.waiting:
            if not self._cameras[camera].enabled:
                self.drop_waiting('disabled', all_cameras=False)
                break
        if not self._scheduler.waiting or not self._free:
            return None, None
        now = self._clock()
        if self._max_delay_s:
            wait_s = self._scheduler.wait_s(now, sum(camera.enabled for camera in self._own))
            if wait_s > 0:
                return None, wait_s
        batch = _Batch(self._scheduler.take())
        for job in batch.jobs:
            job.taken = now
        # In flight from here on, so that a fault in reading one is counted.
        self._flying.append(batch)
        return batch, None

    def _enqueue(self, batch: _Batch[Message]) -> None:
        frames, thresholds = [], []
        for job in tuple(batch.jobs):
            camera = self._cameras[job.camera]
            try:
                job.frame = camera.read(job.message)
            except ImageError as error:
                self._drop(job.camera, error, functools.partial(batch.jobs.remove, job))
                continue
            frames.append(job.frame)
            thresholds.append(camera.wanted())
        if not frames:
            self._flying.pop()
            return
        batch.begun = self._clock()
        self._pipeline.enqueue(self._free[0], frames, thresholds)
        batch.slot = self._free.popleft()
        enqueued = self._clock()
        for job in batch.jobs:
            # To read a file, wherever that is done, counts as the pipeline's own time.
            job.copied = batch.begun if isinstance(job.frame, UnreadFrame) else enqueued

    def _collect(self) -> None:
        batch = self._flying[0]
        results = self._pipeline.collect(batch.slot)
        found = list(zip(batch.jobs, results, strict=True))
        self._free.append(batch.slot)
        self._flying.popleft()
        self._results.extend(found)
        compute_s = None
        for result in results:
            if isinstance(result, Result):
                compute_s = result.compute_s
                least_s, most_s = _POLL_LIMITS_S
                self._poll_s = min(max(_POLL_SHARE * compute_s, least_s), most_s)
                before_s = self._least_s.get(len(results), compute_s)
                self._least_s[len(results)] = min(compute_s, _SLOWER * before_s)
                break
        with self._ledger.lock:
            self.statistics.count(len(results), compute_s)
            waiting = bool(self._scheduler.waiting)
        if not waiting:  # or the next step finds out
            del batch, found
            self._publish()

    def _publish(self) -> None:
        """Publish one result; the others after the next look at what waits."""
        job, result = self._results[0]
        if isinstance(result, ImageError):
            self._drop(job.camera, result, self._results.popleft)
            return
        frame = job.frame.frame if isinstance(job.frame, UnreadFrame) else job.frame
        assert frame is not None
        began = self._clock()
        try:
            self._cameras[job.camera].publish(job.message, frame, result.detections)
        except ImageError as error:
            self._drop(job.camera, error, self._results.popleft)
            return
        now = self._clock()
        times = FrameTimes(
            wait=job.taken - job.received,
            copy=job.copied - job.taken,
            compute=result.compute_s,
            publish=now - began,
            total=now - job.received,
        )
        with self._ledger.lock:
            self._results.popleft()
            self._ledger.cameras[job.camera].publish(times, now)

    def _drop(self, camera: int, error: ImageError, land: Callable[[], object]) -> None:
        """Count a frame that cannot be read; ``land`` takes it out of those in flight."""
        with self._ledger.lock:
            land()
            self._ledger.cameras[camera].drop(error.reason)
        # Its traceback holds the message.
        self._cameras[camera].refused(error.with_traceback(None))
