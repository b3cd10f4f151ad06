"""The results of shaping, for the capturer: messages to append, and the work to do before that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.sources.postgres.tables import Table
from headrace.store import CaptureBatch, ChunkDone, TableInStream


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


class Folding(msgspec.Struct, frozen=True):
    """How rows are found in a stream in mode `changes`.

    Attributes:
        columns: the columns of the table's key.
        rows: the keys of the rows to compare, each as a JSON array.
        limit: number of messages to fold. None folds all.
    """

    columns: tuple[str, ...]
    rows: list[str]
    limit: int | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to compare with the stream as it is before `index`.

    Attributes:
        index: number of messages of the batch that come before it.
        table: the table, as the stream names it.
        chunk: the part of the verification that is done with it.
        repair: whether to correct the stream.
        missing: what a row without a message is: a difference, something that can't be checked, or neither.
        folding: in mode `changes`, how the rows are found in the stream.
        keys, data: the messages that the rows should have.
        as_text: whether messages with the same text of their record are equal. Otherwise each message is read.
        absent: what is published for messages that the stream should not have, by key, each with the message's seq, or
            with None for any. In mode `changes` by the hash of the row's key.
        deletes: whether the source publishes deletes. Otherwise such messages stay, and are no difference.
        unchecked: number of rows and messages that can't be compared.
        changed_rows: in mode `rows`, the messages of rows that were changed since they were read, by key, each with the
            columns whose values the changes took from the stream. Only these are compared.
    """

    index: int
    table: TableInStream
    chunk: ChunkDone
    repair: bool
    missing: Literal["difference", "unchecked", "ignored"]
    folding: Folding | None
    keys: list[str]
    data: list[str]
    as_text: bool
    absent: dict[str, tuple[int | None, str]]
    deletes: bool
    unchecked: int
    changed_rows: dict[str, tuple[str, frozenset[str]]]


class ShapedChanges(CaptureBatch, kw_only=True):
    """Messages to append in one step, see `CaptureBatch`. `truncated` has the steps between messages, in their order."""

    incomplete: list[IncompleteRow] = msgspec.field(default_factory=list)
    truncated: list[TruncatedTable | Comparison] = msgspec.field(default_factory=list)
