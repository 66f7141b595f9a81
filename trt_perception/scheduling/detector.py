"""Takes messages of cameras as they come, keeps the pipelines busy, counts everything.

Guarantees:
    * ``submit`` returns at once. One message of each camera waits at most; a newer one replaces it
      (newest wins). Who is served next: ``scheduler``.
    * Results of a camera are published in the order in which its messages came, by one worker
      thread: that of its pipeline.
    * For each camera, at any instant, received == published + dropped (by reason) + failed + in
      flight; after ``stop`` nothing is in flight.
    * A frame that cannot be read costs no other frame anything. A fault of a pipeline ends all.
    * A message is held until it was published or dropped, not longer.
Knows neither CUDA nor ROS: a message is whatever its camera's ``read`` turns into a frame.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.scheduler import RateLimit
from trt_perception.scheduling.worker import DetectorState, PendingFrame, PipelineWorker

__all__ = ['Detector', 'FaultHandler']

Message = TypeVar('Message')


class FaultHandler(Protocol):
    """Reacts to the exception that ended a thread. DetectorNode implements it."""

    def on_fault(self, error: BaseException) -> None:
        """Handle the exception. Called in the thread that it ended; must return at once."""


class Detector(Generic[Message]):
    """Runs pipelines on the newest messages of cameras.

    Args:
        pipelines: do the work, each in a worker thread of its own; the detector does not close
            them.
        cameras: each is served by one of the pipelines.
        fault_handler: notified once, of the exception that ended a worker. Frames in flight of
            other workers are still published.
        batch_max_delay_s: how long a message may wait, while a slot is free, for others to fill
            the batch.
        clock: returns seconds; only goes forward.

    Attributes:
        cameras: as given.
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
        self._state = DetectorState(self.cameras, [FrameStatistics() for _ in cameras], clock)
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
        """Start the workers; again after a ``stop``, not after a fault that left frames behind.

        Raises:
            RuntimeError: there is no thread left; none of the workers runs.
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
        """Let the frames in flight finish, drop those that wait, and join the workers.

        May be called again.
        """
        with self._state.lock:
            self._stop_accepting()
        for worker in self._workers:
            worker.join()
        with self._state.lock:
            for worker in self._workers:
                worker.abandon_frames()  # one that died without a word

    @property
    def is_alive(self) -> bool:
        """Whether all workers are there; without one, some cameras are never answered."""
        return all(worker.is_alive for worker in self._workers)

    def submit(self, camera: int, message: Message) -> None:
        """Hand over a message of the camera of that index; from any thread, without waiting."""
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
                replaced = self._worker_of[camera].submit(pending)
                if replaced is not None:
                    counts.drop('replaced')
        # Only now is it freed: whatever that does, it does without the lock.
        del replaced

    def statistics(self) -> tuple[FrameStatistics, ...]:
        """Return counts and stage times of each camera, all of one instant."""
        with self._state.lock:
            return tuple(counts.snapshot() for counts in self._state.camera_statistics)

    def pipeline_statistics(self) -> tuple[PipelineStatistics, ...]:
        """Return what each pipeline did, all of one instant."""
        with self._state.lock:
            return tuple(worker.statistics.snapshot() for worker in self._workers)

    def _stop_accepting(self) -> None:
        """Take no messages any more, and let the workers come to an end; with the lock held."""
        self._state.is_running = False
        for worker in self._workers:
            worker.drop_waiting('inactive')
            worker.wake()

    def on_worker_failed(self, worker: PipelineWorker[Message], error: BaseException) -> None:
        """Take what ended a worker, in its thread: all others end, too."""
        with self._state.lock:
            self._stop_accepting()
            worker.abandon_frames()
            first = not self._fault_reported
            self._fault_reported = True
        # Whoever keeps the error shall not keep the messages that its traceback holds.
        traceback.clear_frames(error.__traceback__)
        if first:
            self._fault_handler.on_fault(error)
