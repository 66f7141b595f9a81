# SPDX-License-Identifier: Apache-2.0
"""Finds why no image arrives from a camera, from the state of its topic in the ROS graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from trt_perception.monitoring.status_summary import Level, StatusSummary
from trt_perception.transport.advice import LARGE_MESSAGE_BYTES, SOME_TOPIC, start_arguments

#: Returns the fix for large images that are lost in transport. The argument says whether the
#: camera runs on this machine; None if unknown.
LossFix = Callable[[bool | None], str]

# A camera takes seconds to start on a small machine. Discovery takes 3 s more if the first
# discovery messages are lost.
_PUBLISHER_LIMIT_S: Final = 10.0
# Drivers often create their publisher before they open the camera, which takes seconds. A busy
# machine may shorten the time between checks by 0.1 s.
_FIRST_IMAGE_LIMIT_S: Final = 3.0 - 0.1


@dataclass(frozen=True)
class TopicState:
    """The publishers of a camera's topic in the ROS graph.

    Attributes:
        publishers: number of publishers of the right type, with any QoS.
        mismatch: why a publisher's images cannot arrive, and the setting to change; may be empty.
        elsewhere: other topics with images, and how to subscribe to them; empty if there are none.
        since_s: time of the last QoS change of the subscription, by the watchdog's clock; 0 if
            there was none.
        publisher: node, machine, QoS and image size of a publisher, as far as known.
        on_this_machine: whether this publisher runs on this machine; None if unknown.
    """

    publishers: int = 0
    mismatch: str = ''
    elsewhere: str = ''
    since_s: float = 0.0
    publisher: str = ''
    on_this_machine: bool | None = None


class WatchedCamera(Protocol):
    """The values of a camera's subscription that the watchdog reads. Implemented by ImageInput.

    Attributes:
        camera_name: empty if the node has only one camera.
        message_bytes: size of the last message.
        transport_ns: sum of the times from publication to reception by the middleware.
        intake_ns: sum of the times from reception to the take.
    """

    camera_name: str
    topic: str
    message_bytes: int
    transport_ns: int
    intake_ns: int

    @property
    def not_delivered(self) -> int | None:
        """Number of images that never reached the node; None if unknown."""

    def topic_state(self) -> TopicState:
        """Return the state of the topic in the ROS graph. Called only while images are missing."""


class SilenceCheck:
    """Finds why no image arrives during one activation.

    Args:
        start_s: time of the activation in seconds of a monotonic clock.
    """

    def __init__(self, camera: WatchedCamera, start_s: float, loss_fix: LossFix) -> None:
        self._camera = camera
        self._topic = camera.topic
        self._start_s = start_s
        self._loss_fix = loss_fix
        # Last time without a publisher. A camera that appears later also gets time to start.
        self._no_publisher_s = start_s

    def find_problem(
        self, time_s: float, silent_s: float, *, received: bool, allowed_s: float
    ) -> StatusSummary | None:
        """Return the problem of a camera that has been silent for at least `allowed_s`.

        Args:
            silent_s: seconds without an image.
            received: whether an image has arrived during the activation.
            allowed_s: longest time between two images that is not a problem, in seconds.
        """
        topic = self._camera.topic_state()
        self._no_publisher_s = max(self._no_publisher_s, topic.since_s)
        if topic.mismatch:
            return StatusSummary(Level.ERROR, 'qos_mismatch', topic.mismatch)
        if not topic.publishers:
            self._no_publisher_s = time_s
            if not received and time_s - self._start_s < _PUBLISHER_LIMIT_S:
                return None
            return self._no_publisher(silent_s, topic, received=received)
        silent_s = min(silent_s, time_s - self._no_publisher_s)
        if silent_s < (allowed_s if received else max(allowed_s, _FIRST_IMAGE_LIMIT_S)):
            return self._no_publisher(silent_s, topic, received=received)
        if received:
            return self._stalled(silent_s, topic)
        why = 'the camera sends no images: see the log of its driver'
        if not 0 < self._camera.message_bytes < LARGE_MESSAGE_BYTES:
            fix = self._loss_fix(topic.on_this_machine)
            why = f'either {why}; or the transport loses them: {fix}'
        return StatusSummary(
            Level.WARN,
            'not_arriving',
            f'no image on {self._topic} for {silent_s:.1f} s, although the topic has a publisher '
            f'({topic.publisher}): {why}',
        )

    def _stalled(self, silent_s: float, topic: TopicState) -> StatusSummary:
        why = 'the camera has stalled, or its process was killed; check its driver'
        lost = self._camera.not_delivered
        if lost and self._camera.message_bytes >= LARGE_MESSAGE_BYTES:
            # With best effort, the middleware reports no loss while all images are lost.
            fix = self._loss_fix(topic.on_this_machine)
            why = (
                'either the camera has stalled (check its driver), or the transport, which has '
                f'lost {lost} images before, now loses all ({fix})'
            )
        return StatusSummary(
            Level.ERROR,
            'stalled',
            f'no image on {self._topic} for {silent_s:.1f} s, although the topic still has a '
            f'publisher: {why}',
        )

    def _no_publisher(
        self, silent_s: float, topic: TopicState, *, received: bool
    ) -> StatusSummary:
        """Return the problem of a missing camera, or of a camera that may not have sent yet."""
        start = start_arguments(SOME_TOPIC, camera=self._camera.camera_name)
        instead = topic.elsewhere or f'start the camera, or start the node with {start}'
        if received:
            gone = f'has been gone for {silent_s:.1f} s; {instead}'
            state = 'is back, but has not sent an image yet' if topic.publishers else gone
            return StatusSummary(
                Level.ERROR, 'camera_gone', f'the camera on {self._topic} {state}'
            )
        if topic.publishers:
            appeared = f'a camera has appeared on {self._topic}, but has not sent an image yet'
            return StatusSummary(Level.OK, '', appeared)
        return StatusSummary(
            Level.WARN, 'no_publisher', f'no publisher on {self._topic}; {instead}'
        )
