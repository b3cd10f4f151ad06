"""When a process looks for others of its consumer that have no messages, to release to them some of those that wait in it."""

from __future__ import annotations

import math
from collections.abc import Collection


class HandoverPace:
    """How often a process looks.

    If it leases them again, no other process could take them, and it waits twice as long before it looks again.
    """

    SHORTEST, LONGEST = 1.0, 60.0
    """Seconds from one look to the next."""
    PAUSE = 0.6
    """Seconds without a lease call after messages were released. An idle process calls within half a second of a notification,
    see `NotificationBackoff`."""

    def __init__(self) -> None:
        self._interval = self.SHORTEST
        self._next_at = -math.inf
        self._released: int | None = None  # the first message released, unless it was leased again

    def due(self, now: float) -> bool:
        """Whether to look now. Then the next look is due later, even if this one fails. `now`: seconds, monotonic."""
        if now < self._next_at:
            return False
        self._next_at = now + self._interval
        return True

    def released(self, now: float, seqs: Collection[int]) -> None:
        """Note the messages that were released after a look, by their seqs. None were if no process is idle."""
        if not seqs or self._released is not None:
            self._interval = self.SHORTEST
            self._next_at = now + self._interval
        if seqs:
            self._released = min(seqs)

    def leased(self, now: float, seqs: Collection[int]) -> None:
        """Note the messages of a lease call."""
        if self._released is not None and self._released in seqs:
            self._released = None
            self._interval = min(self._interval * 2, self.LONGEST)
            self._next_at = now + self._interval
