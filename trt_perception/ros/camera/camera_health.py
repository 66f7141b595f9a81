"""The health of one camera: what its watch finds, how old its output is, what was counted."""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from ament_index_python.packages import get_package_share_directory
from builtin_interfaces.msg import Time
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.node import Node

from trt_perception.errors import ImageError
from trt_perception.files.plain_text import plain
from trt_perception.monitoring.age import AgeOfOutput
from trt_perception.monitoring.announcer import Announcer
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.problem import Level, Problem
from trt_perception.monitoring.watch import SilenceWatch
from trt_perception.ros.camera.image_input import ImageInput
from trt_perception.ros.diagnostics import CameraFacts
from trt_perception.ros.runtime.log import camera_logger, log_text, say
from trt_perception.ros.wire.cdr import StampView
from trt_perception.transport.advice import loss_cure

__all__ = ['OFF', 'CameraHealth', 'Told', 'counts_text']

#: Why a camera is switched off.
OFF: Final = 'enabled is false'

# The diagnostics' rates are of at least so long: a message may follow another at once.
_RATE_S = 1.0
# By Level.
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)


def counts_text(counts: FrameStatistics, not_delivered: int | None) -> str:
    """Return what an activation came to, for the log."""
    lost = 'unknown' if not_delivered is None else not_delivered
    return f'{counts}; never delivered: {lost}'


class Told:
    """What is wrong, and the lines of the log that it makes as it begins, lasts and ends.

    Args:
        log: where they stand.

    Attributes:
        finding: the newest; None before the first.
    """

    def __init__(self, log: RcutilsLogger) -> None:
        self._log = log
        self._announcer = Announcer()
        self.finding: Problem | None = None

    def begin(self, finding: Problem) -> bool:
        """Begin anew with this, without a line; return whether it is of another kind."""
        self._announcer = Announcer()
        return self._take(finding)

    def tell(self, finding: Problem, time_s: float) -> bool:
        """Take what holds now; return whether it is of another kind than before."""
        line = self._announcer.line(finding, time_s)
        if line is not None:
            say(self._log, _SEVERITIES[line[0]], line[1])
        return self._take(finding)

    def _take(self, finding: Problem) -> bool:
        changed = self.finding is None or finding.kind != self.finding.kind
        self.finding = finding
        return changed


class CameraHealth:
    """What is known of one camera, from its first activation on.

    Args:
        node: its clock, its log.
        name: of the camera, empty where there is only one.

    Attributes:
        name: as given.
        enabled: whether its images are wanted; else nothing that is found of it is a problem.
    """

    def __init__(self, node: Node, name: str = '') -> None:
        self.name = name
        self.enabled = True
        self._log = camera_logger(node, name)
        self._clock: Any = node.get_clock().handle
        self._input: ImageInput | None = None
        self._watch = SilenceWatch('', start_s=0.0)
        self._told = Told(self._log)
        self._refusal = ''
        self._age = AgeOfOutput()
        # Time, received and published of the last messages, for rates.
        self._said: deque[tuple[float, int, int]] = deque()
        # What the last activation came to, shown until the next one.
        self._settled = FrameStatistics()
        self._not_delivered: int | None = 0

    def watch(self, image_input: ImageInput, frame_s: float, turns: int) -> None:
        """Watch from now on.

        Args:
            image_input: of the camera.
            frame_s: seconds that one frame takes.
            turns: one of so many batches is the camera's.
        """
        now = time.monotonic()
        self._said = deque([(now, 0, 0)])
        self._age = AgeOfOutput()
        self._refusal = ''
        self._input = image_input
        profile = Path(get_package_share_directory('trt_perception')) / 'config'
        self._watch = SilenceWatch(
            image_input.topic,
            start_s=now,
            frame_s=frame_s,
            turns=turns,
            look=image_input.look,
            loss_cure=loss_cure(
                str(profile / 'fastdds_large_images.xml'),
                image_input.reliability,
                camera=self.name,
            ),
            message_bytes=lambda: image_input.message_bytes,
            camera=self.name,
        )
        self._told.begin(Problem(Level.OK, '', 'active, waiting for images'))

    def settle(self, counts: FrameStatistics) -> None:
        """Stop watching, and keep what the activation came to."""
        if self._input is None:
            return
        self._settled, self._not_delivered = counts, self._input.not_delivered
        self._input = None
        self._watch = SilenceWatch('', start_s=0.0)  # which knows the input, too
        self._log.info(f'counts: {counts_text(counts, self._not_delivered)}')

    def refused(self, error: ImageError) -> None:
        """Take an image that cannot be read, or not be published; from the worker."""
        self._refusal = plain(error)
        self._log.warning(
            f'image dropped ({error.reason}): {log_text(error)}', throttle_duration_sec=5.0
        )

    def published(self, stamp: Time | StampView) -> None:
        """Take the stamp of an image whose detections are out; from the worker."""
        # Not by rclpy's Time, which refuses a negative stamp: a camera may send any. And to make
        # one of what the clock says takes much longer than to ask it.
        with self._clock:
            now_ns = self._clock.get_now().nanoseconds
        self._age.take(stamp.sec * 10**9 + stamp.nanosec, now_ns, time.monotonic())

    def check(
        self,
        counts: FrameStatistics,
        now_s: float,
        *,
        same_name: str = '',
        notes: tuple[str, ...] = (),
    ) -> bool:
        """Look at the camera, and subscribe to it again where that is lost.

        Args:
            counts: since the activation.
            now_s: of the monotonic clock.
            same_name: that other nodes have this one's name, '' where none has.
            notes: sentences about other things that somebody should look at.

        Returns:
            Whether something else is found than the last time.
        """
        if self._input is None:
            return False
        if self._input.restore():
            lost = f'the subscription to {self._input.topic} was lost; subscribed again'
            return self._told.tell(Problem(Level.ERROR, 'subscription_lost', lost), now_s)
        finding = self._watch.worst_problem(
            now_s,
            counts,
            self._input.not_delivered,
            refusal=self._refusal,
            same_name=same_name,
            notes=[note for note in (self._age.note(now_s), *notes) if note],
            off=f'switched off: {OFF}' if not self.enabled else '',
        )
        if not self.enabled and not finding.kind:
            # Nothing has been mended by that, and the log shall not say so.
            return self._told.begin(finding)
        return self._told.tell(finding, now_s)

    def facts(self, counts: FrameStatistics | None) -> CameraFacts:
        """Return what is known now.

        Args:
            counts: since the activation; None while the node is not active.
        """
        facts = CameraFacts(self.name, self._settled, not_delivered=self._not_delivered)
        if counts is not None and self._input is not None:
            facts.statistics = counts
            facts.received_hz, facts.published_hz = self._rates_hz(counts)
            facts.not_delivered = self._input.not_delivered
            facts.ages_ms = self._age.ages_ms()
            facts.reliability = self._input.reliability
            facts.finding = self._told.finding
        return facts

    def _rates_hz(self, counts: FrameStatistics) -> tuple[float, float]:
        """Return how many frames a second were received and published since the last message."""
        now = time.monotonic()
        self._said.append((now, counts.received, counts.published))
        while now - self._said[1][0] >= _RATE_S:
            self._said.popleft()
        then, received, published = self._said[0]
        seconds = max(now - then, 1e-3)
        return (counts.received - received) / seconds, (counts.published - published) / seconds
