# SPDX-License-Identifier: Apache-2.0
"""Monitors one camera: its worst problem, the age of its output, and its counts."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ament_index_python.packages import get_package_share_directory
from builtin_interfaces.msg import Time
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.node import Node

from trt_perception.errors import UnnamedClassError
from trt_perception.files.plain_text import escape_controls
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.depth import DEPTH_TOPIC, RELATIVE_DEPTH_TOPIC
from trt_perception.model.tasks.semantic import CLASS_CONFIDENCE_TOPIC, CLASS_MAP_TOPIC
from trt_perception.monitoring.age import AgeOfOutput
from trt_perception.monitoring.announcer import Announcer
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.status_summary import (
    Level,
    StatusSummary,
    with_clock_problem,
    with_notes,
    with_unnamed_class,
)
from trt_perception.monitoring.watchdog import CameraWatchdog
from trt_perception.pipelines.pipeline import FrameError
from trt_perception.ros.camera.image_input import ImageInput
from trt_perception.ros.diagnostics import CameraDiagnostics
from trt_perception.ros.runtime.log import camera_logger, log_at, log_text
from trt_perception.transport.advice import loss_fix
from trt_perception.wire.cdr import StampFields

#: The reason that log and diagnostics give for a camera that is switched off.
OFF_REASON: Final = 'enabled is false'

_MAP_TOPICS: Final = (CLASS_MAP_TOPIC, CLASS_CONFIDENCE_TOPIC, DEPTH_TOPIC, RELATIVE_DEPTH_TOPIC)
# Compute the rates of diagnostics over at least this time, because a diagnostics message may
# follow another at once.
_RATE_WINDOW_S = 1.0
# Severity of a log line, indexed by `Level`.
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)


def counts_text(counts: FrameStatistics, not_delivered: int | None) -> str:
    """Return the counts of an activation as text for the log.

    Args:
        not_delivered: images that were sent but did not arrive; None if unknown.
    """
    lost = 'unknown' if not_delivered is None else not_delivered
    return f'{counts}; not delivered: {lost}'


class ProblemLog:
    """Stores the current summary, and logs when a problem begins, continues and ends.

    Attributes:
        summary: the current summary; None before the first update.
    """

    def __init__(self, log: RcutilsLogger) -> None:
        self._log = log
        self._announcer = Announcer()
        self.summary: StatusSummary | None = None

    def restart(self, summary: StatusSummary) -> bool:
        """Set the summary without a log line, and forget all earlier problems.

        Returns:
            Whether the kind of problem has changed.
        """
        self._announcer = Announcer()
        return self._replace_summary(summary)

    def update(self, summary: StatusSummary, time_s: float) -> bool:
        """Set the summary, and log it if a log line is due.

        Args:
            time_s: time of the monotonic clock in seconds.

        Returns:
            Whether the kind of problem has changed.
        """
        line = self._announcer.due_line(summary, time_s)
        if line is not None:
            log_at(self._log, _SEVERITIES[line[0]], line[1])
        return self._replace_summary(summary)

    def _replace_summary(self, summary: StatusSummary) -> bool:
        has_changed = self.summary is None or summary.kind != self.summary.kind
        self.summary = summary
        return has_changed


class CameraMonitor:
    """Monitors one camera, during and between activations.

    Args:
        name: name of the camera; empty if the node has only one camera.

    Attributes:
        wanted_topics: returns the names of the topics on demand that have a subscriber.
        track_counts: returns the number of live confirmed tracks, and of ids so far; None without
            a tracker.
        enabled: whether the camera is switched on. A camera that is switched off has no problems.
        result_images_skipped: number of published images of the last activation without a mask
            image, map or debug image that a subscriber expects; see `CameraDiagnostics`.
        decoder_warnings: number of published images of the last activation with a report about
            their file.
        candidates_limited: number of published images of the last activation with boxes above
            the threshold that did not enter NMS.
    """

    def __init__(self, node: Node, name: str = '') -> None:
        self.name = name
        self.wanted_topics: Callable[[], frozenset[str]] = frozenset
        self.track_counts: Callable[[], tuple[int, int] | None] = lambda: None
        self.enabled = True
        self.result_images_skipped = 0
        self.decoder_warnings = 0
        self.candidates_limited = 0
        self._log = camera_logger(node, name)
        self._clock: Any = node.get_clock().handle
        # Set by `watch`, reset by `stop_watching`.
        self._input: ImageInput | None = None
        self._watchdog: CameraWatchdog | None = None
        self._problems = ProblemLog(self._log)
        self._last_error = ''
        # Error of the first image with a class that has no name; empty if there was none.
        self._unnamed_class = ''
        self._age = AgeOfOutput()
        # Time (s), received frames and published frames at recent diagnostics messages, for rates.
        self._rate_counts: deque[tuple[float, int, int]] = deque()
        # Counts of the last activation, shown until the next one.
        self._last_counts = FrameStatistics()
        self._last_not_delivered: int | None = 0

    def watch(
        self,
        image_input: ImageInput,
        frame_time_s: float,
        batches_per_turn: int,
        answer_limit_s: float,
    ) -> None:
        """Start watching a new subscription.

        Args:
            frame_time_s: seconds that the model takes for a frame.
            batches_per_turn: batches in a round over all cameras, if all have waiting images.
            answer_limit_s: longest wait for the answer of a Triton server; 0 for other models.
        """
        now = time.monotonic()
        self._rate_counts = deque([(now, 0, 0)])
        self._age = AgeOfOutput()
        self._last_error = ''
        self.result_images_skipped = 0
        self.decoder_warnings = 0
        self.candidates_limited = 0
        self._input = image_input
        share = Path(get_package_share_directory('trt_perception'))
        self._watchdog = CameraWatchdog(
            image_input,
            start_s=now,
            frame_time_s=frame_time_s,
            batches_per_turn=batches_per_turn,
            answer_limit_s=answer_limit_s,
            loss_fix=lambda on_this_machine: loss_fix(
                share,
                image_input.reliability,
                camera=self.name,
                on_this_machine=on_this_machine,
            ),
        )
        self._problems.restart(StatusSummary(Level.OK, '', 'active, waiting for images'))

    def stop_watching(self, counts: FrameStatistics) -> None:
        """Stop watching, log the counts of the activation, and keep them for diagnostics."""
        if self._input is None:
            return
        self._last_counts, self._last_not_delivered = counts, self._input.not_delivered
        self._input = self._watchdog = None
        self._log.info(f'counts: {counts_text(counts, self._last_not_delivered)}')

    def log_dropped_image(self, error: FrameError) -> None:
        """Log an image that was dropped because of an error. The worker calls this method."""
        self._last_error = escape_controls(error)
        if isinstance(error, UnnamedClassError):
            self._unnamed_class = self._unnamed_class or self._last_error
        self._log.warning(
            f'image dropped ({error.reason}): {log_text(error)}', throttle_duration_sec=5.0
        )

    def count_decoder_warning(self, warning: str) -> None:
        """Count a published image about whose file there is a report. The worker calls this.

        Args:
            warning: the report. The first one of an activation is logged.
        """
        self.decoder_warnings += 1
        if self.decoder_warnings == 1:
            self._log.warning(
                f'{log_text(warning)}; /diagnostics counts such images as decoder_warnings'
            )

    def count_limited_candidates(self, left_out: int) -> None:
        """Count a published image in which boxes did not enter NMS. The worker calls this method.

        Args:
            left_out: number of these boxes. Those of the first image of an activation are logged.
        """
        self.candidates_limited += 1
        if self.candidates_limited == 1:
            self._log.warning(
                f'{left_out} boxes above the threshold did not enter NMS, because only the '
                f'{DecodingLimits.max_candidates} best of an image do, so boxes with low scores '
                'may be missing: raise confidence_threshold (with a tracker, also '
                'tracker.low_threshold), or set class_filter; /diagnostics counts such images as '
                'candidates_limited'
            )

    def on_published(self, stamp: Time | StampFields) -> None:
        """Update the age of output after publishing results. The worker calls this method.

        Args:
            stamp: stamp of the image.
        """
        # rclpy's Time refuses negative stamps, which a camera may send, and creating a Time takes
        # much longer than reading the clock.
        with self._clock:
            now_ns = self._clock.get_now().nanoseconds
        self._age.add_stamp(stamp.sec * 10**9 + stamp.nanosec, now_ns, time.monotonic())

    def check(
        self,
        counts: FrameStatistics,
        pipeline: PipelineStatistics,
        now_s: float,
        *,
        same_name_note: str = '',
        notes: tuple[str, ...] = (),
    ) -> bool:
        """Check the camera, and subscribe again if the subscription is lost.

        Args:
            counts: counts since the activation.
            pipeline: counts of the camera's pipeline.
            now_s: time of the monotonic clock in seconds.
            same_name_note: a sentence about other nodes with this node's name; empty if the name
                is unique.
            notes: sentences about other problems of the node.

        Returns:
            Whether the kind of problem has changed since the last check.
        """
        if self._input is None or self._watchdog is None:
            return False
        if self._input.resubscribe_if_lost():
            lost = f'the subscription to {self._input.topic} was lost; subscribed again'
            return self._problems.update(
                StatusSummary(Level.ERROR, 'subscription_lost', lost), now_s
            )
        if self.enabled:
            summary = self._watchdog.check(now_s, counts, pipeline, self._last_error)
            wanted = self.wanted_topics() if summary.kind == 'engine_slower' else ()
            if maps := [topic.name for topic in _MAP_TOPICS if topic.name in wanted]:
                fix = f'or set a smaller map_size, or unsubscribe from {" and ".join(maps)}'
                summary = replace(summary, message=f'{summary.message}; {fix}')
            summary = with_clock_problem(summary, self._age.clock_problem(now_s))
        else:
            self._watchdog.skip(now_s, counts, pipeline)
            summary = StatusSummary(Level.OK, '', f'switched off: {OFF_REASON}')
        summary = with_notes(summary, same_name_note, notes)
        summary = with_unnamed_class(summary, self._unnamed_class)
        if not self.enabled and not summary.kind:
            # Switching a camera off repairs nothing: the log must not say "recovered".
            return self._problems.restart(summary)
        return self._problems.update(summary, now_s)

    def forget_model(self) -> None:
        """Forget the problems of the model. The node calls this method when it frees the model."""
        self._unnamed_class = ''

    def diagnostics(self, counts: FrameStatistics | None) -> CameraDiagnostics:
        """Return the content of the diagnostics about this camera.

        Args:
            counts: counts since the activation; None while the node is not active.
        """
        diagnostics = CameraDiagnostics(
            self.name,
            self._last_counts,
            not_delivered=self._last_not_delivered,
            result_images_skipped=self.result_images_skipped,
            decoder_warnings=self.decoder_warnings,
            candidates_limited=self.candidates_limited,
            track_counts=self.track_counts(),
        )
        if counts is not None and self._input is not None:
            diagnostics.statistics = counts
            diagnostics.received_hz, diagnostics.published_hz = self._rates_hz(counts)
            diagnostics.not_delivered = self._input.not_delivered
            diagnostics.ages_ms = self._age.ages_ms()
            diagnostics.reliability = self._input.reliability
            diagnostics.summary = self._problems.summary
        elif self._unnamed_class:
            diagnostics.summary = with_unnamed_class(
                StatusSummary(Level.OK, '', ''), self._unnamed_class
            )
        return diagnostics

    def _rates_hz(self, counts: FrameStatistics) -> tuple[float, float]:
        """Return the rates (Hz) of received and published frames over the last second or more."""
        now = time.monotonic()
        self._rate_counts.append((now, counts.received, counts.published))
        while now - self._rate_counts[1][0] >= _RATE_WINDOW_S:
            self._rate_counts.popleft()
        then, received, published = self._rate_counts[0]
        seconds = max(now - then, 1e-3)
        return (counts.received - received) / seconds, (counts.published - published) / seconds
