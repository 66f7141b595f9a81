# SPDX-License-Identifier: Apache-2.0
"""The thread that joins messages, finds boxes and publishes them, and the counts of the node."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trt_perception.boxes_3d.pairing import Pair, Pairing
from trt_perception.errors import ImageError
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.locator import (
    KEYPOINTS,
    MASKS,
    DroppedError,
    LocatedImage,
    Locator,
)
from trt_perception.wire.detections import FoundObjects

#: What becomes of a detection message. Each is counted once.
OUTCOMES: Final = (
    *('published', 'no_depth', 'no_valid_depth', 'no_camera_info'),
    *('replaced', 'bad_message', 'failed'),
)
_MS: Final = 1_000_000
_RECENT: Final = 512
# A signal must end the process within 5 s.
_END_S: Final = 1.0


class WorkerFacts(NamedTuple):
    """Counts since *activate*, and what the last messages without depth say of the stamps.

    Attributes:
        counts: by outcome; and ``received``, ``objects_left_out``, ``masks_missing``, and the
            number of messages of each input topic, as ``received: depth``.
        waiting: detection messages that wait.
        latencies_ms: from the arrival of the later message to the publication, the last ones.
        depth_offset_ns: stamp of the nearest depth image relative to the last detections without
            depth; None if it is earlier, and no depth image arrived while the detections waited.
    """

    counts: dict[str, int]
    waiting: int
    latencies_ms: list[float]
    depth_offset_ns: int | None


class _Arrived(NamedTuple):
    content: Any
    time_ns: int


class BoxWorker:
    """Joins messages, and publishes boxes from a thread.

    The thread that takes messages calls the methods `add_…`. All state is behind one lock. Only
    the thread of this object computes and publishes.

    Args:
        publish: called in the thread for each image.
        report: called with each mistake in what other nodes publish, in any thread.
        log: called with the traceback of an unexpected exception.
    """

    def __init__(
        self,
        parameters: BoxParameters,
        publish: Callable[[LocatedImage], None],
        report: Callable[[ImageError], None],
        log: Callable[[str], None],
    ) -> None:
        self._publish = publish
        self._report = report
        self._log = log
        self._locator = Locator(parameters, report)
        # Protects the following attributes. Notified after each change.
        self._changed = threading.Condition()
        self._pairing = Pairing(0, 0, (MASKS, KEYPOINTS))
        self._counts: Counter[str] = Counter()
        self._latencies_ms: deque[float] = deque(maxlen=_RECENT)
        self._depth_offset_ns: int | None = None
        self._depth_time_ns = 0
        self._is_ending = False
        self.set_parameters(parameters)
        self._thread = threading.Thread(target=self._run, name='boxes_3d', daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish all detection messages without waiting for others, and end the thread.

        Messages that are not finished after a second are counted as replaced.
        """
        with self._changed:
            self._is_ending = True
            self._locator.until_s = time.monotonic() + _END_S
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def set_parameters(self, parameters: BoxParameters) -> None:
        """Use these values from now on."""
        with self._changed:
            self._locator.parameters = parameters
            self._pairing.tolerance_ns = int(parameters.sync_tolerance_ms * _MS)
            self._pairing.max_wait_ns = int(parameters.max_wait_ms * _MS)
            self._changed.notify()

    def facts(self) -> WorkerFacts:
        """Return what is known now."""
        with self._changed:
            return WorkerFacts(
                dict(self._counts + Counter(replaced=self._pairing.replaced)),
                len(self._pairing),
                list(self._latencies_ms),
                self._depth_offset_ns,
            )

    # The thread that takes messages calls these methods.

    def add_detections(self, detections: FoundObjects, needs: tuple[str, ...]) -> None:
        """Add detections.

        Args:
            needs: topics that have a publisher, among ``masks`` and ``keypoints``.
        """
        now_ns = time.monotonic_ns()
        with self._changed:
            self._counts['received'] += 1
            self._pairing.add_detections(
                _stamp_ns(detections.header),
                _Arrived(detections, now_ns),
                now_ns,
                needs_depth=bool(detections.objects),
                needs=needs if detections.objects else tuple({KEYPOINTS} & set(needs)),
            )
            self._changed.notify()

    def add_bad_detections(self) -> None:
        """Count detections that could not be read."""
        with self._changed:
            self._counts.update(('received', 'bad_message'))

    def count_message(self, topic: str) -> None:
        """Count a message, not of detections, that is refused or contains nothing new."""
        with self._changed:
            self._counts[f'received: {topic}'] += 1

    def add_depth(self, message: Any, size: int) -> None:
        """Add a depth image, ImageFields or CompressedImageView, that keeps `size` bytes."""
        with self._changed:
            self._counts['received: depth'] += 1
            self._depth_time_ns = time.monotonic_ns()
            arrived = _Arrived(message, self._depth_time_ns)
            self._pairing.depth.add(_stamp_ns(message.header), size, arrived)
            self._wake()

    def add_other(self, topic: str, message: Any, size: int) -> None:
        """Add masks or keypoints that keep `size` bytes."""
        with self._changed:
            self._counts[f'received: {topic}'] += 1
            arrived = _Arrived(message, time.monotonic_ns())
            self._pairing.add_other(topic, _stamp_ns(message.header), size, arrived)
            self._wake()

    def _wake(self) -> None:
        """Wake the thread if detections wait. Each wake costs about 0.1 ms."""
        if len(self._pairing):
            self._changed.notify()

    def set_calibration(self, calibration: Any) -> None:
        """Use this calibration, the result of `read_calibration`, from now on."""
        with self._changed:
            self._counts['received: camera_info'] += 1
            self._locator.calibration = calibration

    # The thread.

    def _run(self) -> None:
        while (pair := self._next()) is not None:
            self._handle(pair)

    def _next(self) -> Pair | None:
        """Wait for the next pair. None at the end."""
        with self._changed:
            while True:
                now_ns = time.monotonic_ns()
                end_ns = self._pairing.next_time_ns()
                if self._is_ending:
                    return self._pairing.pop(end_ns or now_ns)
                if (pair := self._pairing.pop(now_ns)) is not None:
                    return pair
                self._changed.wait(None if end_ns is None else max(0, end_ns - now_ns) * 1e-9)

    def _handle(self, pair: Pair) -> None:
        detections: _Arrived = pair.detections
        arrived = [detections, *([pair.depth] if pair.depth else []), *pair.others.values()]
        content = Pair(
            detections.content,
            pair.depth and pair.depth.content,
            pair.depth_offset_ns,
            {topic: message.content for topic, message in pair.others.items()},
            pair.missing,
        )
        outcome, located = 'failed', None
        try:
            located = self._locator.locate(content)
            self._publish(located)
            outcome = 'published'
        except DroppedError as drop:
            outcome = drop.reason
        except Exception:
            self._log(traceback.format_exc())
        now_ns = time.monotonic_ns()
        with self._changed:
            self._counts[outcome] += 1
            if outcome == 'no_depth':
                self._depth_offset_ns = offset_ns = pair.depth_offset_ns
                # If depth images stop, the stamp of the last one is soon far away.
                if (offset_ns or 0) < 0 and self._depth_time_ns < detections.time_ns:
                    self._depth_offset_ns = None
            if outcome == 'published' and located is not None:
                self._counts['objects_left_out'] += located.left_out
                self._counts['masks_missing'] += located.without_mask
                later_ns = max(each.time_ns for each in arrived)
                self._latencies_ms.append((now_ns - later_ns) / _MS)


def _stamp_ns(header: Any) -> int:
    return int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)
