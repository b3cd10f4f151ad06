"""What travels from shaping to the capturer: messages to append, and what must be seen to before that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.sources.postgres.server.tables import Table
from headrace.store import Captured


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """The transaction that changes are of. `lsn` is of its commit, `at` microseconds since 2000-01-01 in UTC; `xid` is the top one's."""

    lsn: int
    at: int
    xid: int


class Incomplete(msgspec.Struct, frozen=True):
    """A row of mode `rows` that lacks values which did not change and are not in the WAL.

    Attributes:
        place: its index in the portion.
        table: the table.
        key: the values of the table's key, as text.
        missing: the names of the columns.
        moved: whether it has its key only since this change: versions that the stream has under it are of another row.
    """

    place: int
    table: Table
    key: tuple[bytes, ...]
    missing: Sequence[str]
    moved: bool = False


class Emptied(msgspec.Struct, frozen=True):
    """A table was truncated: in mode `rows` with tombstones, one for each row of the stream that is of it, before `place`.

    Attributes:
        place: messages of the portion that come before it.
        table: the table.
        metadata: JSON text of the tombstones' metadata.
    """

    place: int
    table: Table
    metadata: str


class Portion(Captured, kw_only=True):
    """Messages to append in one step; see `Captured`."""

    incomplete: list[Incomplete] = msgspec.field(default_factory=list)
    emptied: list[Emptied] = msgspec.field(default_factory=list)
