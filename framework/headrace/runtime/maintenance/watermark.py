"""A watermark: the time up to which every row that was added to a table is visible.

The rows of some tables are removed in the order of their times. Under an old snapshot the dead rows stay,
and a read from the beginning walks all of them. So these tables are read from a watermark.

A row becomes visible some time after it was added, so an empty range is not enough to read past it. But a
transaction that adds rows locks the table before it reads the clock. Once all transactions that held the
lock at some time have ended, every row before that time is visible.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headrace import store


class Watermark:
    """The watermark of a table.

    Args:
        database: an open database.
        table: the table's qualified name.

    Attributes:
        at: every row before that time is visible. None while that is unknown.
    """

    def __init__(self, database: store.Database, table: str) -> None:
        self.at: datetime | None = None
        self._database = database
        self._table = table
        self._next: datetime | None = None  # the watermark once these lock holders have ended
        self._holders: set[str] = set()
        self._history: Any = None

    async def advance(self) -> bool:
        """Advance the watermark, if the transactions that hold it back have ended.

        Returns:
            False if the clock or the database was set back, so that earlier watermarks are void.

        Raises:
            StoreUnavailable: the database can't be reached.
        """
        return self.observe(*await store.open_inserts(self._database, self._table))

    def observe(self, now: datetime, holders: set[str], history: Any) -> bool:
        """Advance it, given the time, the transactions that hold the lock, and the identity of the database's
        history.
        """
        if history != self._history or (self._next is not None and now < self._next):
            self.at, self._next, self._holders, self._history = None, now, holders, history
            return False
        self._holders &= holders
        if not self._holders:
            # Since the last time, the clock may have been set back by less than what has passed. That is not seen.
            self.at = None if self._next is None else self._next - (now - self._next)
            self._next, self._holders = now, holders
        return True
