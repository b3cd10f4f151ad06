"""Sets of seqs as ranges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence


class SeqRanges:
    """A set of seqs.

    Attributes:
        ranges: its inclusive ranges, in ascending order, with a gap between any two.
    """

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, seqs: Iterable[int]) -> None:
        """Add seqs that are not in the set, in any order."""
        for first, last in _runs(sorted(seqs)):
            self._join(first, last)

    def _join(self, first: int, last: int) -> None:
        place = bisect_left(self.ranges, (first, last))
        if place and self.ranges[place - 1][1] == first - 1:
            place -= 1
            first = self.ranges.pop(place)[0]
        if place < len(self.ranges) and self.ranges[place][0] == last + 1:
            last = self.ranges.pop(place)[1]
        self.ranges.insert(place, (first, last))


def _runs(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending seqs as inclusive ranges without gaps."""
    start = 0
    for place in range(1, len(seqs) + 1):
        if place == len(seqs) or seqs[place] != seqs[place - 1] + 1:
            yield seqs[start], seqs[place - 1]
            start = place
