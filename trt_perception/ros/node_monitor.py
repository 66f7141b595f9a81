# SPDX-License-Identifier: Apache-2.0
"""Publishes the status of the node on /diagnostics, and logs its problems."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.timer import Timer

from trt_perception.model.tasks.task import Task
from trt_perception.monitoring.file_watch import FileWatch
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.status_summary import Level, StatusSummary, with_notes
from trt_perception.monitoring.watchdog import PERIOD_S
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.ros.camera.camera_monitor import CameraMonitor, ProblemLog, counts_text
from trt_perception.ros.camera.debug_image import NO_EVENTS
from trt_perception.ros.diagnostics import (
    CameraDiagnostics,
    NodeDiagnostics,
    diagnostics_message,
    sum_not_delivered,
)
from trt_perception.ros.runtime.log import NodeLog, log_text
from trt_perception.ros.runtime.timers import steady_timer
from trt_perception.ros.same_name import same_name_problem
from trt_perception.scheduling.worker_pool import FaultHandler, WorkerPool


class NodeMonitor:
    """Publishes /diagnostics in every state after the first configure, and watches an active node.

    A changed problem is published at once. Announcer decides which problems are logged.

    Args:
        fault_handler: notified if a worker has ended without an exception.

    Attributes:
        error: the first error since the last transition; empty if there was none.
        attempt: how the node reacts to the error; empty if it does not react.
        engine: file of the model; None before configure.
        task: task of the model; None before configure.
        pipeline: runs the model; None before configure. Its ``diagnostic_values`` may change with
            the first image.
    """

    def __init__(self, node: LifecycleNode, log: NodeLog, fault_handler: FaultHandler) -> None:
        self._node = node
        self._log = log
        self._fault_handler = fault_handler
        self.error = self.attempt = ''
        self.engine: FileWatch | None = None
        self.task: Task | None = None
        self.pipeline: Pipeline | None = None
        self._publish_signal = node.create_guard_condition(self.publish)
        # The first configure creates these objects. They stay, so that failures are published.
        self._publisher: Publisher | None = None
        self._timer: Timer | None = None
        # These belong to the last activation. Its counts are published until the next activation,
        # or until set_cameras gets cameras with other names.
        self._cameras: Sequence[CameraMonitor] = (CameraMonitor(node),)
        self._gpus: Sequence[int] = ()
        self._last_pipelines: Sequence[PipelineStatistics] = ()
        # start_watching creates these objects; stop_watching frees them.
        self._pool: WorkerPool[Any] | None = None
        self._watch_timer: Timer | None = None
        self._problems = ProblemLog(node.get_logger())
        self._logged_change = ''

    def start_publishing(self, period_s: float) -> None:
        """Publish once per period from now on. A later call changes the period."""
        if self._publisher is None:
            self._publisher = self._node.create_publisher(
                DiagnosticArray, '/diagnostics', QoSProfile(depth=10), event_callbacks=NO_EVENTS
            )
        timer = steady_timer(self._node, period_s, self.publish)
        # Destroyed last, so that the old timer stays if the new one fails.
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
        self._timer = timer

    def set_cameras(self, cameras: Sequence[CameraMonitor]) -> None:
        """Publish a status of each of these cameras from now on.

        Cameras with unchanged names keep the counts of the last activation.
        """
        if [camera.name for camera in cameras] != [camera.name for camera in self._cameras]:
            self._cameras, self._last_pipelines = cameras, ()

    def set_model(self, file: FileWatch, pipeline: Pipeline) -> None:
        """Publish values about the model from now on."""
        self.engine, self.task, self.pipeline = file, pipeline.spec.task, pipeline

    def forget_model(self) -> None:
        """Publish nothing about the model from now on, because it was freed."""
        self.engine = self.task = self.pipeline = None
        for camera in self._cameras:
            camera.forget_model()

    def start_watching(
        self,
        pool: WorkerPool[Any],
        cameras: Sequence[CameraMonitor],
        gpus: Sequence[int] = (0,),
    ) -> None:
        """Watch an active node from now on.

        Args:
            pool: processes the images of these cameras, in this order.
            cameras: monitor of each camera; `CameraMonitor.watch` was called.
            gpus: device index of each pipeline.
        """
        self._pool, self._cameras, self._gpus = pool, cameras, gpus
        self._problems.restart(StatusSummary(Level.OK, '', 'active, waiting for images'))
        self._watch_timer = steady_timer(self._node, PERIOD_S, self._check)
        # Both timers fire together, because waking the executor costs more than either callback.
        # The reset delays the periodic message, so publish one now.
        for timer in (self._timer, self._watch_timer):
            if timer is not None:
                timer.reset()
        self.publish_soon()

    def stop_watching(self) -> None:
        """Stop watching. The counts of the activation stay on /diagnostics."""
        if self._pool is None:
            return
        parts = self._pool.statistics()
        for camera, counts in zip(self._cameras, parts, strict=True):
            camera.stop_watching(counts)
        self._last_pipelines = self._pool.pipeline_statistics()
        self._pool = None
        timer, self._watch_timer = self._watch_timer, None
        if timer is not None:
            self._node.destroy_timer(timer)
        if len(parts) > 1:
            together = FrameStatistics.merge(parts)
            said = counts_text(together, sum_not_delivered(self._camera_diagnostics()))
            self._node.get_logger().info(f'counts of all cameras: {said}')

    def _check(self) -> None:
        if self._pool is None or self.error:
            return
        if not self._pool.is_alive:
            self._fault_handler.on_fault(RuntimeError('the worker thread has died'))
            return
        now = time.monotonic()
        parts = self._pool.statistics()
        of_name = same_name_problem(self._node)
        change = self.engine.describe_change() if self.engine is not None else ''
        if change and change != self._logged_change:
            self._node.get_logger().warning(log_text(change))
        self._logged_change = change
        notes = tuple(note for note in (change, *self._log.shown_warnings) if note)
        if self._cameras[0].name:  # each named camera has a status
            enabled = [
                counts
                for camera, counts in zip(self._cameras, parts, strict=True)
                if camera.enabled
            ]
            state = with_notes(
                _summarise_sending_cameras(enabled, len(parts) - len(enabled)), of_name, notes
            )
            changed = self._problems.update(state, now)
            of_name, notes = '', ()  # do not repeat these notes for each camera
        else:
            changed = False
        pipelines = self._pool.pipeline_statistics()
        for served, camera, counts in zip(self._pool.cameras, self._cameras, parts, strict=True):
            pipeline = pipelines[served.pipeline_index]
            changed |= camera.check(counts, pipeline, now, same_name_note=of_name, notes=notes)
        if changed:
            self.publish()

    def publish(self) -> None:
        """Publish the status of the node and its cameras on /diagnostics now."""
        if self._publisher is None:
            return
        diagnostics = NodeDiagnostics(
            state=str(self._node._state_machine.current_state[1]),
            error=f'{self.error}; {self.attempt}' if self.error and self.attempt else self.error,
            engine=self.engine.path if self.engine is not None else '',
            task=self.task,
            runtime_values=() if self.pipeline is None else self.pipeline.diagnostic_values,
            cameras=self._camera_diagnostics(),
        )
        pipelines = self._last_pipelines
        if self._pool is not None:
            diagnostics.summary = self._problems.summary
            pipelines = self._pool.pipeline_statistics()
        if pipelines:
            diagnostics.gpus = dict(zip(self._gpus, pipelines, strict=True))
            diagnostics.batches = sum(each.batches for each in pipelines)
        name, now = self._node.get_fully_qualified_name(), self._node.get_clock().now()
        self._publisher.publish(diagnostics_message(name, now, diagnostics))

    def _camera_diagnostics(self) -> list[CameraDiagnostics]:
        if self._pool is None:
            return [camera.diagnostics(None) for camera in self._cameras]
        parts = self._pool.statistics()
        return [c.diagnostics(counts) for c, counts in zip(self._cameras, parts, strict=True)]

    def publish_soon(self) -> None:
        """Publish after the executor's current callback. Any thread may call this method."""
        self._publish_signal.trigger()

    def publish_and_wait(self) -> None:
        """Publish before the process ends. Wait up to 1 s until the message has arrived."""
        self.publish()
        if self._publisher is not None:
            self._publisher.wait_for_all_acked(Duration(seconds=1))


def _summarise_sending_cameras(
    enabled: Sequence[FrameStatistics], disabled_count: int
) -> StatusSummary:
    """Return a summary of level OK with the number of cameras that send images.

    Args:
        enabled: counts of each enabled camera.
    """
    if disabled_count and not enabled:
        return StatusSummary(
            Level.OK, '', f'active, all {disabled_count} cameras are switched off'
        )
    received = sum(1 for counts in enabled if counts.received)
    switched_off = f', {disabled_count} switched off' if disabled_count else ''
    text = f'active, images from {received} of {len(enabled)} cameras{switched_off}'
    return StatusSummary(Level.OK, '', text)
