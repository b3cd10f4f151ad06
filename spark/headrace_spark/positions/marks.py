"""Computes the resolved position of a stream from marks taken over time, without I/O.

A mark is the last seq that had been drawn, and the transactions that could still fill a hole up to
it. Once these transactions have ended, every message up to that seq is visible or will never
appear. Transactions that began later, or that publish nothing to the stream, don't matter. A stream that always has a
publisher is thus resolved too, a moment behind. `store/sql/functions/maintenance/ranges.sql` explains why.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

MAX_MARKS = 64
"""Maximum number of marks kept. Above it every other mark is dropped, and a position is then known a little later."""


class Mark(NamedTuple):
    last: int
    open: frozenset[str]


class Marks:
    """The waiting marks, and the highest position that they have resolved so far.

    Attributes:
        position: every message up to this seq is resolved.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._waiting: list[Mark] = []

    @property
    def open(self) -> frozenset[str]:
        """The transactions that the marks wait for."""
        return frozenset().union(*(mark.open for mark in self._waiting))

    def add(self, last: int, open_: Collection[str]) -> None:
        """Add a mark. Its `last` must not be lower than that of the marks before it."""
        self._waiting.append(Mark(last, frozenset(open_)))
        self._resolve()

    def ended(self, still_open: Collection[str]) -> None:
        """Remove the transactions that have ended: all of `open` that are not in `still_open`."""
        left = frozenset(still_open)
        self._waiting = [Mark(mark.last, mark.open & left) for mark in self._waiting]
        self._resolve()

    def raise_to(self, position: int) -> None:
        """Raise the position to a seq that is known to be resolved from another source."""
        self.position = max(self.position, position)
        self._resolve()

    def _resolve(self) -> None:
        self.position = max([self.position, *(mark.last for mark in self._waiting if not mark.open)])
        kept: list[Mark] = []
        for mark in reversed(self._waiting):
            # A mark that waits for all the transactions of a later mark never resolves before that
            # one.
            if mark.last > self.position and not any(later.open <= mark.open for later in kept):
                kept.append(mark)
        kept.reverse()
        self._waiting = kept if len(kept) <= MAX_MARKS else [*kept[:-1:2], kept[-1]]
