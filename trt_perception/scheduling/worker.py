# SPDX-License-Identifier: Apache-2.0
"""The worker thread of one pipeline, which moves each frame from its mailbox to the publisher.

A frame passes through these methods, in this order:

* `WorkerPool.submit`: any thread puts the message into the mailbox of its camera.
* `_next_batch`: the worker takes one message from each of several mailboxes.
* `_enqueue`: the worker reads these messages and starts the batch in a free slot.
* `_collect`: the worker fetches the results of the oldest batch.
* `_publish_next`: the worker publishes one result and counts the frame.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from trt_perception.errors import ImageError
from trt_perception.monitoring.frame_statistics import FrameStatistics, FrameTimes
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.pipelines.pipeline import FrameError, Pipeline, Result
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.scheduler import Scheduler

Message = TypeVar('Message')

# Poll a running batch at intervals of 3 % of the last batch's time, from 80 µs to 2 ms. Longer
# intervals add latency; each poll takes about 20 µs of interpreter time.
_POLL_INTERVAL_SHARE: Final = 0.03
_POLL_INTERVAL_LIMITS_S: Final = (80e-6, 2e-3)
# Poll right after the enqueue, because an ONNX Runtime pipeline is always done: it computes in
# `collect`. Poll next after 95 % of the shortest recent time of a batch, which a slow batch raises
# by at most 25 %.
_SECOND_POLL_SHARE: Final = 0.95
_MAX_SLOWDOWN: Final = 1.25
# For short batches, poll without sleeping for 0.2 ms from the second poll on: each sleep takes
# about 60 µs longer than requested.
_SLEEPLESS_S: Final = 0.2e-3


@dataclass
class PoolState(Generic[Message]):
    """State that a pool shares with its workers.

    Attributes:
        cameras: all cameras; `PendingFrame.camera_index` refers to this sequence.
        camera_statistics: counters of each camera, in the same order.
        clock: returns the time in seconds.
        lock: protects counters and mailboxes. Hold it to call methods that "require the lock".
        is_running: whether the pool accepts messages.
    """

    cameras: Sequence[Camera[Message]]
    camera_statistics: Sequence[FrameStatistics]
    clock: Callable[[], float]
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_running: bool = False


@dataclass(slots=True, eq=False)
class PendingFrame(Generic[Message]):
    """A message on its way from `WorkerPool.submit` to the publisher.

    The worker sets all fields that have a default. Times are seconds of the pool's clock.
    """

    camera_index: int
    message: Message
    received_s: float
    scheduled_s: float = 0.0
    copied_s: float = 0.0
    result: Result | FrameError | None = None


@dataclass(slots=True, eq=False)
class _Batch(Generic[Message]):
    """Frames that share one slot of the pipeline."""

    frames: list[PendingFrame[Message]]
    slot: int = -1
    started_s: float = 0.0


class WorkerOwner(Protocol):
    """Reacts to the failure of a worker. The WorkerPool implements this protocol."""

    def on_worker_failed(self, worker: PipelineWorker[Any], error: BaseException) -> None:
        """Handle the exception that ended a worker. Called in that worker's thread."""


class PipelineWorker(Generic[Message]):
    """Runs one pipeline in a thread.

    Args:
        name: name of the thread.
        pipeline: runs the batches. Only the worker's thread uses the pipeline.
        state: cameras, counters and lock that all workers of the pool share.
        owner: notified when an exception ends the thread.
        max_delay_s: how long a message may wait for a full batch while a slot is free.

    Attributes:
        statistics: counters of the pipeline, protected by the lock.
        scheduler: mailboxes of the cameras, protected by the lock. Call `wake` after a `put`.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        state: PoolState[Message],
        *,
        owner: WorkerOwner,
        max_delay_s: float,
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._state = state
        self._owner = owner
        self._max_delay_s = max_delay_s
        self.statistics = PipelineStatistics(
            depth=pipeline.depth, decodes_jpeg=pipeline.decodes_jpeg
        )
        self._served_cameras: list[Camera[Message]] = []
        self.scheduler: Scheduler[PendingFrame[Message]] = Scheduler(pipeline.batch, max_delay_s)
        self._in_flight: deque[_Batch[Message]] = deque()  # Oldest batch first.
        self._unpublished: deque[PendingFrame[Message]] = deque()  # Frames with a result.
        self._free_slots = deque(range(pipeline.depth))
        self._last_batch_s = 0.0
        self._shortest_batch_s: dict[int, float] = {}  # by the number of frames in a batch
        self._thread: threading.Thread | None = None
        # A Condition would acquire its lock twice and allocate another lock for each wait.
        self._wake_ups: SimpleQueue[None] = SimpleQueue()
        self._is_sleeping = False

    # The pool calls these methods from other threads.

    def add_camera(self, camera: Camera[Message]) -> None:
        """Serve a camera. Call this method before `start`."""
        self._served_cameras.append(camera)

    def start(self) -> None:
        """Start the thread. Not allowed after a fault that left frames in the pipeline."""
        assert self._thread is None
        assert len(self._free_slots) == self._pipeline.depth, 'the pipeline still holds frames'
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # set last, because a thread that did not start cannot be joined

    def join(self) -> None:
        """Wait until the thread has ended. Does nothing if no thread was started."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def snapshot(self) -> PipelineStatistics:
        """Return the counts of the pipeline at this moment. Requires the lock."""
        return self.statistics.snapshot(self._pipeline.opening_reason)

    def wake(self) -> None:
        """Wake the thread if it sleeps. Requires the lock."""
        if self._is_sleeping:
            self._is_sleeping = False
            self._wake_ups.put(None)

    def drop_waiting(self, reason: str, *, only_disabled: bool = False) -> None:
        """Empty all mailboxes, or only the mailboxes of disabled cameras. Requires the lock."""
        for index in list(self.scheduler.waiting_cameras):
            if not (only_disabled and self._state.cameras[index].enabled):
                self.scheduler.remove(index)
                self._state.camera_statistics[index].drop(reason)

    def abandon_frames(self) -> None:
        """Drop waiting frames as `inactive`; count all others as failed. Requires the lock."""
        self.drop_waiting('inactive')
        in_flight = [pending for batch in self._in_flight for pending in batch.frames]
        for pending in (*in_flight, *self._unpublished):
            self._state.camera_statistics[pending.camera_index].fail(1)
        self._in_flight.clear()
        self._unpublished.clear()

    # The worker's thread calls these methods. While the thread sleeps, no local variable may refer
    # to a frame, because a frame keeps the memory of its message in use.

    def _run(self) -> None:
        try:
            while self.step():
                pass
        except BaseException as error:
            self._owner.on_worker_failed(self, error)

    def step(self) -> bool:
        """Do the most urgent task, or sleep until there is one. Return False to end the thread."""
        with self._state.lock:
            batch, batch_wait_s = self._next_batch()
            has_task = batch is not None or bool(self._unpublished)
            if not (has_task or self._in_flight or self._state.is_running):
                return False
            can_start_batch = self._state.is_running and self._has_free_slot()
            must_collect = bool(self._in_flight) and not can_start_batch
            self._is_sleeping = not (has_task or must_collect)
            while self._is_sleeping and not self._wake_ups.empty():
                self._wake_ups.get()  # wake-ups from before this step looked for tasks
        if batch is not None:
            self._enqueue(batch)  # before publishing, so that the pipeline computes in parallel
        elif self._unpublished:
            self._publish_next()
        elif must_collect:
            self._collect()  # blocks until the batch is done, which is cheaper than polling
        elif not self._in_flight:
            self._sleep(batch_wait_s)
        elif self._pipeline.is_done(self._in_flight[0].slot):
            self._is_sleeping = False
            self._collect()
        else:
            poll_s = self._next_poll_s(self._in_flight[0])
            self._sleep(poll_s if batch_wait_s is None else min(poll_s, batch_wait_s))
        return True

    def _has_free_slot(self) -> bool:
        return len(self._in_flight) < self._pipeline.max_in_flight

    def _next_batch(self) -> tuple[_Batch[Message] | None, float | None]:
        """Return the next batch, or the seconds until one is due, if known. Requires the lock."""
        self.drop_waiting('disabled', only_disabled=True)
        if not self.scheduler.waiting_cameras or not self._has_free_slot():
            return None, None
        now_s = self._state.clock()
        if self._max_delay_s:
            enabled_count = sum(camera.enabled for camera in self._served_cameras)
            batch_wait_s = self.scheduler.next_batch_wait_s(now_s, enabled_count)
            if batch_wait_s > 0:
                return None, batch_wait_s
        batch = _Batch(self.scheduler.next_batch())
        for pending in batch.frames:
            pending.scheduled_s = now_s
        # Add the batch before its messages are read, so that a fault while reading is counted.
        self._in_flight.append(batch)
        return batch, None

    def _enqueue(self, batch: _Batch[Message]) -> None:
        """Read the messages of a batch, drop invalid images, and start the batch."""
        frames, thresholds = [], []
        for pending in tuple(batch.frames):
            camera = self._state.cameras[pending.camera_index]
            try:
                frame = camera.read_frame(pending.message)
            except ImageError as error:
                self._drop(pending, error, batch.frames)
                continue
            frames.append(frame)
            own, wanted = camera.thresholds, camera.wanted_topics()
            thresholds.append(replace(own, wanted_topics=wanted) if wanted else own)
        if not frames:
            self._in_flight.pop()
            return
        batch.started_s = self._state.clock()
        self._pipeline.enqueue(self._free_slots[0], frames, thresholds)
        batch.slot = self._free_slots.popleft()
        now_s = self._state.clock()
        for pending, frame in zip(batch.frames, frames, strict=True):
            # Decoding counts as compute time, because the pipeline does it.
            pending.copied_s = now_s if frame.is_decoded else batch.started_s

    def _next_poll_s(self, batch: _Batch[Message]) -> float:
        """Return the seconds until the next poll of a batch."""
        lower_s, upper_s = _POLL_INTERVAL_LIMITS_S
        interval_s = min(max(_POLL_INTERVAL_SHARE * self._last_batch_s, lower_s), upper_s)
        second_poll_s = _SECOND_POLL_SHARE * self._shortest_batch_s.get(len(batch.frames), 0.0)
        wait_s = batch.started_s + second_poll_s - self._state.clock()
        if wait_s > 0:
            return wait_s
        return 0.0 if interval_s == lower_s and wait_s > -_SLEEPLESS_S else interval_s

    def _collect(self) -> None:
        """Fetch the results of the oldest batch. Publish the first one if no message waits."""
        batch = self._in_flight[0]
        results = self._pipeline.collect(batch.slot)
        for pending, result in zip(batch.frames, results, strict=True):
            pending.result = result
        self._free_slots.append(batch.slot)
        self._in_flight.popleft()
        self._unpublished.extend(batch.frames)
        # All results of a batch have the same times.
        first_result = next((one for one in results if isinstance(one, Result)), None)
        compute_s = None if first_result is None else first_result.compute_s
        if first_result is not None:
            batch_s = first_result.gpu_s or first_result.compute_s
            self._last_batch_s = batch_s
            previous_s = self._shortest_batch_s.get(len(results), batch_s)
            self._shortest_batch_s[len(results)] = min(batch_s, _MAX_SLOWDOWN * previous_s)
        with self._state.lock:
            first = batch.frames[0]  # the worker reads all frames of a batch together
            self.statistics.count(len(results), compute_s, first.copied_s - first.scheduled_s)
            message_waits = bool(self.scheduler.waiting_cameras)
        if not message_waits:
            self._publish_next()

    def _publish_next(self) -> None:
        """Publish one result. A new batch may start before the next result is published."""
        pending = self._unpublished[0]
        result = pending.result
        if isinstance(result, FrameError):
            self._drop(pending, result, self._unpublished)
            return
        assert result is not None
        camera = self._state.cameras[pending.camera_index]
        publish_started_s = self._state.clock()
        try:
            camera.publish_result(pending.message, result.frame, result.found)
        except ImageError as error:
            self._drop(pending, error, self._unpublished)
            return
        published_s = self._state.clock()
        times = FrameTimes(
            wait=pending.scheduled_s - pending.received_s,
            copy=pending.copied_s - pending.scheduled_s,
            compute=result.compute_s,
            publish=published_s - publish_started_s,
            total=published_s - pending.received_s,
        )
        with self._state.lock:
            self._unpublished.popleft()
            self._state.camera_statistics[pending.camera_index].publish(times, published_s)
            self.statistics.worker_s += times.publish

    def _drop(
        self,
        pending: PendingFrame[Message],
        error: FrameError,
        frames: MutableSequence[PendingFrame[Message]],
    ) -> None:
        """Remove a frame from `frames`, count it as dropped, and report the error."""
        with self._state.lock:
            frames.remove(pending)
            self._state.camera_statistics[pending.camera_index].drop(error.reason)
        # The traceback would keep the message in memory while the camera stores the error.
        camera = self._state.cameras[pending.camera_index]
        camera.on_image_error(pending.message, error.with_traceback(None))

    def _sleep(self, seconds: float | None) -> None:
        with contextlib.suppress(Empty):
            self._wake_ups.get(timeout=seconds)
