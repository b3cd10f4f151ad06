"""TOAST completion: fills in values of updated rows that the WAL does not contain.

Postgres stores large values out of line (TOAST), and the WAL lacks those that an update did not
change. They are taken from these places, the most exact first: an earlier version of the row in the
same batch, the version in the stream, and the table itself. The table may have a newer value
already, but then a newer version of the row follows. A transform, or a condition without
tombstones, may have left out versions. Then the batch and the stream may be older than a version
that was left out, so only the table is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec
from msgspec import Raw

from headrace import store
from headrace.model.text.sql import literal
from headrace.sources.postgres import table_names
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.shaping.shaped_changes import IncompleteRow, ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec

Rows = Callable[..., Awaitable[list[list[bytes | None]]]]


class _Message(msgspec.Struct):
    record: dict[str, Raw] | None
    metadata: Raw


_decode = msgspec.json.Decoder(_Message).decode
_decode_record = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

_GONE = frozenset(("42P01", "3F000", "42703"))  # undefined_table, invalid_schema_name, undefined_column


class ToastCompletion:
    """Completes the rows of one source.

    Args:
        spec: its settings.
        shaper: its shaper.
        schema_cache: its tables and types.
        rows: queries the captured database.
        limits: the keep-alive interval of the append's transaction.
    """

    def __init__(
        self,
        spec: PostgresSpec,
        shaper: Shaper,
        schema_cache: SchemaCache,
        rows: Rows,
        limits: CaptureLimits = DEFAULTS,
    ) -> None:
        self._spec = spec
        self._shaper = shaper
        self._schema_cache = schema_cache
        self._rows = rows
        self._limits = limits

    async def complete(self, shaped_changes: ShapedChanges, executor: store.Executor) -> None:
        """Fill in missing values. A value that can't be found stays missing."""
        if not shaped_changes.incomplete:
            return
        incomplete_keys = {shaped_changes.keys[one.index] for one in shaped_changes.incomplete}
        latest: dict[str, str] = {}
        if self._all_published:
            latest = await store.captured_rows(executor, self._spec.stream, sorted(incomplete_keys))
        incomplete = {one.index: one for one in shaped_changes.incomplete}
        keepalive_at = anyio.current_time()
        for index, key in enumerate(shaped_changes.keys):
            if key not in incomplete_keys:
                continue
            if (row := incomplete.get(index)) is not None:
                previous = None if row.key_changed else latest.get(key)
                shaped_changes.data[index] = await self._completed(row, shaped_changes.data[index], previous)
                if anyio.current_time() - keepalive_at >= self._limits.append_keepalive_interval:
                    await executor.fetchval("select 1")
                    keepalive_at = anyio.current_time()
            if self._all_published:
                latest[key] = shaped_changes.data[index]
        self._shaper.finish_incomplete(shaped_changes)

    @property
    def _all_published(self) -> bool:
        """Whether the newest captured version of a row is always the newest published one."""
        return self._spec.transform is None and (self._spec.where is None or self._spec.deletes == "tombstone")

    async def _completed(self, row: IncompleteRow, data: str, previous: str | None) -> str:
        values = _record(previous)
        if any(name not in values for name in row.missing):
            values = {**await self._table_row(row), **values}
        message = _decode(data)
        record = message.record or {}
        record |= {name: values[name] for name in row.missing if name in values}
        in_order = {one.name: record[one.name] for one in row.table.columns if one.name in record}
        return _encode({"record": {**in_order, **record}, "metadata": message.metadata}).decode()

    async def _table_row(self, row: IncompleteRow) -> Mapping[str, Raw]:
        """Return the row as the table has it now, or nothing if the row or the table is gone."""
        table = row.table
        columns = [column for column in table.columns if column.published]
        condition = " and ".join(f"{table_names.quoted(name)} = ${n}" for n, name in enumerate(table.key, 1))
        column_list = ", ".join(table_names.quoted(column.name) for column in columns)
        key = [value.decode(errors="surrogateescape") for value in row.key]
        same_table = (
            f"{table.oid} = {literal(table.sql_name)}::pg_catalog.regclass"  # another one may have taken its name
        )
        try:
            rows = await self._rows(
                f"select {column_list} from {table.sql_name} where {condition} and {same_table}", *key
            )
        except SourceRefused as error:
            if error.sqlstate in _GONE:
                return {}
            raise
        if not rows:
            return {}
        return _decode_record(
            self._shaper.record(table, self._schema_cache.types, rows[0], [one.name for one in columns])
        )


def _record(data: str | None) -> Mapping[str, Raw]:
    if data is None:
        return {}
    try:
        return _decode(data).record or {}
    except msgspec.DecodeError:
        return {}
