"""Which rows of a chunk were changed meanwhile, by transactions that its snapshot does not see.

A chunk of a backfill is read under a snapshot, and gets its place among the changes by a message in the WAL, written after it was read. What
the snapshot sees was committed before that message, so its changes are appended before the chunk, and the chunk's rows are as new or newer.
What it does not see may be captured before the message, too, and is newer than the chunk: rows that it changed are left out.

DBLog (Andreakis and Papapanagiotou, 2020, https://arxiv.org/abs/2010.12597) leaves out what was changed between two marks in the log, one
from before the read and one from after it. In Postgres that is not enough: a transaction's commit is in the WAL, and captured, before
others see it, by as long as a synchronous standby takes. A chunk read meanwhile has the row as it was, though the change lies before both marks.
So it is asked of each transaction whether the snapshot sees it.
"""

from __future__ import annotations

from collections import deque

import msgspec

REMEMBERED = 10_000
"""Captured transactions that are remembered while no backfill is under way."""

MOST_ROWS = 250_000
"""Changed rows that are kept at a time, some 100 to 200 bytes each."""

Key = tuple[bytes, ...]

_ROUND = 1 << 32
_HALF = 1 << 31


class Snapshot(msgspec.Struct, frozen=True):
    """What a statement saw: the transactions before `end` that are not `running`. Both are ids of 64 bits."""

    end: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """From the text of a `pg_snapshot`, such as `10:20:10,14`."""
        _, end, running = text.split(":")
        return cls(int(end), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, xid: int) -> bool:
        """Whether it sees a transaction that has committed since, or had; by its id on the wire, which has only 32 bits."""
        whole = self.end + (xid - self.end + _HALF) % _ROUND - _HALF  # the one that is nearest
        return whole < self.end and whole not in self.running


class Changed:
    """The rows of one table that were changed by captured transactions which no snapshot sees that matters.

    Snapshots are taken one after the other on one server, so what one of them sees all later ones see. What the oldest that still matters
    sees need not be kept.

    Args:
        most: rows to keep. Beyond that all are forgotten, and chunks whose snapshots don't see what was forgotten are of no use.

    Attributes:
        tracking: whether `saw` is to be called.
    """

    def __init__(self, most: int = MOST_ROWS) -> None:
        self.tracking = False
        self._most = most
        self._table: str | None = None
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._rows: dict[int, set[Key]] = {}  # by transaction
        self._count = 0
        self._unknown: set[int] = set()  # transactions whose rows were not noted down, or not all of them
        self._within = False  # whether the next transaction to be captured may be such a one
        self._oldest: Snapshot | None = None

    def begin(self, table: str) -> None:
        """Keep the changes of this table from now on; what was captured before is unknown."""
        if self._table != table:
            self._forget()
            self._table = table
        self.tracking = True

    def end(self) -> None:
        """Keep nothing any more."""
        self._forget()
        self._unknown.clear()
        self._table, self.tracking, self._oldest = None, False, None

    def _forget(self) -> None:
        self._unknown.update(self._rows, self._recent)
        self._rows, self._count = {}, 0
        self._within = True
        if self._oldest is not None:
            self._unknown = {xid for xid in self._unknown if not self._oldest.sees(xid)}

    def captured(self, xid: int) -> None:
        """A transaction was captured."""
        self._recent.append(xid)
        if self._within:
            self._within = False
            self._unknown.add(xid)

    def saw(self, table: str, key: Key, xid: int) -> None:
        """A captured transaction changed the row of that key, or emptied the table where the key is ()."""
        if table != self._table:
            return
        rows = self._rows.get(xid)
        if rows is None:
            if self._oldest is not None and self._oldest.sees(xid):
                return
            rows = self._rows[xid] = set()
        before = len(rows)
        rows.add(key)
        self._count += len(rows) - before
        if self._count > self._most:
            self._forget()

    def known(self, snapshot: Snapshot) -> bool:
        """Whether the changes of every captured transaction that it does not see were noted down."""
        return all(map(snapshot.sees, self._unknown))

    def unseen(self, snapshot: Snapshot) -> set[Key]:
        """Which rows were changed by captured transactions that it does not see."""
        return set().union(*(rows for xid, rows in self._rows.items() if not snapshot.sees(xid)))

    def matters_from(self, snapshot: Snapshot) -> None:
        """Nobody asks for an older snapshot any more."""
        self._oldest = snapshot
        for xid in [xid for xid in self._rows if snapshot.sees(xid)]:
            self._count -= len(self._rows.pop(xid))
        if self._unknown:
            self._unknown = {xid for xid in self._unknown if not snapshot.sees(xid)}
