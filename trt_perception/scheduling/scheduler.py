# SPDX-License-Identifier: Apache-2.0
"""Chooses the messages of the next batch: a mailbox for each camera, least recently served first.

This module has no threads, no lock and no clock. All times are seconds of the caller's clock.

Guarantees:
    * Each camera has at most one waiting message. A newer message replaces it ("newest wins").
    * A batch has at most one message of each camera, and prefers the cameras that were served
      least recently. A fast camera cannot starve a slow camera: a waiting camera misses at most
      cameras / batch size batches, rounded up.

Serving the oldest message first would be unfair: with synchronised cameras and a slow model, it
serves some cameras fifty times as often as others.
"""

from __future__ import annotations

from collections.abc import KeysView
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Item = TypeVar('Item')

# A message may be early by this share of the period, because drivers and networks are uneven.
_MAX_EARLY_SHARE: Final = 0.5


@dataclass(slots=True)  # a NamedTuple cannot be generic in Python 3.10
class _WaitingItem(Generic[Item]):
    """The mailbox of one camera.

    Attributes:
        since_s: arrival time of the first message since the mailbox was last empty.
    """

    item: Item
    since_s: float


class Scheduler(Generic[Item]):
    """The mailboxes of one pipeline's cameras.

    Args:
        max_delay_s: how long a message may wait for a full batch.

    Attributes:
        waiting_cameras: a live view of the cameras that have a waiting message.
    """

    def __init__(self, batch_size: int, max_delay_s: float = 0.0) -> None:
        self._batch_size = batch_size
        self._max_delay_s = max_delay_s
        # By camera, in the order in which the waiting messages arrived.
        self._waiting: dict[int, _WaitingItem[Item]] = {}
        self.waiting_cameras: KeysView[int] = self._waiting.keys()
        # By camera: `_turn_count` when the camera was last served.
        self._last_turn: dict[int, int] = {}
        self._turn_count = 0

    def put(self, camera: int, item: Item, now_s: float) -> Item | None:
        """Put a message into its camera's mailbox. Return the replaced message, or None."""
        replaced = self._waiting.pop(camera, None)
        if replaced is None:
            self._waiting[camera] = _WaitingItem(item, now_s)
            return None
        self._waiting[camera] = _WaitingItem(item, replaced.since_s)
        return replaced.item

    def remove(self, camera: int) -> Item | None:
        """Empty a camera's mailbox. Return its message, or None if the mailbox was empty."""
        waiting = self._waiting.pop(camera, None)
        return waiting.item if waiting is not None else None

    def next_batch_wait_s(self, now_s: float, camera_count: int) -> float:
        """Return the seconds until the next batch is due; 0 or less if it is due now.

        Requires a waiting message.

        Args:
            now_s: the current time in seconds.
            camera_count: number of enabled cameras. A batch with a message of each is full.
        """
        if len(self._waiting) >= min(self._batch_size, camera_count):
            return 0.0
        first_s = min(waiting.since_s for waiting in self._waiting.values())
        return first_s + self._max_delay_s - now_s

    def next_batch(self) -> list[Item]:
        """Remove and return the messages of the next batch, least recently served camera first.

        Cameras that were served by the same batch keep the order of their places in it. Between
        cameras that were never served, the older message comes first.
        """
        # Deciding by the older message would serve five synchronised cameras unevenly in batches
        # of four: the same two cameras would always share a place.
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
    """Limits the rate of messages, on average and in bursts.

    The next message is expected one period after the expected time of the last allowed message,
    and may be half a period early. A camera of exactly this rate loses no message while each
    message is at most half a period late. n allowed messages always take at least n - 1.5 periods.
    """

    def __init__(self) -> None:
        # Expected time of the last allowed message, or its arrival time if it was late.
        self._last_expected_s = float('-inf')

    def allows(self, now_s: float, rate_hz: float) -> bool:
        """Return whether a message that arrives now is allowed, and count it if it is.

        Args:
            now_s: the current time in seconds.
            rate_hz: the limit in messages per second; greater than 0.
        """
        period_s = 1.0 / rate_hz
        # After a change from a lower rate, the expected time may be far in the future.
        self._last_expected_s = min(self._last_expected_s, now_s + _MAX_EARLY_SHARE * period_s)
        expected_s = self._last_expected_s + period_s
        if now_s < expected_s - _MAX_EARLY_SHARE * period_s:
            return False
        self._last_expected_s = max(now_s, expected_s)
        return True
