"""Tables, as the server's catalog has them now."""

from __future__ import annotations

import msgspec


class TableColumn(msgspec.Struct, frozen=True):
    """A column. `published` says whether replication sends it, which it mostly does not for generated
    columns. `listed` says whether the publication's list of columns has it.
    """

    name: str
    type_oid: int
    not_null: bool
    published: bool = True
    listed: bool = True


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table.

    Attributes:
        oid: its oid. For a partitioned table, the root's.
        name: `schema.table`, each part quoted where needed, as in settings and in SQL.
        schema, relation: the parts of the name, without quotes.
        columns: in order, without dropped ones.
        key: the columns of the primary key. Without one, those of a unique index over columns that
            are not null, where the replica identity comes first. Empty if there is neither.
        primary: whether `key` is a primary key.
        identity: the replica identity: d(efault), n(othing), f(ull), i(ndex).
        identity_columns: the columns of old rows that replication sends.
        partitioned: whether it is the root of partitions.
        estimate: number of rows, as the planner estimates it.
        own_part: a table of Headrace that this is, or that is a part of it. None for all others.
        leaf_identities: the columns of old rows that replication sends of partitions whose replica identity is neither
            `full` nor that of a root with `default`, each with the name of one of these partitions.
        renamed: its present name in SQL, if that is another one than `name`.
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
    own_part: str | None = None
    leaf_identities: tuple[tuple[str, frozenset[str]], ...] = ()
    renamed: str | None = None

    @property
    def sql_name(self) -> str:
        """The table's present name in SQL."""
        return self.renamed or self.name
