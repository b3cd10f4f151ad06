"""Which position is resolved, from marks that were taken over time: a plain object that asks nobody and waits for nothing.

A mark is the last seq that had been drawn, and the transactions that could still fill a hole up to it. Once these have ended, all up
to that seq is there for good, or will never come; who has begun since doesn't matter. So a stream that is never without a
publisher is resolved all the same, a moment behind. `store/sql/functions/ranges.sql` says why that is so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

MOST = 64
"""Marks that are kept. Beyond that, every other one goes: then a position is known a little later."""


class Mark(NamedTuple):
    last: int
    open: frozenset[str]


class Marks:
    """Marks that wait, and the highest position that they have given so far.

    Attributes:
        position: everything up to here is resolved.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._waiting: list[Mark] = []

    @property
    def open(self) -> frozenset[str]:
        """The transactions that somebody has to ask about."""
        return frozenset().union(*(mark.open for mark in self._waiting))

    def add(self, last: int, open_: Collection[str]) -> None:
        """A new mark: later than all before it."""
        self._waiting.append(Mark(last, frozenset(open_)))
        self._sort_out()

    def ended(self, still_open: Collection[str]) -> None:
        """Of the transactions of `open` only these are open still."""
        left = frozenset(still_open)
        self._waiting = [Mark(mark.last, mark.open & left) for mark in self._waiting]
        self._sort_out()

    def raise_to(self, position: int) -> None:
        """It is known otherwise that all up to here is resolved."""
        self.position = max(self.position, position)
        self._sort_out()

    def _sort_out(self) -> None:
        self.position = max([self.position, *(mark.last for mark in self._waiting if not mark.open)])
        kept: list[Mark] = []
        for mark in reversed(self._waiting):
            # One that waits for no less than a later one is never the first to know anything.
            if mark.last > self.position and not any(later.open <= mark.open for later in kept):
                kept.append(mark)
        kept.reverse()
        self._waiting = kept if len(kept) <= MOST else [*kept[:-1:2], kept[-1]]
