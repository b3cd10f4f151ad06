"""The results of shaping, for the capturer: messages to append, and the work to do before that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.sources.postgres.tables import Table
from headrace.store import CaptureBatch


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """The transaction of a change. `lsn` is the position of its commit. `at` is in microseconds since
    2000-01-01 in UTC. `xid` is that of the top-level transaction.
    """

    lsn: int
    at: int
    xid: int


class IncompleteRow(msgspec.Struct, frozen=True):
    """A row of mode `rows` without some values that did not change and that the WAL does not contain.

    Attributes:
        index: its index in the batch.
        table: the table.
        key: the values of the table's key, as text.
        missing: the names of the columns.
        key_changed: whether this change gave the row its key. Versions in the stream under that key are
            then of another row.
    """

    index: int
    table: Table
    key: tuple[bytes, ...]
    missing: Sequence[str]
    key_changed: bool = False


class TruncatedTable(msgspec.Struct, frozen=True):
    """A truncated table. In mode `rows` with tombstones, each of its rows in the stream before `index`
    gets a tombstone.

    Attributes:
        index: number of messages of the batch that come before it.
        table: the table.
        metadata: JSON text of the tombstones' metadata.
    """

    index: int
    table: Table
    metadata: str


class ShapedChanges(CaptureBatch, kw_only=True):
    """Messages to append in one step, see `CaptureBatch`."""

    incomplete: list[IncompleteRow] = msgspec.field(default_factory=list)
    truncated: list[TruncatedTable] = msgspec.field(default_factory=list)
