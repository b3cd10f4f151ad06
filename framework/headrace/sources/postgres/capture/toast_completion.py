"""TOAST completion: fills in values of updated rows that the WAL does not contain.

Postgres stores large values out of line (TOAST), and the WAL lacks those that an update did not
change. They are taken from these places, the most exact first: an earlier version of the row in the
same batch, the version in the stream, and the table itself. The table may have a newer value
already, but then a newer version of the row follows. A transform, or a condition without
tombstones, may have left out versions. Then the batch and the stream may be older than a version
that was left out, so only the table is asked.

While the rows of a table are published, those in the stream may be wrong. A chunk leaves out the rows that were changed
meanwhile, so a wrong value that such a change took from the stream would stay. These are taken from the table. (A repair
corrects them in the stream.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import msgspec
from msgspec import Raw

from headrace import store
from headrace.model.text.sql import literal
from headrace.sources.postgres import table_names
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.shaping import row_messages
from headrace.sources.postgres.shaping.shaped_changes import IncompleteRow, ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec

Rows = Callable[..., Awaitable[list[list[bytes | None]]]]


_decode_record = msgspec.json.Decoder(dict[str, Raw]).decode

ROWS_AT_ONCE = 50
"""Largest number of rows to ask the captured database for in one statement."""

_NOTHING: Mapping[str, Raw] = {}

_GONE = frozenset(("42P01", "3F000", "42703"))  # undefined_table, invalid_schema_name, undefined_column


class ToastCompletion:
    """Completes the rows of one source.

    Args:
        spec: its settings.
        shaper: its shaper.
        schema_cache: its tables and types.
        rows: queries the captured database.
        is_backfilled: whether the rows of a table are being published, by its name.
        limits: the keep-alive interval of the append's transaction.
    """

    def __init__(
        self,
        spec: PostgresSpec,
        shaper: Shaper,
        schema_cache: SchemaCache,
        rows: Rows,
        is_backfilled: Callable[[str], bool],
        limits: CaptureLimits = DEFAULTS,
    ) -> None:
        self._spec = spec
        self._shaper = shaper
        self._schema_cache = schema_cache
        self._rows = rows
        self._is_backfilled = is_backfilled
        self._limits = limits

    async def complete(self, shaped_changes: ShapedChanges, executor: store.Executor) -> None:
        """Fill in missing values. A value that can't be found stays missing."""
        if not shaped_changes.incomplete:
            return
        keys, incomplete = shaped_changes.keys, {one.index: one for one in shaped_changes.incomplete}
        in_stream = {index for index, row in incomplete.items() if self._is_stream_exact(row)}
        latest: dict[str, Mapping[str, Raw]] = {}
        if in_stream:
            stored = await store.captured_rows(
                executor, self._spec.stream, sorted({keys[index] for index in in_stream})
            )
            latest = {key: _record(data) for key, data in stored.items()}
        not_found = [
            row
            for index, row in incomplete.items()
            if index not in in_stream or not latest.get(keys[index], _NOTHING).keys() >= set(row.missing)
        ]
        in_table = await self._table_rows(not_found, executor)
        incomplete_keys = {keys[index] for index in incomplete}
        for index, key in enumerate(keys):
            if key not in incomplete_keys:
                continue
            row = incomplete.get(index)
            if row is None:
                record = _record(shaped_changes.data[index])
            else:
                previous = _NOTHING if row.key_changed else latest.get(key, _NOTHING)
                message = _completed(row, shaped_changes.data[index], {**in_table.get(index, _NOTHING), **previous})
                record = message.record or _NOTHING
                shaped_changes.data[index] = row_messages.encode(message)
            if self._all_published:
                latest[key] = record
        self._shaper.finish_incomplete(shaped_changes)

    def _is_stream_exact(self, row: IncompleteRow) -> bool:
        """Whether the version of a row in the stream, if any, has the values that a change left as they were."""
        return self._all_published and not row.key_changed and not self._is_backfilled(row.table.name)

    @property
    def _all_published(self) -> bool:
        """Whether the newest captured version of a row is always the newest published one."""
        return self._spec.transform is None and (self._spec.where is None or self._spec.deletes == "tombstone")

    async def _table_rows(
        self, rows: Sequence[IncompleteRow], executor: store.Executor
    ) -> dict[int, Mapping[str, Raw]]:
        """Return rows as their tables have them now, by their indexes in the batch. Those that are gone are left out."""
        found: dict[int, Mapping[str, Raw]] = {}
        by_table: dict[int, list[IncompleteRow]] = {}
        for row in rows:
            by_table.setdefault(row.table.oid, []).append(row)
        keepalive_at = anyio.current_time()
        for alike in by_table.values():
            for first in range(0, len(alike), ROWS_AT_ONCE):
                found |= await self._rows_of_one_table(alike[first : first + ROWS_AT_ONCE])
                if anyio.current_time() - keepalive_at >= self._limits.append_keepalive_interval:
                    await executor.fetchval("select 1")
                    keepalive_at = anyio.current_time()
        return found

    async def _rows_of_one_table(self, rows: Sequence[IncompleteRow]) -> dict[int, Mapping[str, Raw]]:
        table = rows[0].table
        columns = [column.name for column in table.columns if column.published]
        column_list = ", ".join(map(table_names.quoted, columns))
        same_table = (
            f"{table.oid} = {literal(table.sql_name)}::pg_catalog.regclass"  # another one may have taken its name
        )
        # A statement for each row, so that the server knows the types of the parameters and uses the key's index.
        selects, params = [], list[str]()
        for row in rows:
            condition = " and ".join(
                f"{table_names.quoted(name)} = ${n}" for n, name in enumerate(table.key, len(params) + 1)
            )
            params += [value.decode(errors="surrogateescape") for value in row.key]
            selects.append(
                f"select {row.index}, {column_list} from {table.sql_name} where {condition} and {same_table}"
            )
        try:
            found = await self._rows(" union all ".join(selects), *params)
        except SourceRefused as error:
            if error.sqlstate in _GONE:
                return {}
            raise
        types = self._schema_cache.types
        return {
            int(index or 0): _decode_record(self._shaper.record(table, types, values, columns))
            for index, *values in found
        }


def _completed(row: IncompleteRow, data: str, values: Mapping[str, Raw]) -> row_messages.RowMessage:
    """Return a message with the missing values of its row."""
    message = row_messages.decode(data)
    record = message.record or {}
    record |= {name: values[name] for name in row.missing if name in values}
    in_order = {one.name: record[one.name] for one in row.table.columns if one.name in record}
    message.record = {**in_order, **record}
    return message


def _record(data: str) -> Mapping[str, Raw]:
    try:
        return row_messages.decode(data).record or {}
    except msgspec.DecodeError:
        return {}
