"""Looks up the rows of messages: whether the table still has them.

    select k.v1::bigint, t.id from unnest($1::text[]) with ordinality as k (v1, place)
      left join only public.orders as t on t.id = k.v1::bigint order by k.place

A message has the values of its row's key as JSON. The server reads each of them as the column's type, and returns it as
it writes it. The caller compares that with the message, so a value that the server reads otherwise is not
taken for a row that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from headrace.sources.postgres.backfill.chunks import BEGIN, LookedUp, Plan
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.connection.arrays import text_array
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.table_names import quoted
from headrace.store import CapturedMessage

_EXPANDED_YEAR = re.compile(r"([+-]|(?=0000))(\d{4,})(-\d\d-\d\d.*)", re.DOTALL)
_DATES = {1082, 1114, 1184}  # date, timestamp, timestamptz
_REWRITTEN = _DATES | {1186, 1266}  # and interval, timetz: types whose JSON is not their text
_DATA_ERROR = "22"  # the class of values that are not of their type


async def look_up(
    connection: SourceConnection,
    plan: Plan,
    columns: Sequence[str],
    messages: Sequence[CapturedMessage],
    prefix: str | None,
) -> tuple[list[LookedUp], Snapshot]:
    """Look up the rows of messages under one snapshot.

    Args:
        plan: how the table is read.
        columns: the columns to return of each row.
        messages: rows of the table in the stream, with the values of its key.
        prefix: the beginning of their keys, if the rest is the table's key.

    Raises:
        SourceRefused, SourceUnavailable.
    """
    types = {column.name: column.type_oid for column in plan.order}
    keys = [_key_of(message, {name: types[name] for name in plan.table.key}, prefix) for message in messages]
    lookup = _Lookup(connection, plan, columns, messages, keys)
    try:
        await connection.query(BEGIN.format(lock=plan.lock_sql()))
        [(text,)] = await connection.query("select pg_current_snapshot()")
        await lookup.run([index for index, key in enumerate(keys) if key is not None])
    except SourceRefused:
        await connection.query("rollback")
        raise
    await connection.query("commit")
    assert text is not None
    return lookup.looked_up, Snapshot.of(text)


class _Lookup:
    """Looks up messages by their keys. `looked_up` has the results, in the order of the messages."""

    def __init__(
        self,
        connection: SourceConnection,
        plan: Plan,
        columns: Sequence[str],
        messages: Sequence[CapturedMessage],
        keys: Sequence[list[str] | None],
    ) -> None:
        self.looked_up = [LookedUp(message, None, None) for message in messages]
        self._connection = connection
        self._sql = lookup_sql(plan, columns)
        self._keys = keys
        self._width = len(plan.table.key)
        self._exact = not {column.type_oid for column in plan.order if column.name in plan.table.key} & _REWRITTEN

    async def run(self, indexes: Sequence[int]) -> None:
        """Look up the messages with these indexes. If the server can't read a value, do it with halves of them."""
        if not indexes:
            return
        arrays = [text_array((self._keys[index] or [])[n] for index in indexes) for n in range(self._width)]
        await self._connection.query("savepoint lookup")
        try:
            rows = await self._connection.rows(self._sql, *arrays)
        except SourceRefused as error:
            if not (error.sqlstate or "").startswith(_DATA_ERROR):
                raise
            await self._connection.query("rollback to savepoint lookup")
            await self._divide(indexes)
            return
        await self._connection.query("release savepoint lookup")
        for place, *values in rows:
            index = indexes[int(place or 0) - 1]
            key, row = values[: self._width], values[self._width :]
            self.looked_up[index] = LookedUp(
                self.looked_up[index].message,
                [value for value in key if value is not None],
                row if row[0] is not None else None,
            )

    async def _divide(self, indexes: Sequence[int]) -> None:
        middle = len(indexes) // 2
        if middle:
            await self.run(indexes[:middle])
            await self.run(indexes[middle:])
        else:
            message = self.looked_up[indexes[0]].message
            self.looked_up[indexes[0]] = LookedUp(message, None, None, impossible=self._exact)


def lookup_sql(plan: Plan, columns: Sequence[str]) -> str:
    """Return the statement. Its parameters are arrays of the values of each column of the table's key."""
    types = {column.name: name for column, name in zip(plan.order, plan.types, strict=True)}
    values = [f"k.v{n}::{types[name]}" for n, name in enumerate(plan.table.key)]
    arrays = ", ".join(f"${n}::text[]" for n in range(1, len(values) + 1))
    names = ", ".join(f"v{n}" for n in range(len(values)))
    joined = " and ".join(f"t.{quoted(name)} = {value}" for name, value in zip(plan.table.key, values, strict=True))
    listed = ", ".join(f"t.{quoted(name)}" for name in columns)
    return (
        f"select k.place, {', '.join(values)}, {listed} from unnest({arrays}) with ordinality as k ({names}, place)"
        f" left join {plan.source} as t on {joined} order by k.place"
    )


def _key_of(message: CapturedMessage, columns: Mapping[str, int], prefix: str | None) -> list[str] | None:
    """Return the values of the table's key as parameters. None if they are not in the message.

    Args:
        columns: the types of the key's columns.
    """
    values = message.values or {}
    texts = [_as_text(values[name], type_oid) if name in values else None for name, type_oid in columns.items()]
    if None not in texts:
        return [text for text in texts if text is not None]
    if prefix is None or not message.key.startswith(prefix):
        return None
    tokens = message.key.removeprefix(prefix).split(".")
    return tokens if len(tokens) == len(columns) else None


def _as_text(value: msgspec.Raw, type_oid: int) -> str | None:
    """Return a JSON value in a form that the server reads. None if it has no such form."""
    raw = bytes(value)
    if raw == b"null" or raw[:1] in b"[{":
        return None
    text = str(msgspec.json.decode(raw)) if raw.startswith(b'"') else raw.decode()
    expanded = _EXPANDED_YEAR.fullmatch(text) if type_oid in _DATES else None
    if expanded is None:
        return text
    sign, year, rest = expanded.groups()
    return f"{year}{rest}" if sign == "+" else f"{int(year) + 1:04}{rest} BC"
