"""A backfill with the capturer's side controlled by the test, which captures and appends the WAL step by step."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import asyncpg

from headrace import store
from headrace.model.capture import BackfillInfo, BackfillKind
from headrace.model.specs import StreamSpec
from headrace.sources.postgres.backfill.adding import ChunkAdder
from headrace.sources.postgres.backfill.backfiller import Backfiller
from headrace.sources.postgres.capture.appender import Appender
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.toast_completion import ToastCompletion
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.pgoutput.decoder import Decoder
from headrace.sources.postgres.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Update,
)
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import SETTINGS, TypeInfo, load_types

STREAM = "copied"
WITHIN = 60.0
"""Timeout of every operation here in seconds, after which it counts as hung."""


async def until(answer: Callable[[], Any], meanwhile: Callable[[], Awaitable[Any]] | None = None) -> Any:
    """Poll until the result of `answer`, awaited if necessary, is true. Returns that result.

    Args:
        meanwhile: Called before each new attempt. If it returns a false value, there is a short pause.
    """
    while True:
        found = answer()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        if meanwhile is None or not await meanwhile():
            await anyio.sleep(0.005)


def chunks_of(rows: int) -> CaptureLimits:
    """Return limits with chunks of this many rows, whatever the measured speed suggests."""
    return CaptureLimits(min_chunk_rows=rows, first_chunk_rows=rows, max_chunk_rows=rows)


class Capture:
    """A source that captures only when the test calls for it.

    Attributes:
        sql: A connection to the captured database.
        backfiller: The backfiller of this capture lease. `restart` makes a new one.
        limits: The limits of the next backfiller.
    """

    def __init__(
        self,
        database: store.Database,
        sql: asyncpg.Connection[Any],
        dsn: str,
        spec: PostgresSpec,
        limits: CaptureLimits,
    ) -> None:
        self.limits = limits
        self.database = database
        self.sql = sql
        self.spec = spec
        self.tables: dict[str, Table] = {}
        self._dsn = dsn
        self._types: dict[int, TypeInfo] = {}
        self._slot = f"backfill_{uuid4().hex}"

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        database: store.Database,
        dsn: str | None = None,
        tables: tuple[str, ...] = ("public.items",),
        limits: CaptureLimits | None = None,
        **settings: Any,
    ) -> AsyncIterator[Capture]:
        """Capture changes of existing tables from now on. The slot is dropped at the end.

        Args:
            dsn: The captured database. None means Headrace's own database.
        """
        dsn = dsn or database.dsn
        spec = PostgresSpec(name=STREAM, stream=STREAM, tables=tables, **settings)
        sql = await asyncpg.connect(dsn, server_settings=SETTINGS)
        capture = cls(database, sql, dsn, spec, limits or CaptureLimits())
        try:
            await capture._begin()
            yield capture
        finally:
            with anyio.CancelScope(shield=True):
                await capture._drop()
                await sql.close()

    async def _begin(self) -> None:
        await self.sql.execute("set synchronous_commit = local")
        await self.sql.execute(
            f"create publication {self._slot} for table {', '.join(self.spec.tables)} with (publish_via_partition_root)"
        )
        await self.sql.fetchval("select pg_create_logical_replication_slot($1, 'pgoutput')", self._slot)
        async with await SourceConnection.connect(self._dsn, application_name="test") as connection:
            self.tables = await catalog.load_tables(connection, self.spec.tables)
            oids = [column.type_oid for table in self.tables.values() for column in table.columns]
            await load_types(connection, oids, self._types)
        await store.create_stream(self.database, StreamSpec(name=STREAM, one_message_per_key=self.spec.mode == "rows"))
        assert await store.create_source(self.database, STREAM, "postgres", STREAM, self.spec.settings())
        [todo] = await store.captures_to_do(self.database)
        self.number, self.source = todo.number, todo.id
        self.restart_as(await store.take_capture(self.database, self.number, uuid4(), 3600))
        await store.begin_capture(self.database, self.number, self.epoch, "0/1", "1", 1)

    async def _drop(self) -> None:
        await self.sql.fetch(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1", self._slot
        )

    def restart_as(self, epoch: int | None) -> None:
        assert epoch is not None
        self.epoch = epoch
        self.restart()

    def restart(self) -> None:
        """Simulate a new process. It continues after the last appended change and has no memory of earlier ones."""
        self._decoder = Decoder()
        self._shaper = Shaper(self.spec)
        self._idx = 0
        self._transaction: Transaction | None = None
        capture = HeldCapture(self.database, self.number, self.epoch)
        self.backfiller = Backfiller(capture, self.spec, self.connect, lambda: self.tables, limits=self.limits)
        self._toast = ToastCompletion(
            self.spec, self._shaper, SchemaCache(self.spec), self._query, self.backfiller.publishes
        )
        self._appender = Appender(capture, STREAM, Outbox(0), self._toast.complete, lambda *_: None, self.limits)

    async def _query(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        async with await self.connect() as connection:
            return await connection.rows(sql, *params)

    async def connect(self) -> SourceConnection:
        return await SourceConnection.connect(self._dsn, application_name="headrace backfill")

    # --- capturing

    async def pump(self, reached: Callable[[], None] | None = None) -> int:
        """Capture and append everything that is in the WAL so far. Returns the number of messages.

        Args:
            watermark_reached: Called when a chunk is reached, before the chunk is appended.
        """
        payloads = await self.sql.fetch(
            "select data from pg_logical_slot_get_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', $2, 'messages', 'true')",
            self._slot, self._slot,
        )  # fmt: skip
        shaped_changes = ShapedChanges()
        for (payload,) in payloads:
            self._handle(payload, shaped_changes)
        if shaped_changes.keys or shaped_changes.chunks or shaped_changes.truncated:
            if shaped_changes.chunks and reached is not None:
                reached()
            async with self.database.transaction() as connection:
                compared = await self._appender._append_part(connection, shaped_changes)
            for chunk in (*compared, *shaped_changes.chunks):
                self.backfiller.appended(chunk.id)
        assert not shaped_changes.failures
        return len(shaped_changes.keys)

    def _handle(self, payload: bytes, shaped_changes: ShapedChanges) -> None:
        match self._decoder.decode(payload):
            case Begin(lsn, at, xid):
                self._transaction, self._idx = Transaction(lsn, at, xid), 0
            case Commit():
                assert self._transaction is not None
                self.backfiller.transaction_captured(self._transaction.xid)
            case Relation() as relation:
                table = self._table(relation)
                if table is not None:
                    self.backfiller.table_captured(table)
                self._shaper.set_relation(relation, table, self._types)
            case LogicalMessage(prefix="headrace", content=content):
                self._handle_watermark(content, shaped_changes)
            case Insert() | Update() | Delete() | Truncate() as change:
                assert self._transaction is not None
                if self.backfiller.tracking:
                    for table, key, left_out in self._shaper.touched_keys(change):
                        self.backfiller.row_changed(table, key, self._transaction.xid, left_out)
                self._idx += self._shaper.change(change, self._transaction, self._idx, shaped_changes)

    def _table(self, relation: Relation) -> Table | None:
        return next((table for table in self.tables.values() if table.oid == relation.oid), None)

    def _handle_watermark(self, content: bytes, shaped_changes: ShapedChanges) -> None:
        chunk = self.backfiller.watermark_reached(content)
        if chunk is not None:
            assert self._transaction is not None
            ChunkAdder(self.spec, self._shaper).add(chunk, self._types, self._transaction, shaped_changes)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the backfiller's task. Changes are captured only when the test calls for it."""
        with anyio.fail_after(WITHIN):
            async with anyio.create_task_group() as group:
                group.start_soon(self.backfiller.run)
                yield
                group.cancel_scope.cancel()

    async def pump_until(self, answer: Callable[[], Any]) -> Any:
        """Capture until the result of `answer`, awaited if necessary, is true. Returns that result."""
        return await until(answer, self.pump)

    async def until_pending(self, chunks: int) -> None:
        """Wait until `chunks` chunks are read and marked, while nothing is captured."""
        await until(lambda: len(self.backfiller._pending) >= chunks)

    # --- backfills

    async def request_backfill(
        self,
        table: str = "public.items",
        where: Mapping[str, Any] | None = None,
        rate: int | None = None,
        kind: BackfillKind = "backfill",
    ) -> str:
        """Request a backfill, or a comparison. Returns its id."""
        text = None if where is None else json.dumps(where)
        found = await store.start_backfill(self.database, self.source, table, text, rate, kind)
        assert found is not None
        return found

    async def info(self, id_: str) -> BackfillInfo:
        return next(one for one in await store.backfills(self.database, self.source) if one.id == id_)

    async def over(self, id_: str) -> BackfillInfo | None:
        """Return how the backfill ended, or None while it runs."""
        info = await self.info(id_)
        return None if info.state in ("queued", "running") else info

    async def all_of(self, id_: str) -> BackfillInfo:
        """Capture until the backfill is over. Returns how it ended."""
        async with self.working():
            found: BackfillInfo = await self.pump_until(lambda: self.over(id_))
        return found

    # --- results

    async def messages(self, action: str | None = None) -> list[dict[str, Any]]:
        rows = await self.database.fetch(f"select data from headrace_streams.{STREAM} order by seq")
        found = [json.loads(row["data"]) for row in rows]
        return [one for one in found if action is None or one["action"] == action]

    async def replayed(self, table: str = "items", key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return the table as the stream has it, by key. Later messages override earlier ones."""
        found: dict[Any, dict[str, Any]] = {}
        for message in await self.messages():
            if message["metadata"]["table_name"] != table:
                continue
            record, action = message["record"], message["action"]
            if action == "truncate":
                found.clear()
            elif action == "delete":
                found.pop(record[key], None)
            else:
                if action == "update" and key in (message["changes"] or {}):
                    found.pop(message["changes"][key], None)
                found[record[key]] = record
        return found

    async def table(self, table: str = "items", key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return the table as it is in the database, by key."""
        rows = await self.sql.fetch(f"select to_json(t) as row from {table} as t")
        return {row[key]: row for (row,) in ((json.loads(row["row"]),) for row in rows)}
