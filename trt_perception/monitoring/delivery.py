# SPDX-License-Identifier: Apache-2.0
"""Counts the images that were sent but never arrived."""

from __future__ import annotations

from typing import Final

_UNKNOWN_COUNT: Final = 2**31 - 1


class DeliveryCounter:
    """Counts gaps in the sequence numbers of one publisher, and losses that DDS reports.

    A reported loss also becomes a gap when a later image arrives. An image that was overwritten in
    the middleware's queue is only a gap. So the larger of the two sums counts each image once.

    With several publishers the sequence numbers mix, and only reported losses count. A crashed
    camera remains a publisher until its lease expires (20 s with Fast DDS). During this time a
    restarted camera is the second publisher.

    Only one thread may count at a time. Any thread may read the result.

    Limitation: losses before the first arrival or after the last arrival may not be counted.
    """

    def __init__(self) -> None:
        self._gaps = 0
        self._lost = 0
        self._last: int | None = None
        self._unnumbered = False
        self._several = False

    @property
    def not_delivered(self) -> int | None:
        """Number of images that never arrived; None while there are several publishers."""
        return None if self._several else max(self._gaps, self._lost)

    @property
    def has_received(self) -> bool:
        """Whether an image has arrived."""
        return self._last is not None or self._unnumbered

    def add_received(self, sequence_number: int | None) -> None:
        """Count an image that arrived.

        Args:
            sequence_number: number that the publisher gave the image; None if unknown, which
                counts as the next number.
        """
        if sequence_number is None:
            self._unnumbered = True
            self._last = None if self._last is None else self._last + 1
            return
        if self._last is not None and not self._several and sequence_number > self._last:
            self._gaps += sequence_number - self._last - 1
        # A smaller number means that the publisher was restarted.
        self._last = sequence_number

    def add_lost(self, count: int) -> None:
        """Add the losses of one or several reports of the middleware.

        Fast DDS reports 2**31 - 1 if the number is unknown. Each such report counts as one loss.
        """
        count = count % _UNKNOWN_COUNT + count // _UNKNOWN_COUNT
        self._lost += count
        if self._several:  # with several publishers, `add_received` counts no gaps
            self._gaps += count

    def set_publishers(self, count: int, *, changed: bool) -> None:
        """Set the number of matching publishers.

        Args:
            changed: whether a publisher appeared or disappeared. A new publisher starts new
                sequence numbers.
        """
        self._several = count > 1
        if changed:
            self._last = None
