"""Copies of tables that are rebuilt from a stream of captured changes alone, and their comparison with the tables.

A copy depends on nothing of the capture but its documented messages. In mode `rows` it is the messages of the
stream, without the tombstones. In mode `changes` the messages are applied one after the other, to rows that are known by
the values of their primary key. A row keeps its values, but not the key of its messages, when the table gets another
primary key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

Record = dict[str, Any]
Identity = tuple[Any, ...]

_DECODE = msgspec.json.Decoder(float_hook=Decimal).decode

_COLUMNS = """
    select a.attname, case when t.typname = 'numeric' then '::text' else '' end
      from pg_attribute as a join pg_type as t on t.oid = a.atttypid
     where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped
       and (a.attgenerated = '' or a.attgenerated = 's' and current_setting('server_version_num')::int >= 180000)
     order by a.attnum
"""


class Differences(NamedTuple):
    """How a copy differs from its table, with examples."""

    missing: list[str]
    too_many: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.too_many)

    def __str__(self) -> str:
        return (
            f"the copy lacks {len(self.missing)} rows, such as {self.missing[:3]},"
            f" and has {len(self.too_many)} rows that are not in the table, such as {self.too_many[:3]}"
        )


class Copy:
    """The tables as the messages make them, each a collection of rows.

    Args:
        mode: The mode of the source.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._rows: dict[str, dict[Identity, Record]] = {}
        self._key_columns: dict[str, tuple[str, ...]] = {}
        self._without_key: dict[str, list[Record]] = {}
        self.seq = 0
        self.messages: Counter[str] = Counter()
        """Number of messages of each table."""

    async def read(self, executor: Any, stream: str) -> Copy:
        """Apply the messages of the stream that were published since the last call. Returns the copy."""
        if self._mode == "rows":  # the stream itself is the copy
            self._rows.clear()
            self.messages.clear()
            self.seq = 0
        rows = await executor.fetch(
            f'select seq, key, data::text as data from headrace_streams."{stream}" where seq > $1 order by seq',
            self.seq,
        )
        for row in rows:
            self.apply(row["key"], _DECODE(row["data"]))
            self.seq = row["seq"]
        return self

    def apply(self, key: str, message: Record) -> None:
        """Apply a message."""
        table = "{table_schema}.{table_name}".format(**message["metadata"])
        self.messages[table] += 1
        rows, record, changes = self._rows.setdefault(table, {}), message["record"], message.get("changes") or {}
        if self._mode == "rows":
            if record is not None:
                rows[(key,)] = record
            return
        if key == table and rows:  # the table has lost its key
            self._without_key.setdefault(table, []).extend(rows.values())
            rows.clear()
        match message["action"]:
            case "truncate":
                rows.clear()
                self._without_key.pop(table, None)
            case "delete" if key == table or self._without_key.get(table):
                self._take(table, record)
            case "delete":
                self._delete(table, record)
            case "update" if key == table:
                self._take(table, {**record, **changes})
                self._without_key.setdefault(table, []).append(record)
            case _ if key == table:
                self._without_key.setdefault(table, []).append(record)
            case "update":
                identity = self._identity(table, key, record)
                names = self._key_columns[table]
                before = tuple(changes.get(name, value) for name, value in zip(names, identity, strict=True))
                old = rows.pop(before, {})
                rows[identity] = {
                    **{name: old.get(name) for name in message["metadata"].get("unchanged", ())},
                    **record,
                }
            case _:
                identity = self._identity(table, key, record)
                rows.pop(identity, None)
                rows[identity] = record

    def _identity(self, table: str, key: str, record: Record) -> Identity:
        """Return the values of a new row's primary key, whose columns are known by their values in the message's key. If the
        table has another primary key than before, its rows are known by that from now on.
        """
        tokens = sorted(key.removeprefix(table + ".").split("."))
        present = [name for name in KEY_NAMES if name in record]
        names = next(
            (
                some
                for some in combinations(present, len(tokens))
                if sorted(str(record[name]) for name in some) == tokens
            ),
            None,
        )
        assert names is not None, f"{record} has no values of the key {key}"
        if self._key_columns.setdefault(table, names) != names:
            self._key_columns[table] = names
            rows = self._rows[table]
            known = [_named(names, before, row) for before, row in rows.items()]
            rows.clear()
            rows.update(known)
        for row in self._without_key.pop(table, ()):  # it had no key before
            self._rows[table][tuple(row[name] for name in names)] = row
        return tuple(record[name] for name in names)

    def _delete(self, table: str, record: Record) -> None:
        """Remove the rows with these values of the primary key."""
        names = self._key_columns.get(table, ())
        if names and all(name in record for name in names):
            self._rows[table].pop(tuple(record[name] for name in names), None)
            return
        wanted = {name: record[name] for name in names if name in record} or {
            name: record[name] for name in KEY_NAMES if name in record
        }
        for identity, row in list(self._rows[table].items()):
            known = {**row, **dict(zip(names, identity, strict=True))}
            if all(known.get(name) == value for name, value in wanted.items()):
                del self._rows[table][identity]

    def _take(self, table: str, record: Record) -> None:
        """Remove a row of a table without a key, which is known by all of its values, or the rows with some values: the table
        has got a key since.
        """
        rows = self._without_key.get(table, [])
        same = [row for row in rows if canonical({name: row.get(name) for name in record}) == canonical(record)]
        for row in same if same and record.keys() < same[0].keys() else same[:1]:
            rows.remove(row)

    def records(self, table: str) -> list[Record]:
        return [*self._rows.get(table, {}).values(), *self._without_key.get(table, ())]

    def differences(self, table: str, there: Iterable[Record], columns: Iterable[str]) -> Differences:
        """Compare the copy of a table with its rows. Columns that the table doesn't have any more are ignored, and a
        column that a message lacks counts as null.
        """
        columns = set(columns)
        made = Counter(
            canonical({name: value for name, value in record.items() if name in columns})
            for record in self.records(table)
        )
        wanted = Counter(canonical(record) for record in there)
        return Differences(sorted((wanted - made).elements()), sorted((made - wanted).elements()))


KEY_NAMES = ("id", "nr", "aid", "tid", "bid", "part", "v")
"""Names of key columns in these tests, in their order in keys."""


def _named(names: tuple[str, ...], before: Identity, row: Record) -> tuple[Identity, Record]:
    """Return a row with its values of these columns. Without them its columns were renamed."""
    return tuple(row[name] for name in names) if all(name in row for name in names) else before, row


async def rows_of(executor: Any, table: str) -> tuple[list[Record], list[str]]:
    """Return the rows of a table as a stream should have them, and its captured columns.

    Args:
        executor: A connection whose time zone is UTC.
        table: The table in SQL, with `only` before it if rows of descendants don't count.
    """
    columns = await executor.fetch(_COLUMNS, table.removeprefix("only "))
    selected = ", ".join(f'"{name}"{cast} as "{name}"' for name, cast in columns)
    rows = await executor.fetch(f"select to_jsonb(r)::text as row from (select {selected} from {table}) as r")
    return [_DECODE(row["row"]) for row in rows], [name for name, _ in columns]


async def differences(executor: Any, copy: Copy, of: str, table: str | None = None) -> Differences:
    """Compare a copy with its table as it is now.

    Args:
        of: The table's name in the messages.
        table: The table in SQL, if its name is another one.
    """
    rows, columns = await rows_of(executor, table or of)
    return copy.differences(of, rows, columns)


def canonical(value: Any) -> str:
    """Return JSON in which equal values are equal texts, whatever way they were written in."""
    return msgspec.json.encode(_normal(value), order="sorted").decode()


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"lower", "upper", "bounds"}:
            return _range(value)
        return {name: _normal(one) for name, one in value.items() if one is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_normal(one) for one in value]
    if isinstance(value, str) and value.endswith("+00:00"):
        return value.removesuffix("+00:00") + "Z"
    return str(value) if isinstance(value, Decimal) else value


def _range(value: Mapping[str, Any]) -> str:
    if value["bounds"] == "empty":
        return "empty"
    lower, upper = ("" if one is None else str(one) for one in (value["lower"], value["upper"]))
    return f"{value['bounds'][0]}{lower},{upper}{value['bounds'][1]}"
