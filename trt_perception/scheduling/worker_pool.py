# SPDX-License-Identifier: Apache-2.0
"""Receives messages from cameras, keeps the pipelines busy, and counts every message.

Guarantees:
    * `submit` returns at once. Each camera has at most one waiting message. A newer message
      replaces it ("newest wins"). The module `scheduler` chooses the cameras of the next batch.
    * The worker thread of a camera's pipeline publishes the results of this camera, in the order
      in which its messages arrived.
    * For each camera, at any time, received == published + dropped (by reason) + failed + in
      flight. After `stop`, no frame is in flight.
    * A frame that cannot be read, or whose outputs are invalid, does not affect other frames. A
      fault of a pipeline ends all pipelines.
    * The pool releases each message immediately after publishing or dropping it.

This module imports neither CUDA nor ROS. A message is any object that the camera's `read_frame`
accepts.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from trt_perception.errors import InterruptionError
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.scheduler import RateLimit
from trt_perception.scheduling.worker import PendingFrame, PipelineWorker, PoolState

Message = TypeVar('Message')


class FaultHandler(Protocol):
    """Reacts to the exception that ended a thread. DetectorNode implements it."""

    def on_fault(self, error: BaseException) -> None:
        """Handle the exception. Called in the thread that it ended. Must return at once."""


class WorkerPool(Generic[Message]):
    """Runs pipelines on the newest messages of cameras.

    Args:
        pipelines: each runs in its own worker thread. The caller closes them.
        cameras: each is served by the pipeline with its `pipeline_index`.
        fault_handler: notified once, of the first exception that ended a worker. Other workers
            still publish their frames in flight.
        batch_max_delay_s: how long a message may wait for a full batch while a slot is free.
        clock: returns the time in seconds. The time never decreases.

    Attributes:
        cameras: the cameras, in the order of the argument.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        cameras: Sequence[Camera[Message]],
        *,
        fault_handler: FaultHandler,
        batch_max_delay_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cameras = tuple(cameras)
        self._fault_handler = fault_handler
        self._clock = clock
        self._fault_reported = False
        self._state = PoolState(self.cameras, [FrameStatistics() for _ in cameras], clock)
        self._rate_limits = [RateLimit() for _ in cameras]
        self._workers = [
            PipelineWorker(
                'detector' if len(pipelines) == 1 else f'detector_{index}',
                pipeline,
                self._state,
                owner=self,
                max_delay_s=batch_max_delay_s,
            )
            for index, pipeline in enumerate(pipelines)
        ]
        self._worker_of = [self._workers[camera.pipeline_index] for camera in cameras]
        for camera, worker in zip(cameras, self._worker_of, strict=True):
            worker.add_camera(camera)

    def start(self) -> None:
        """Start the workers.

        May be called again after `stop`, but not after a fault that left frames in a pipeline.

        Raises:
            RuntimeError: the system cannot start a thread. No worker runs then.
        """
        self._fault_reported = False
        self._state.is_running = True
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Drop the waiting frames, finish the frames in the pipelines, and join the workers.

        May be called again.
        """
        with self._state.lock:
            self._stop_accepting()
        for worker in self._workers:
            worker.join()
        with self._state.lock:
            for worker in self._workers:
                worker.abandon_frames()  # if its thread ended without `on_worker_failed`

    @property
    def is_alive(self) -> bool:
        """Whether all workers are running. If one has ended, its cameras get no results."""
        return all(worker.is_alive for worker in self._workers)

    def submit(self, camera: int, message: Message) -> None:
        """Put a message into its camera's mailbox, or drop it. Any thread may call this method.

        Args:
            camera: index in `cameras`.
        """
        pending = PendingFrame(camera, message, self._clock())
        source = self.cameras[camera]
        replaced = None
        with self._state.lock:
            counts = self._state.camera_statistics[camera]
            counts.receive(pending.received_s)
            if not self._state.is_running:
                counts.drop('inactive')
            elif not source.enabled:
                counts.drop('disabled')
            elif (rate_hz := source.max_rate_hz) and not self._rate_limits[camera].allows(
                pending.received_s, rate_hz
            ):
                counts.drop('rate_limit')
            else:
                worker = self._worker_of[camera]
                replaced = worker.scheduler.put(camera, pending, pending.received_s)
                worker.wake()
                if replaced is not None:
                    counts.drop('replaced')
        del replaced  # Freeing a message runs foreign code, which must not run under the lock.

    def statistics(self) -> tuple[FrameStatistics, ...]:
        """Return counts and stage times of each camera, all from the same moment."""
        with self._state.lock:
            return tuple(counts.snapshot() for counts in self._state.camera_statistics)

    def pipeline_statistics(self) -> tuple[PipelineStatistics, ...]:
        """Return the counts of each pipeline, all from the same moment."""
        with self._state.lock:
            return tuple(worker.snapshot() for worker in self._workers)

    def _stop_accepting(self) -> None:
        """Reject new messages, drop waiting ones, and let the workers end. Requires the lock."""
        self._state.is_running = False
        for worker in self._workers:
            worker.drop_waiting('inactive')
            worker.wake()

    def on_worker_failed(self, worker: PipelineWorker[Message], error: BaseException) -> None:
        """Stop all workers, and report the first failure. Called in the failed worker's thread.

        If a signal stopped opening a model again, nothing is reported, because the process ends.
        """
        with self._state.lock:
            self._stop_accepting()
            worker.abandon_frames()
            first = not self._fault_reported
            self._fault_reported = True
        # The traceback would keep messages in memory while the handler stores the error.
        traceback.clear_frames(error.__traceback__)
        if first and not isinstance(error, InterruptionError):
            self._fault_handler.on_fault(error)
