"""Copies of tables that are rebuilt from a stream of captured changes alone, and their comparison with the tables.

A copy depends on nothing of the capture but its documented messages. In mode `rows` it is the messages of the
stream, without the tombstones. In mode `changes` the messages are applied one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

Record = dict[str, Any]

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
        self._rows: dict[str, dict[Any, Record]] = {}
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
        rows, record = self._rows.setdefault(table, {}), message["record"]
        if self._mode == "rows":
            if record is not None:
                rows[key] = record
            return
        match message["action"]:
            case "truncate":
                rows.clear()
                self._without_key.pop(table, None)
            case "delete" if key == table:
                self._take(table, record)
            case "delete":
                rows.pop(key, None)
            case "update" if key == table:
                self._take(table, {**record, **(message["changes"] or {})})
                self._without_key.setdefault(table, []).append(record)
            case _ if key == table:
                self._without_key.setdefault(table, []).append(record)
            case "update":
                old = rows.pop(_old_key(table, key, message), {})
                rows[key] = {**{name: old.get(name) for name in message["metadata"].get("unchanged", ())}, **record}
            case _:
                rows[key] = record

    def _take(self, table: str, record: Record) -> None:
        """Remove a row of a table without a key, which is known by all of its values."""
        rows, wanted = self._without_key.get(table, []), canonical(record)
        for place, row in enumerate(rows):
            if canonical(row) == wanted:
                del rows[place]
                return

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


def _old_key(table: str, key: str, message: Mapping[str, Any]) -> str:
    """Return the key of the messages of the row before an update. It differs if `changes` has values of key columns,
    which are known by their place in the key.
    """
    changes, record = message["changes"] or {}, message["record"]
    values = key.removeprefix(table + ".").split(".")
    for name, old in changes.items():
        new = str(record.get(name))
        if values.count(new) == 1 and name in KEY_NAMES:
            values[values.index(new)] = str(old)
    return f"{table}.{'.'.join(values)}"


KEY_NAMES = frozenset({"id", "part", "nr"})
"""Names of key columns in these tests. No other columns have them, and no two columns of a key have equal values that change."""


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
