"""The shape of a table's rows: what makes JSON of them, compiled once for the columns that a table has at a time.

Nothing here makes a dict of a row: a record is put together from pieces of bytes, of which the names of the columns are made beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Relation, Row, Value
from headrace.sources.postgres.server.tables import Table
from headrace.sources.postgres.shaping.keys import KeyMaker, key_maker
from headrace.sources.postgres.shaping.portion import Transaction
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.values import Converter, TypeInfo, converter
from headrace.sources.postgres.values.scalars import text

_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 - in UTC, as all of replication is


class Shape:
    """What is made of the rows of a table.

    Args:
        spec: the source's settings.
        table: the table.
        columns: names and types of a row's values, in their order.
        identity: the places of those that replication has of old rows.
        key: the names of the table's key, as these columns have them; None if it is not known which they are.
        types: of columns that are of no built-in type.

    Attributes:
        table: the table.
        width: how many values a row has.
        identity: as given.
        key_places: the places of the table's key; empty if there is none, or it is not known.
        key: makes a row's key. Raises `NoKey`.
    """

    def __init__(
        self, spec: PostgresSpec, table: Table, columns: Sequence[tuple[str, int]], identity: Collection[int],
        key: Sequence[str] | None, types: Mapping[int, TypeInfo],
    ) -> None:  # fmt: skip
        self.table = table
        self.width = len(columns)
        self.identity = frozenset(identity)
        self.names = [name for name, _ in columns]
        places = {name: place for place, name in enumerate(self.names)}
        converters = {name: converter(oid, types, numeric=spec.numeric) for name, oid in columns}
        selected = spec.columns.get(table.name)
        self._fields = [
            (places[name], _name(name), convert)
            for name, convert in converters.items()
            if selected is None or name in selected
        ]
        self._selected = frozenset(place for place, _, _ in self._fields)
        self._key_fields = [(places[name], _name(name), converters[name]) for name in key or ()]
        self.key_places = tuple(place for place, _, _ in self._key_fields)
        self.key: KeyMaker = key_maker(spec, table, _grouped_by(spec, table, key), places, dict(columns), converters)
        self._head = b',"metadata":{"table_schema":%b,"table_name":%b,' % (_json(table.schema), _json(table.relation))
        self._transaction: Transaction | None = None
        self._metadata = b""

    def metadata(self, transaction: Transaction) -> bytes:
        """The last member of a message's JSON, up to the number of the change, which is to follow."""
        if transaction is not self._transaction:
            at = (_EPOCH + timedelta(microseconds=transaction.at)).isoformat(timespec="microseconds")
            self._metadata = self._head + b'"commit_timestamp":"%bZ","commit_lsn":%d,"commit_idx":' % (
                at.encode(), transaction.lsn,
            )  # fmt: skip
            self._transaction = transaction
        return self._metadata

    def record(self, row: Sequence[Value]) -> bytes:
        """The members of a row's JSON, all of whose values are there."""
        return b",".join(
            [
                name + convert(value) if (value := row[place]) is not None else name + b"null"  # type: ignore[arg-type]
                for place, name, convert in self._fields
            ]
        )

    def known(self, row: Sequence[Value]) -> bytes:
        """The same, of the values that are there."""
        return _members(row, [field for field in self._fields if row[field[0]] is not UNCHANGED])

    def as_text(self, row: Sequence[Value]) -> bytes:
        """The same, each value as a string of its text."""
        return _members(
            row,
            [
                (place, name, text)
                for place, name, _ in self._fields
                if place < len(row) and isinstance(row[place], bytes)
            ],
        )

    def changed(self, new: Sequence[Value], old: Sequence[Value]) -> bytes:
        """Of the columns that have changed the old values."""
        return b",".join(
            [
                name + convert(before) if before is not None else name + b"null"
                for place, name, convert in self._fields
                if (before := old[place]) != new[place] and before is not UNCHANGED
            ]
        )

    def changed_identity(self, new: Sequence[Value], old: Sequence[Value]) -> bytes:
        """The same, where no more is known of the old row than its identity."""
        return _members(
            old,
            [
                field for field in self._fields
                if field[0] in self.identity and old[field[0]] is not UNCHANGED and old[field[0]] != new[field[0]]
            ],
        )  # fmt: skip

    def key_record(self, row: Sequence[Value]) -> bytes:
        """The members of the JSON of the table's key, of a row."""
        return _members(row, self._key_fields)

    def key_members(self, values: Sequence[bytes]) -> bytes:
        """The same, of the key's own values."""
        return _members(values, [(n, name, convert) for n, (_, name, convert) in enumerate(self._key_fields)])

    def missing(self, row: Sequence[Value]) -> list[str]:
        """The names of the captured columns whose values are not there."""
        return [self.names[place] for place in sorted(self._selected) if row[place] is UNCHANGED]

    def fitted(self, row: Row) -> Row:
        """A row with as many values as there are columns, whatever came."""
        return [*row[: self.width], *[UNCHANGED] * (self.width - len(row))]

    def filled(self, new: Row, old: Row | None, key_only: bool) -> Row:
        """The row with values that did not change taken from the old one, if that has them."""
        if old is None:
            return new
        return [
            old[place] if value is UNCHANGED and (not key_only or place in self.identity) else value
            for place, value in enumerate(new)
        ]


def _members(row: Sequence[Value], fields: Sequence[tuple[int, bytes, Converter]]) -> bytes:
    return b",".join(
        [
            name + (b"null" if (value := row[place]) is None else convert(value))  # type: ignore[arg-type]
            for place, name, convert in fields
        ]
    )


def shape_of_relation(spec: PostgresSpec, relation: Relation, table: Table, types: Mapping[int, TypeInfo]) -> Shape:
    """The shape of what replication sends of a table."""
    columns = [(column.name, column.type_oid) for column in relation.columns]
    identity = [place for place, column in enumerate(relation.columns) if column.identity]
    return Shape(spec, table, columns, identity, _key_in(relation, table), types)


def shape_of_read(spec: PostgresSpec, table: Table, columns: Sequence[str], types: Mapping[int, TypeInfo]) -> Shape:
    """The shape of what is read from a table."""
    oids = {column.name: column.type_oid for column in table.columns}
    return Shape(spec, table, [(name, oids.get(name, 0)) for name in columns], (), table.key, types)


def _key_in(relation: Relation, table: Table) -> tuple[str, ...] | None:
    """The columns of the table's key, as the relation has them: it may be from before one was renamed, or the key another."""
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


def _grouped_by(spec: PostgresSpec, table: Table, key: Sequence[str] | None) -> Sequence[str]:
    if spec.group is not None:
        return spec.group
    # Without its names the key is asked for under those that the table has now, and so found to be missing.
    return table.key if key is None else key


def _json(text: str) -> bytes:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())


def _name(column: str) -> bytes:
    return _json(column) + b":"
