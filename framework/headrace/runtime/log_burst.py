"""Limits how many records of one kind are logged in full."""

from __future__ import annotations

from headrace.model.clock import Clock

BURST = 10
"""Records that are logged in full per second. More are only counted."""


class Burst:
    """Admits `BURST` records per second, and counts the others.

    Attributes:
        skipped: how many were not admitted in the current second.
    """

    def __init__(self, clock: Clock) -> None:
        self.skipped = 0
        self._clock = clock
        self._since = float("-inf")
        self._admitted = 0

    @property
    def begins(self) -> bool:
        """Whether the next record begins a second."""
        return self._clock() - self._since >= 1.0

    def admits(self, *, repeats: bool = False) -> bool:
        """Whether to log the next record. Otherwise it is counted, as one that repeats another is in any case."""
        if self.begins:
            self._since, self._admitted, self.skipped = self._clock(), 0, 0
        if repeats or self._admitted >= BURST:
            self.skipped += 1
            return False
        self._admitted += 1
        return True
