"""Determines the rows of a chunk that were changed by transactions that the chunk's snapshot does not
see.

A chunk of a backfill is read under a snapshot. A watermark, which is a message in the WAL
that is written after the read, marks its place among the changes. Transactions that the snapshot sees were committed before that message.
Their changes are thus appended before the chunk, and the chunk's rows are at least as new.
Transactions that it does not see may be captured before the message, too. They are newer than the
chunk, so the rows that they changed are left out of it.

DBLog (Andreakis and Papapanagiotou, 2020, https://arxiv.org/abs/2010.12597) leaves out what was
changed between two watermarks in the log, one before the read and one after it. In Postgres that is not
enough. A transaction's commit is in the WAL, and captured, before it is visible to others, by as
long as a synchronous standby takes. A chunk read in that time has the old row, though the change
lies before both watermarks. Each transaction is therefore checked against the snapshot.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headrace.sources.postgres.limits import DEFAULTS

REMEMBERED_TRANSACTIONS = 10_000
"""Number of captured transactions to remember while no backfill is running."""

Key = tuple[bytes, ...]

ChangedKeys = dict[Key, frozenset[str]]
"""Keys of changed rows, each with the names of the columns whose values all of its changes leave out (TOAST)."""

_ROUND = 1 << 32
_HALF = 1 << 31


class Snapshot(msgspec.Struct, frozen=True):
    """The snapshot of a statement: the transactions before `end` that are not `running`. Both hold ids of 64 bits."""

    end: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """Parse the text of a `pg_snapshot`, such as `10:20:10,14`."""
        _, end, running = text.split(":")
        return cls(int(end), frozenset(map(int, running.split(","))) if running else frozenset())

    def sees(self, xid: int) -> bool:
        """Whether it sees a committed transaction, given its id on the wire, which has only 32 bits."""
        whole = self.end + (xid - self.end + _HALF) % _ROUND - _HALF  # the nearest 64-bit id
        return whole < self.end and whole not in self.running


class ChangedRows:
    """The rows of one table that were changed by captured transactions which the relevant snapshots do
    not see.

    Snapshots are taken one after the other on one server, so later ones see all that an earlier one
    sees. Transactions that the oldest relevant snapshot sees need not be kept.

    Args:
        max_rows: largest number of rows to keep. Beyond that all are forgotten, and each chunk is
            discarded if its snapshot does not see the forgotten transactions.

    Attributes:
        tracking: whether `row_changed` has to be called.
    """

    def __init__(self, max_rows: int = DEFAULTS.max_changed_rows) -> None:
        self.tracking = False
        self._max_rows = max_rows
        self._table: str | None = None
        self._recent_xids: deque[int] = deque(maxlen=REMEMBERED_TRANSACTIONS)
        self._keys: dict[int, ChangedKeys] = {}  # by transaction
        self._row_count = 0
        self._unrecorded: set[int] = set()  # transactions without a complete record of their rows
        self._partial_transaction = False  # whether the next captured transaction may be one of these
        self._oldest: Snapshot | None = None

    def start(self, table: str) -> None:
        """Record the changes of this table from now on. Earlier transactions count as unknown."""
        if self._table != table:
            self.forget()
            self._table = table
        self.tracking = True

    def stop(self) -> None:
        """Stop recording."""
        self.forget()
        self._unrecorded.clear()
        self._table, self.tracking, self._oldest = None, False, None

    def forget(self) -> None:
        """Forget the rows. Transactions so far count as unknown."""
        self._unrecorded.update(self._keys, self._recent_xids)
        self._keys, self._row_count = {}, 0
        self._partial_transaction = True
        if self._oldest is not None:
            self._unrecorded = {xid for xid in self._unrecorded if not self._oldest.sees(xid)}

    def transaction_captured(self, xid: int) -> None:
        """Note that a transaction was captured."""
        self._recent_xids.append(xid)
        if self._partial_transaction:
            self._partial_transaction = False
            self._unrecorded.add(xid)

    def row_changed(self, table: str, key: Key, xid: int, left_out: frozenset[str] = frozenset()) -> None:
        """Record that a captured transaction changed the row with this key. The key () means that it
        truncated the table.

        Args:
            left_out: the columns whose values the change leaves out, since it did not change them.
        """
        if table != self._table:
            return
        rows = self._keys.get(xid)
        if rows is None:
            if self._oldest is not None and self._oldest.sees(xid):
                return
            rows = self._keys[xid] = {}
        before = len(rows)
        rows[key] = rows.get(key, left_out) & left_out
        self._row_count += len(rows) - before
        if self._row_count > self._max_rows:
            self.forget()

    def covers(self, snapshot: Snapshot) -> bool:
        """Whether the changes of all captured transactions that the snapshot does not see were recorded."""
        return all(map(snapshot.sees, self._unrecorded))

    def transactions(self) -> list[int]:
        """Return the captured transactions with recorded rows, which older snapshots may not see."""
        return list(self._keys)

    def keys_unseen_by(self, snapshot: Snapshot) -> ChangedKeys:
        """Return the keys of rows that were changed by captured transactions that the snapshot does not see."""
        found: ChangedKeys = {}
        for xid, rows in self._keys.items():
            if not snapshot.sees(xid):
                for key, left_out in rows.items():
                    found[key] = found.get(key, left_out) & left_out
        return found

    def forget_seen_by(self, snapshot: Snapshot) -> None:
        """Forget what only older snapshots need. They are no longer used."""
        self._oldest = snapshot
        for xid in [xid for xid in self._keys if snapshot.sees(xid)]:
            self._row_count -= len(self._keys.pop(xid))
        if self._unrecorded:
            self._unrecorded = {xid for xid in self._unrecorded if not snapshot.sees(xid)}
