"""TOAST completion: fills in values of updated rows that the WAL does not contain.

Postgres stores large values out of line (TOAST), and the WAL lacks those that an update did not
change. They are taken from these places, the most exact first: an earlier version of the row in the
same portion, the version in the stream, and the table itself. The table may have a newer value
already, but then a newer version of the row follows. A transform, or a condition without
tombstones, may have left out versions. Then the portion and the stream may be older than a version
that was left out, so only the table is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec
from msgspec import Raw

from headrace import store
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.database import table_names
from headrace.sources.postgres.shaping.shaped import Incomplete, ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec

AWAKE = 1.0
"""Keep-alive interval in seconds of the append's open transaction, while the captured database is queried."""

Rows = Callable[..., Awaitable[list[list[bytes | None]]]]


class _Version(msgspec.Struct):
    record: dict[str, Raw] | None
    metadata: Raw


_decode = msgspec.json.Decoder(_Version).decode
_decode_record = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class ToastCompletion:
    """Completes the rows of one source.

    Args:
        spec: its settings.
        shaper: its shaper.
        knowledge: its tables and types.
        rows: queries the captured database.
    """

    def __init__(self, spec: PostgresSpec, shaper: Shaper, schema_cache: SchemaCache, rows: Rows) -> None:
        self._spec = spec
        self._shaper = shaper
        self._schema_cache = schema_cache
        self._rows = rows

    async def complete(self, shaped_changes: ShapedChanges, executor: store.Executor) -> None:
        """Fill in missing values. A value that can't be found stays missing."""
        if not shaped_changes.incomplete:
            return
        wanted = {shaped_changes.keys[one.place] for one in shaped_changes.incomplete}
        latest: dict[str, str] = {}
        if self._all_published:
            latest = await store.captured_rows(executor, self._spec.stream, sorted(wanted))
        incomplete = {one.place: one for one in shaped_changes.incomplete}
        spoken_at = anyio.current_time()
        for place, key in enumerate(shaped_changes.keys):
            if key not in wanted:
                continue
            if (row := incomplete.get(place)) is not None:
                before = None if row.moved else latest.get(key)
                shaped_changes.data[place] = await self._completed(row, shaped_changes.data[place], before)
                if anyio.current_time() - spoken_at >= AWAKE:
                    await executor.fetchval("select 1")
                    spoken_at = anyio.current_time()
            if self._all_published:
                latest[key] = shaped_changes.data[place]
        self._shaper.completed(shaped_changes)

    @property
    def _all_published(self) -> bool:
        """Whether the newest captured version of a row is always the newest published one."""
        return self._spec.transform is None and (self._spec.condition is None or self._spec.deletes == "tombstone")

    async def _completed(self, row: Incomplete, data: str, before: str | None) -> str:
        known = _record(before)
        if any(name not in known for name in row.missing):
            known = {**await self._in_table(row), **known}
        version = _decode(data)
        record = version.record or {}
        record |= {name: known[name] for name in row.missing if name in known}
        in_order = {one.name: record[one.name] for one in row.table.columns if one.name in record}
        return _encode({"record": {**in_order, **record}, "metadata": version.metadata}).decode()

    async def _in_table(self, row: Incomplete) -> Mapping[str, Raw]:
        """Return the row as the table has it now, or nothing if the row is gone."""
        table = row.table
        columns = [column for column in table.columns if column.published]
        condition = " and ".join(f"{table_names.quoted(name)} = ${n}" for n, name in enumerate(table.key, 1))
        listed = ", ".join(table_names.quoted(column.name) for column in columns)
        key = [value.decode(errors="surrogateescape") for value in row.key]
        found = await self._rows(f"select {listed} from {table.name} where {condition}", *key)
        if not found:
            return {}
        return _decode_record(
            self._shaper.record(table, self._schema_cache.types, found[0], [one.name for one in columns])
        )


def _record(data: str | None) -> Mapping[str, Raw]:
    if data is None:
        return {}
    try:
        return _decode(data).record or {}
    except msgspec.DecodeError:
        return {}
