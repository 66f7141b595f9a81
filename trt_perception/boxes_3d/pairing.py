# SPDX-License-Identifier: Apache-2.0
"""Joins detections with the depth image of the nearest stamp, and with the mask of their stamp.

Guarantees: each detection message leaves exactly once and in the order of arrival, or is replaced
and counted. It waits at most `max_wait_ns`, and longer only while the caller is busy. What is kept
is bounded by a count and by bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

#: Largest number of messages of each topic that are kept.
MAX_KEPT: Final = 30
# So boxes are hardly older than this plus max_wait_ns if the caller is slower than messages come.
_MAX_LATE_NS: Final = 100_000_000
# A raw 4K depth image has 16 or 33 MB.
_MAX_BYTES: Final = 256 * 2**20


class RecentMessages:
    """The newest messages of one topic, by stamp. The oldest arrival leaves first.

    Args:
        max_bytes: largest sum of the sizes. The newest message stays even if it is larger.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[tuple[int, int, Any]] = deque()
        self._bytes = 0
        # Difference between the last two stamps, ns. 0 before two stamps have arrived in order.
        self._period_ns = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, stamp_ns: int, size: int, message: Any) -> None:
        """Add a message of `size` bytes."""
        if self._messages:
            self._period_ns = max(0, stamp_ns - self._messages[-1][0])
        self._messages.append((stamp_ns, size, message))
        self._bytes += size
        while len(self._messages) > MAX_KEPT or (
            self._bytes > self._max_bytes and len(self._messages) > 1
        ):
            self._bytes -= self._messages.popleft()[1]

    def remove_before(self, stamp_ns: int) -> None:
        """Remove the messages with earlier stamps, except the newest."""
        kept = [each for each in self._messages if each[0] >= stamp_ns] or [*self._messages][-1:]
        self._messages = deque(kept)
        self._bytes = sum(size for _, size, _ in kept)

    def nearest(self, stamp_ns: int) -> tuple[int, Any] | None:
        """Return the signed distance (ns) of the nearest stamp and its message; None without one.

        Of messages with equal distances, the newest.
        """
        if not self._messages:
            return None
        best = min(reversed(self._messages), key=lambda each: abs(each[0] - stamp_ns))
        return best[0] - stamp_ns, best[2]

    def may_come_nearer(self, stamp_ns: int, tolerance_ns: int) -> bool:
        """Return whether a later message may have a nearer stamp, if stamps come in order."""
        if not self._messages:
            return True
        last = self._messages[-1][0]
        if last >= stamp_ns:
            return False
        if stamp_ns - last > tolerance_ns:
            return True
        # The next stamp is probably one period later. The period may be that of a gap.
        return not self._period_ns or stamp_ns - last > self._period_ns / 2


@dataclass
class _Waiting:
    stamp_ns: int
    until_ns: int
    message: Any
    needs_depth: bool
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A detection message that waits no longer, and what belongs to it.

    Attributes:
        detections: the message as given to `Pairing.add_detections`.
        depth: the depth image; None if none came in time.
        depth_offset_ns: stamp of the nearest depth image, relative to that of the detections, even
            if it is too far away; None if no depth image is kept.
        others: messages of the same stamp by topic.
        missing: topics whose message was expected, but did not come in time.
    """

    detections: Any
    depth: Any = None
    depth_offset_ns: int | None = None
    others: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


class Pairing:
    """Holds the messages that wait for each other. Times are those of a monotonic clock.

    Args:
        tolerance_ns: largest difference between the stamps of detections and depth.
        max_wait_ns: longest wait of detections, from their arrival.
        others: topics whose messages have the stamp of the detections, such as ``masks``.

    Attributes:
        depth: the depth images.
        replaced: number of detection messages that left for newer ones.
    """

    def __init__(self, tolerance_ns: int, max_wait_ns: int, others: tuple[str, ...] = ()) -> None:
        self.tolerance_ns = tolerance_ns
        self.max_wait_ns = max_wait_ns
        self.depth = RecentMessages()
        self.replaced = 0
        self._others = {topic: RecentMessages() for topic in others}
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        """Return the number of detection messages that wait."""
        return len(self._waiting)

    def add_detections(
        self,
        stamp_ns: int,
        message: Any,
        now_ns: int,
        *,
        needs_depth: bool = True,
        needs: tuple[str, ...] = (),
    ) -> None:
        """Add detections. If too many wait, the oldest ones are replaced.

        Args:
            needs_depth: False if there is nothing to locate, so that the message need not wait.
            needs: topics of `others` whose message is expected, too.
        """
        until_ns = now_ns + self.max_wait_ns
        self._waiting.append(_Waiting(stamp_ns, until_ns, message, needs_depth, needs))
        if len(self._waiting) > MAX_KEPT:
            self._replace_oldest()

    def add_other(self, topic: str, stamp_ns: int, size: int, message: Any) -> None:
        """Add a message of one of the topics `others`."""
        self._others[topic].add(stamp_ns, size, message)

    def next_time_ns(self) -> int | None:
        """Return when the oldest detections stop waiting; None if none wait."""
        return self._waiting[0].until_ns if self._waiting else None

    def pop(self, now_ns: int) -> Pair | None:
        """Return the oldest detections if they wait no longer; None if they still wait.

        Detections that are late because the caller is busy are replaced if newer ones wait.
        """
        while len(self._waiting) > 1 and now_ns > self._waiting[0].until_ns + _MAX_LATE_NS:
            self._replace_oldest()
        if not self._waiting:
            return None
        first = self._waiting[0]
        found = {topic: self._other_of(topic, first.stamp_ns) for topic in first.needs}
        missing = tuple(topic for topic, message in found.items() if message is None)
        waits = missing or (
            first.needs_depth and self.depth.may_come_nearer(first.stamp_ns, self.tolerance_ns)
        )
        if waits and now_ns < first.until_ns:
            return None
        self._waiting.popleft()
        nearest = self.depth.nearest(first.stamp_ns)
        offset_ns, depth = nearest if nearest is not None else (None, None)
        if offset_ns is not None and abs(offset_ns) > self.tolerance_ns:
            depth = None
        # Later detections need nothing that is older.
        self.depth.remove_before(first.stamp_ns - self.tolerance_ns)
        for messages in self._others.values():
            messages.remove_before(first.stamp_ns)
        others = {topic: message for topic, message in found.items() if message is not None}
        return Pair(first.message, depth, offset_ns, others, missing)

    def _replace_oldest(self) -> None:
        self._waiting.popleft()
        self.replaced += 1

    def _other_of(self, topic: str, stamp_ns: int) -> Any:
        nearest = self._others[topic].nearest(stamp_ns)
        return nearest[1] if nearest is not None and nearest[0] == 0 else None
