"""Limits the rate at which rows are read."""

from __future__ import annotations

from collections.abc import Callable


class RateLimit:
    """Limits the rate at which rows are read.

    Args:
        rate: largest number of rows per second. None means no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next = clock()

    def chunk_rows(self, rows: int) -> int:
        """Return the number of rows for a chunk. With a rate, several small chunks are read per second."""
        return rows if self._rate is None else min(rows, max(self._rate // 4, 10))

    def count(self, rows: int) -> None:
        """Count rows that were read."""
        if self._rate is not None:
            self._next = max(self._next, self._clock()) + rows / self._rate

    def seconds_left(self) -> float:
        """Return the seconds until more rows may be read."""
        return self._next - self._clock()
