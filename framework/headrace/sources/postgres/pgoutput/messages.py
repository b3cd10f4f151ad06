"""The messages of pgoutput, as the decoder returns them.

Positions in the WAL are integers, and times are microseconds since 2000-01-01 in UTC, both as on
the wire. `xid` of a change, a relation or a type is its (sub)transaction. It is None outside of a
streamed transaction, where only one transaction is open.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, final

import msgspec


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""Stands for a value that is stored out of line (TOAST), did not change, and is not in the WAL."""

Value = bytes | None | Literal[_Unchanged.UNCHANGED]
"""A column's value as text in UTF-8, None for null, or UNCHANGED."""

Row = list[Value]
"""Values in the order of the relation's columns."""


class Begin(msgspec.Struct, frozen=True, gc=False):
    """A transaction's changes follow, up to its `Commit`. `lsn` is the position of that commit."""

    lsn: int
    at: int
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The end of a transaction. `end` is the end of its commit record, where streaming continues."""

    lsn: int
    end: int
    at: int


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The transaction was replicated to this server from another one."""

    lsn: int
    name: str


class Column(msgspec.Struct, frozen=True, gc=False):
    """A column of a relation. `identity` says whether the replica identity includes it in old rows."""

    name: str
    type_oid: int
    type_modifier: int
    identity: bool


class Relation(msgspec.Struct, frozen=True):
    """A table's definition from here on. `identity` is its replica identity: d(efault), n(othing),
    f(ull), i(ndex).
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]
    xid: int | None = None


class Type(msgspec.Struct, frozen=True, gc=False):
    """A type that is not built in."""

    oid: int
    schema: str
    name: str
    xid: int | None = None


class Insert(msgspec.Struct, frozen=True, gc=False):
    """A new row."""

    relation: int
    new: Row
    xid: int | None = None


class Update(msgspec.Struct, frozen=True, gc=False):
    """A changed row. `old` is the old row, if it is known. With `key_only` it has only the columns of
    the replica identity.
    """

    relation: int
    new: Row
    old: Row | None
    key_only: bool
    xid: int | None = None


class Layout(msgspec.Struct, frozen=True, eq=False):
    """Which columns of a change have a value. Changes of the same layout have the same object.

    Attributes:
        relation: the oid of the relation.
        new: for each column of the new row the index of its value in `ShortChange.values`.
        old: the same of the old row, if it is known. With `key_only`, see `Update`.
        is_insert: whether the change is an insert, or else an update.
    """

    relation: int
    new: tuple[int, ...]
    old: tuple[int, ...] | None
    key_only: bool
    is_insert: bool


@final
class ShortChange(msgspec.Struct, frozen=True, gc=False):
    """An insert or an update whose values all have less than 256 bytes.

    `values` has the values that are neither null nor unchanged, then UNCHANGED, and then None. The indexes of a
    layout that stand for these two are -2 and -1.
    """

    layout: Layout
    values: tuple[Value, ...]

    @property
    def relation(self) -> int:
        """The oid of the relation."""
        return self.layout.relation

    def rows(self) -> Insert | Update:
        """Return the same change with its rows."""
        layout, values = self.layout, self.values
        new = [values[index] for index in layout.new]
        if layout.is_insert:
            return Insert(layout.relation, new)
        old = None if layout.old is None else [values[index] for index in layout.old]
        return Update(layout.relation, new, old, layout.key_only)


class Delete(msgspec.Struct, frozen=True, gc=False):
    """A deleted row. With `key_only`, all columns outside the replica identity are null."""

    relation: int
    old: Row
    key_only: bool
    xid: int | None = None


@final
class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Tables that were truncated."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None = None


class LogicalMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a client wrote with `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int | None = None


class StreamStart(msgspec.Struct, frozen=True, gc=False):
    """A block of changes of an open transaction follows, up to `StreamStop`. `first` marks the
    transaction's first block.
    """

    xid: int
    first: bool


class StreamStop(msgspec.Struct, frozen=True, gc=False):
    """The end of the block."""


class StreamCommit(msgspec.Struct, frozen=True, gc=False):
    """A streamed transaction has committed."""

    xid: int
    lsn: int
    end: int
    at: int


class StreamAbort(msgspec.Struct, frozen=True, gc=False):
    """The rollback of a streamed transaction, or of a subtransaction. `lsn` and `at` are
    only set from protocol 4 on, with streaming `parallel`.
    """

    xid: int
    subxid: int
    lsn: int | None = None
    at: int | None = None


class BeginPrepare(msgspec.Struct, frozen=True, gc=False):
    """The changes of a transaction that is prepared for a two-phase commit follow."""

    lsn: int
    end: int
    at: int
    xid: int
    gid: str


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """The end of a prepared transaction's changes. `streamed` says whether they were streamed."""

    lsn: int
    end: int
    at: int
    xid: int
    gid: str
    streamed: bool


class CommitPrepared(msgspec.Struct, frozen=True, gc=False):
    """A prepared transaction was committed."""

    lsn: int
    end: int
    at: int
    xid: int
    gid: str


class RollbackPrepared(msgspec.Struct, frozen=True, gc=False):
    """A prepared transaction was rolled back."""

    prepare_end: int
    end: int
    prepared_at: int
    at: int
    xid: int
    gid: str


Change = ShortChange | Insert | Update | Delete | Truncate
CHANGES: Final = frozenset((ShortChange, Insert, Update, Delete, Truncate))
"""The types of changes. `type(message) in CHANGES` is cheaper than a call of `isinstance`."""

Streamed = StreamStart | StreamStop | StreamCommit | StreamAbort
Prepared = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared
AnyMessage = Begin | Commit | Origin | Relation | Type | Change | LogicalMessage | Streamed | Prepared
