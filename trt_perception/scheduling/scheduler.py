"""Which messages are taken next: a mailbox for each camera, and who has waited longest.

Pure: no threads, no lock and no clock; times are seconds of whatever clock the owner has.

Guarantees:
    * One message of each camera waits at most; a newer one replaces it (newest wins).
    * A batch has one message of each of the cameras that are longest unserved, so a fast camera
      cannot starve a slow one: nobody who waits is passed over in more than
      cameras / batch batches, rounded up. To take the oldest message instead serves some cameras
      fifty times as often as others, where they are synchronised and the model is slow.
"""

from __future__ import annotations

from collections.abc import KeysView
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ['RateLimit', 'Scheduler']

Item = TypeVar('Item')

# How much too early a message may be, as a share of the period: drivers and networks are uneven.
_EARLY_SHARE: Final = 0.5


class _WaitingItem(NamedTuple, Generic[Item]):
    """What waits for one camera.

    Attributes:
        item: the newest.
        since_s: when the first came that this one has replaced, directly or not.
    """

    item: Item
    since_s: float


class Scheduler(Generic[Item]):
    """The mailboxes of one pipeline's cameras.

    Args:
        batch_size: most messages that are taken at once.
        max_delay_s: how long a message may wait for others to fill the batch.

    Attributes:
        waiting_cameras: the cameras that have a message waiting; follows.
    """

    def __init__(self, batch_size: int, max_delay_s: float = 0.0) -> None:
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        # By camera, in the order in which the messages came.
        self._waiting: dict[int, _WaitingItem[Item]] = {}
        self.waiting_cameras: KeysView[int] = self._waiting.keys()
        # By camera, how many messages of all had been taken when its last one was.
        self._last_turn: dict[int, int] = {}
        self._turn_count = 0

    def put(self, camera: int, item: Item, now_s: float) -> Item | None:
        """Let a message wait; return the one that it replaces."""
        replaced = self._waiting.pop(camera, None)
        if replaced is None:
            self._waiting[camera] = _WaitingItem(item, now_s)
            return None
        self._waiting[camera] = _WaitingItem(item, replaced.since_s)
        return replaced.item

    def remove(self, camera: int) -> Item | None:
        """Return a camera's message, which waits no more; None: it has none."""
        waiting = self._waiting.pop(camera, None)
        return waiting.item if waiting is not None else None

    def next_batch_wait_s(self, now_s: float, camera_count: int) -> float:
        """Return in how many seconds the next batch is to be taken; 0 or less: now.

        Args:
            now_s: the time.
            camera_count: how many may have a message; a batch of so many is full.
        """
        if len(self._waiting) >= min(self._batch_size, camera_count):
            return 0.0
        first_s = min(waiting.since_s for waiting in self._waiting.values())
        return first_s + self._max_delay_s - now_s

    def next_batch(self) -> list[Item]:
        """Return the next batch, those first whose camera is longest unserved.

        Of two that the same batch served last, this is the one that was the longer unserved before
        that one; of two that were never served, the one with the older message.
        """
        # By the older message instead, five synchronised cameras in batches of four are served
        # unevenly: it is always the same two that share a place.
        chosen = list(self._waiting)
        if len(chosen) > 1:
            chosen.sort(key=lambda camera: self._last_turn.get(camera, 0))
        items = []
        for camera in chosen[: self._batch_size]:
            self._turn_count += 1
            self._last_turn[camera] = self._turn_count
            items.append(self._waiting.pop(camera).item)
        return items


class RateLimit:
    """Lets through what is not above a rate, on average and in bursts.

    Each message is expected one period after the one before was, and may be half a period early. A
    camera of exactly that rate loses nothing as long as none of its messages is later than half a
    period; n messages take at least n - 1.5 periods, whatever comes.
    """

    def __init__(self) -> None:
        # When the last one that was let through was expected, or came where it was later.
        self._last_expected_s = float('-inf')

    def allows(self, now_s: float, rate_hz: float) -> bool:
        """Tell whether a message that comes now is let through; the rate is above 0."""
        period_s = 1.0 / rate_hz
        # At a lower rate, one that came early may have been expected much later than now.
        self._last_expected_s = min(self._last_expected_s, now_s + _EARLY_SHARE * period_s)
        expected_s = self._last_expected_s + period_s
        if now_s < expected_s - _EARLY_SHARE * period_s:
            return False
        self._last_expected_s = max(now_s, expected_s)
        return True
