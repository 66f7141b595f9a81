"""How many images were sent and never arrived, from what the middleware reports."""

from __future__ import annotations

from typing import Final

__all__ = ['DeliveryCounter']

_UNKNOWN: Final = 2**31 - 1


class DeliveryCounter:
    """Counts gaps between one publisher's sequence numbers, and losses that are reported.

    A reported loss is also a gap once a later image arrives; an image that a newer one overwrote
    in the middleware's queue is only a gap. So the larger of the two sums counts no image twice.

    While several publishers match, their numbers mix: then only reported losses count. A camera
    that crashed matches until its lease has expired, 20 s with Fast DDS, so that it and the one
    that takes its place are several for so long.

    One thread at a time counts, any may ask.

    Non-guarantee: images lost before the first or after the last one that arrived may go unseen.
    """

    def __init__(self) -> None:
        self._gaps = 0
        self._lost = 0
        self._last: int | None = None
        self._unnumbered = False
        self._several = False

    @property
    def not_delivered(self) -> int | None:
        """Images that never arrived; None while several publishers mix their sequence numbers."""
        return None if self._several else max(self._gaps, self._lost)

    @property
    def has_received(self) -> bool:
        """Whether an image has arrived."""
        return self._last is not None or self._unnumbered

    def add_received(self, sequence_number: int | None) -> None:
        """Take the publisher's sequence number of an image that arrived.

        None where it is not known: it is taken for the one that was to come.
        """
        if sequence_number is None:
            self._unnumbered = True
            self._last = None if self._last is None else self._last + 1
            return
        if self._last is not None and not self._several and sequence_number > self._last:
            self._gaps += sequence_number - self._last - 1
        # A smaller number is a publisher that started again.
        self._last = sequence_number

    def add_lost(self, count: int) -> None:
        """Take losses that the middleware reports, the sum of one report or several.

        Fast DDS reports the largest 32-bit number where it cannot say how many; that is one here.
        """
        count = count % _UNKNOWN + count // _UNKNOWN
        self._lost += count
        if self._several:  # no gap will show it
            self._gaps += count

    def set_publishers(self, count: int, *, changed: bool) -> None:
        """Take the number of publishers that match.

        A new one numbers its images from the start.
        """
        self._several = count > 1
        if changed:
            self._last = None
