"""Tables, as the server's catalog has them now."""

from __future__ import annotations

import msgspec


class TableColumn(msgspec.Struct, frozen=True):
    """A column. `published`: replication sends it; generated ones mostly are not."""

    name: str
    type_oid: int
    not_null: bool
    published: bool = True


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table.

    Attributes:
        oid: its own; of a partitioned one, of the root.
        name: `schema.table`, each part quoted where it has to be: as settings have it, and as it stands in SQL.
        schema, relation: its parts, plain.
        columns: in their order, those that were dropped left out.
        key: the columns of the primary key; or else of a unique index over columns that are not null, the replica identity first; empty
            if there is none.
        primary: whether `key` is a primary key.
        identity: the replica identity: d(efault), n(othing), f(ull), i(ndex).
        identity_columns: what replication has of old rows.
        partitioned: whether it is the root of partitions.
        estimate: rows, as the planner thinks.
    """

    oid: int
    name: str
    schema: str
    relation: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    primary: bool
    identity: str
    identity_columns: tuple[str, ...]
    partitioned: bool = False
    estimate: int | None = None
