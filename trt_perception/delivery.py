"""How many images were sent and never arrived, from what the middleware tells."""

from __future__ import annotations

__all__ = ['DeliveryCounter']


class DeliveryCounter:
    """Counts gaps between one publisher's sequence numbers, and losses that are reported.

    A reported loss is also a gap once a later image arrives; an image that a newer one overwrote
    in the middleware's queue is only a gap. So the larger of the two sums counts no image twice.
    Non-guarantee: images lost before the first or after the last one that arrived may go unseen.
    """

    def __init__(self) -> None:
        self._gaps = 0
        self._lost = 0
        self._last: int | None = None
        self._mixed = False

    @property
    def not_delivered(self) -> int | None:
        """Images that never arrived; None once several publishers mixed their sequence numbers."""
        return None if self._mixed else max(self._gaps, self._lost)

    def received(self, sequence_number: int) -> None:
        """Take the publisher's sequence number of an image that arrived."""
        if self._last is not None and sequence_number > self._last:
            self._gaps += sequence_number - self._last - 1
        # A smaller number is a publisher that started again.
        self._last = sequence_number

    def lost(self, count: int) -> None:
        """Take a loss that the middleware reports."""
        self._lost += count

    def publishers(self, count: int, *, changed: bool) -> None:
        """Take the number of publishers that match.

        A new one numbers its images from the start.
        """
        self._mixed = self._mixed or count > 1
        if changed:
            self._last = None
