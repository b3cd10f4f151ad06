"""A shape converts a table's rows to JSON. It is compiled once for each set of columns.

Rows are never made into dicts, for speed. A record is joined from parts in bytes, and the names of
the columns are encoded beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Relation, Row, Value
from headrace.sources.postgres.rules.keys import KeyMaker, key_maker
from headrace.sources.postgres.shaping.shaped_changes import Transaction
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import Converter, TypeInfo, converter
from headrace.sources.postgres.values.scalars import text

_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - in UTC, as all of replication is


class Shape:
    """Converts the rows of a table to JSON and keys.

    Args:
        spec: the source's settings.
        table: the table.
        columns: names and types of a row's values, in order.
        identity: the indexes of the columns of old rows that replication sends.
        key: the columns of the table's key, by their names in `columns`. None if they are not
            known.
        types: the types of columns that are not built in.

    Attributes:
        table: the table.
        width: number of values in a row.
        identity: as given.
        fields: index in a row, JSON name with a colon, and converter of each captured column.
        head: the beginning of a message's metadata, which `commit_members` continue.
        key_indexes: the indexes of the table's key. Empty if there is none, or it is not known.
        leaf_identities: the indexes of the columns of old rows that partitions send, see `Table.leaf_identities`.
        key: makes a row's key. Raises `NoKey`.
        make_key: returns such a function for rows in which the columns' values have other indexes.
    """

    def __init__(
        self,
        spec: PostgresSpec,
        table: Table,
        columns: Sequence[tuple[str, int]],
        identity: Collection[int],
        key: Sequence[str] | None,
        types: Mapping[int, TypeInfo],
    ) -> None:
        self.table = table
        self.width = len(columns)
        self.identity = frozenset(identity)
        self.names = [name for name, _ in columns]
        indexes = {name: index for index, name in enumerate(self.names)}
        converters = {name: converter(oid, types, numeric=spec.numeric) for name, oid in columns}
        selected = spec.columns.get(table.name)
        self.fields = [
            (indexes[name], _name(name), convert)
            for name, convert in converters.items()
            if selected is None or name in selected
        ]
        self._selected = frozenset(index for index, _, _ in self.fields)
        self.leaf_identities = frozenset(
            frozenset(indexes[name] for name in known) for _, known in table.leaf_identities if known <= indexes.keys()
        )
        self._key_fields = [(indexes[name], _name(name), converters[name]) for name in key or ()]
        self.key_indexes = tuple(index for index, _, _ in self._key_fields)
        key_columns = _key_columns(spec, table, key)

        def make_key(indexes: Sequence[int]) -> KeyMaker:
            return key_maker(
                spec, table, key_columns, dict(zip(self.names, indexes, strict=True)), dict(columns), converters
            )

        self.make_key = make_key
        self.key = make_key(range(self.width))
        self.head = b',"metadata":{"table_schema":%b,"table_name":%b,' % (_json(table.schema), _json(table.relation))
        self._transaction: Transaction | None = None
        self._metadata = b""

    def metadata(self, transaction: Transaction) -> bytes:
        """Return the last member of a message's JSON, up to the change's number, which the caller appends."""
        if transaction is not self._transaction:
            self._metadata, self._transaction = self.head + commit_members(transaction), transaction
        return self._metadata

    def record(self, row: Sequence[Value]) -> bytes:
        """Return the members of a row's JSON. No value may be missing."""
        return b",".join(
            [
                name + convert(value) if (value := row[index]) is not None else name + b"null"  # type: ignore[arg-type]
                for index, name, convert in self.fields
            ]
        )

    def known(self, row: Sequence[Value]) -> bytes:
        """The same for the values that are not missing."""
        return _members(row, [field for field in self.fields if row[field[0]] is not UNCHANGED])

    def as_text(self, row: Sequence[Value]) -> bytes:
        """The same with each value's text as a string."""
        return _members(
            row,
            [
                (index, name, text)
                for index, name, _ in self.fields
                if index < len(row) and isinstance(row[index], bytes)
            ],
        )

    def changed(self, new: Sequence[Value], old: Sequence[Value]) -> bytes:
        """Return the old values of the columns that have changed."""
        return b",".join(
            [
                name + convert(before) if before is not None else name + b"null"
                for index, name, convert in self.fields
                if (before := old[index]) != new[index] and before is not UNCHANGED
            ]
        )

    def changed_identity(self, new: Sequence[Value], old: Sequence[Value]) -> bytes:
        """The same when only the identity of the old row is known."""
        return _members(
            old,
            [
                field
                for field in self.fields
                if field[0] in self.identity and old[field[0]] is not UNCHANGED and old[field[0]] != new[field[0]]
            ],
        )

    def key_record(self, row: Sequence[Value]) -> bytes:
        """Return the members of the JSON of a row's key."""
        return _members(row, self._key_fields)

    def key_array(self, row: Sequence[Value]) -> bytes:
        """Return the JSON array of the values of a row's key, as the database formats it."""
        return b"[%b]" % b", ".join([convert(row[index]) for index, _, convert in self._key_fields])  # type: ignore[arg-type]

    def key_members(self, values: Sequence[bytes]) -> bytes:
        """The same, given only the key's values."""
        return _members(values, [(n, name, convert) for n, (_, name, convert) in enumerate(self._key_fields)])

    def missing(self, row: Sequence[Value]) -> list[str]:
        """Return the names of the captured columns with missing values."""
        return [self.names[index] for index in sorted(self._selected) if row[index] is UNCHANGED]

    def padded(self, row: Row) -> Row:
        """Return the row with as many values as there are columns, whatever its length is."""
        return [*row[: self.width], *[UNCHANGED] * (self.width - len(row))]

    def filled(self, new: Row, old: Row | None, key_only: bool) -> Row:
        """Return the new row, with unchanged values taken from the old row where it has them."""
        if old is None:
            return new
        return [
            old[index] if value is UNCHANGED and (not key_only or index in self.identity) else value
            for index, value in enumerate(new)
        ]


def commit_members(transaction: Transaction) -> bytes:
    """Return the members of a message's metadata that depend on the transaction, up to the change's number."""
    seconds, microseconds = divmod(transaction.at, 1_000_000)
    second, lsn = _second(seconds), transaction.lsn
    return b'"commit_timestamp":"%b.%06dZ","commit_lsn":%d,"commit_idx":' % (second, microseconds, lsn)


@lru_cache(maxsize=4)
def _second(seconds: int) -> bytes:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().encode()


def _members(row: Sequence[Value], fields: Sequence[tuple[int, bytes, Converter]]) -> bytes:
    return b",".join(
        [
            name + (b"null" if (value := row[index]) is None else convert(value))  # type: ignore[arg-type]
            for index, name, convert in fields
        ]
    )


def shape_of_relation(spec: PostgresSpec, relation: Relation, table: Table, types: Mapping[int, TypeInfo]) -> Shape:
    """Return the shape of rows that replication sends."""
    columns = [(column.name, column.type_oid) for column in relation.columns]
    identity = [index for index, column in enumerate(relation.columns) if column.identity]
    return Shape(spec, table, columns, identity, _relation_key(relation, table), types)


def shape_of_table(spec: PostgresSpec, table: Table, columns: Sequence[str], types: Mapping[int, TypeInfo]) -> Shape:
    """Return the shape of rows that are read from a table."""
    oids = {column.name: column.type_oid for column in table.columns}
    return Shape(spec, table, [(name, oids.get(name, 0)) for name in columns], (), table.key, types)


def _relation_key(relation: Relation, table: Table) -> tuple[str, ...] | None:
    """Return the columns of the table's key by the relation's names. The relation may be older than a
    rename, or than a change of the key.
    """
    names = [column.name for column in relation.columns]
    if set(table.key) <= set(names):
        return table.key
    if relation.identity in "di":
        return tuple(column.name for column in relation.columns if column.identity) or None
    published = [column for column in table.columns if column.published]
    if [column.type_oid for column in published] != [column.type_oid for column in relation.columns]:
        return None
    renamed = dict(zip((column.name for column in published), names, strict=True))
    return tuple(renamed[name] for name in table.key) if set(table.key) <= renamed.keys() else None


def _key_columns(spec: PostgresSpec, table: Table, key: Sequence[str] | None) -> Sequence[str]:
    if spec.group is not None:
        return spec.group
    # Unknown names are looked up by the table's current ones, and so reported as missing.
    return table.key if key is None else key


def _json(text: str) -> bytes:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())


def _name(column: str) -> bytes:
    return _json(column) + b":"
