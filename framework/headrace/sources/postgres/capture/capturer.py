"""The capturer moves one source's changes from the server's WAL into its stream, under one capture
lease.

    run ── server, publication, slot, position                            see `preparation`
        ├─ replication ── decoder ── (spool) ── shaper ── outbox          as fast as they come
        ├─ outbox ── stream and position ── replication.confirm           see `appender`
        └─ backfill, slot monitor, table checks, failure retries          at the same time

Everything runs in one event loop, so changes are handled in the order of the WAL.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from headrace import store
from headrace.model.capture import CaptureFacts
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.sources.postgres.backfill.backfiller import Backfiller
from headrace.sources.postgres.capture.appender import Appender
from headrace.sources.postgres.capture.failure_retries import FailureRetries
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.capture.preparation import CapturePreparation, StartingPoint, application_name
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.slot_monitor import SlotMonitor
from headrace.sources.postgres.capture.spool import Spool
from headrace.sources.postgres.capture.toast_completion import ToastCompletion
from headrace.sources.postgres.connection.replication_stream import ReplicationStream
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database.columns import missing_columns
from headrace.sources.postgres.database.row_filters import find_row_filters
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.pgoutput.decoder import Decoder
from headrace.sources.postgres.pgoutput.messages import (
    AnyMessage,
    Begin,
    BeginPrepare,
    Change,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.rules.transform_watchdog import TransformWatchdog
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo

log = Log("headrace")

STARTUP_SILENCE = 1.0
"""Seconds of silence after which the server is assumed to have nothing to send."""

REPLAY_PAUSE_EVERY = 500
"""Changes of a streamed transaction to replay before other tasks may run."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class TablesChanged(Exception):
    """Raised when the capturer has to start again, because its tables have changed."""


class Capturer:
    """Captures one source.

    Args:
        database: Headrace's database, open.
        todo: the source.
        spec: its settings.
        epoch: the capture lease's epoch.
        committed: called with the stream's name after new messages were committed.
        clock: seconds, monotonic.
        streaming: whether the server may send large transactions while they are still open.
        limits: its timings and sizes.
        captured_database: the captured database, if its URL needs checks. None for that of the
            settings.
        watchdog: watches the transforms of this event loop. None for a new one.
    """

    def __init__(
        self, database: store.Database, todo: CaptureToDo, spec: PostgresSpec, epoch: int,
        committed: Callable[[str], None] = lambda _: None, clock: Clock = time.monotonic, *, streaming: bool = True,
        limits: CaptureLimits = DEFAULTS, captured_database: SourceDatabase | None = None,
        watchdog: TransformWatchdog | None = None,
    ) -> None:  # fmt: skip
        self._database = database
        self._todo = todo
        self._spec = spec
        self._epoch = epoch
        self._notify_committed = committed
        self._clock = clock
        self._streaming = streaming
        self._limits = limits
        self._watchdog = watchdog or TransformWatchdog(limits.transform_timeout, limits.interruption_grace)
        self._dsn: SourceDatabase = captured_database or spec.database or database.dsn
        self._connection_lock = anyio.Lock()
        self._decoder = Decoder()
        self._spool = Spool()
        self._open_block: int | None = None  # xid of the streamed transaction that is arriving
        self._transaction: Transaction | None = None  # the transaction that is being shaped
        self._already_captured = False  # whether that transaction was captured before
        self._idx = 0
        self._is_empty = True  # whether the open transaction has neither changes nor messages so far
        self._committed_at: datetime | None = None
        self._appended_at = clock()
        self._first_received = anyio.Event()
        self._captured = self._captured_before = 0
        self._slot_monitor: SlotMonitor | None = None

    # --- the run

    async def run(self) -> None:
        """Capture until cancelled.

        Raises:
            LeaseLost: the capture lease is lost.
            SourceStopped, SourceRefused, ConfigurationError: something has to be corrected. It is a
                `TransformStuck` if the transform did not return.
            SourceUnavailable, StoreUnavailable, StreamFull: a temporary failure.
            TablesChanged: the capturer has to start again.
        """
        name = self._spec.transform
        if name is None:
            await self._run(None)
            return
        transform = await transforms.load_in_thread(name, self._limits.import_timeout)
        with self._watchdog as watchdog:
            await self._run(watchdog.watched(transform, name, self._todo.name, self._store_stopped))

    async def _store_stopped(self, error: SourceStopped) -> None:
        """Store that the source is stopped until it is resumed, over a separate connection. The event loop is held
        up."""
        database = store.Database(self._database.dsn, max_connections=1)
        await database.open()
        try:
            await store.stop_capture(database, self._todo.number, self._epoch, error.reason, error.mend)
        finally:
            await database.close()

    async def _run(self, transform: transforms.Transform | None) -> None:
        self._shaper = Shaper(self._spec, transform)
        self._schema_cache = SchemaCache(self._spec)
        async with self._connected() as self._connection:
            preparation = CapturePreparation(
                self._database, self._todo, self._spec, self._epoch, self._dsn, self._schema_cache
            )
            start = await preparation.run(self._connection)
            self._start_position = self._appended_position = start.position
            self._publication = start.publication
            self._outbox = Outbox(start.captured, start.position, self._limits)
            self._captured = self._captured_before = start.captured
            await self._run_tasks(start)

    async def _run_tasks(self, start: StartingPoint) -> None:
        number, database = self._todo.number, self._database
        self._backfiller = Backfiller(
            database,
            number,
            self._epoch,
            self._spec,
            self._connect,
            lambda: self._schema_cache.tables,
            self._clock,
            self._limits,
        )
        slot_monitor = SlotMonitor(
            database,
            number,
            self._epoch,
            self._spec,
            start.slot,
            self._connect,
            self._progress,
            self._clock,
            self._problem,
        )
        toast_completion = ToastCompletion(self._spec, self._shaper, self._schema_cache, self._query, self._limits)
        appender = Appender(
            database,
            number,
            self._epoch,
            self._todo.stream,
            self._outbox,
            toast_completion.complete,
            self._on_appended,
            self._limits,
        )
        failure_retries = FailureRetries(
            database, number, self._epoch, self._spec, self._shaper, appender.append_lock, self._notify_committed
        )
        self._replication = replication = await ReplicationStream.start(
            self._dsn, slot=start.slot, publication=start.publication, position=start.position,
            application_name=application_name(self._todo.id), streaming=self._streaming,
        )  # fmt: skip
        try:
            async with anyio.create_task_group() as group:
                background = (self._backfiller.run, failure_retries.run, self._check_tables)
                for task in (replication.send_statuses, appender.run, *background):
                    group.start_soon(task)
                group.start_soon(self._report_running, slot_monitor, start.position)
                await self._capture()
        finally:
            with anyio.CancelScope(shield=True):
                await replication.close()
            self._spool.close()

    # --- connections

    async def _connect(self) -> SourceConnection:
        return await SourceConnection.connect(self._dsn, application_name=f"headrace {self._todo.name}"[:63])

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[SourceConnection]:
        connection = await self._connect()
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _query(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        """Query the captured database during the capture."""
        async with self._connection_lock:
            return await self._connection.rows(sql, *params)

    # --- changes, in the order of the WAL

    async def _capture(self) -> None:
        read, handle, outbox = self._replication.read, self._handle, self._outbox
        while True:
            received = await read()
            self._first_received.set()
            await handle(received.payloads)
            if outbox.idle:
                self._store_idle_position(received.end)
            await outbox.offer()

    def _store_idle_position(self, end: int) -> None:
        """Store the position now and then while nothing is pending. It is stored before it is
        confirmed to the server. A slot that is ahead of the stored position was therefore advanced by another client.
        """
        if end > self._appended_position and self._clock() >= self._appended_at + self._limits.idle_position_interval:
            self._outbox.end(end)

    async def _handle(self, payloads: Iterable[bytes]) -> None:
        decode, outbox, transforms_ = self._decoder.decode, self._outbox, self._spec.transform is not None
        for payload in payloads:
            if self._open_block is not None and payload[0] != _STREAM_STOP:
                if payload[0] != _ORIGIN:  # it has no xid, unlike the others in a block, and is not needed
                    self._spool.add(self._open_block, payload)
                continue
            message = decode(payload)
            if isinstance(message, (Insert, Update, Delete, Truncate)):
                self._change(message, len(payload))
            elif type(message) is Begin:
                self._begin_transaction(Transaction(message.lsn, message.at, message.xid))
            elif type(message) is Commit:
                self._commit_transaction(message.end)
            else:
                await self._handle_other(message)
            if outbox.full:
                await outbox.offer()
            elif transforms_:  # a transform may take long, so renewing the lease gets a turn
                await anyio.lowlevel.checkpoint()

    async def _handle_other(self, message: AnyMessage) -> None:
        match message:
            case Relation():
                await self._handle_relation(message)
            case Type():
                self._schema_cache.types.pop(
                    message.oid, None
                )  # the type may have changed, and its relation comes next
            case LogicalMessage():
                self._handle_logical_message(message)
            case StreamStart():
                self._open_block = message.xid
            case StreamStop():
                self._open_block = None
            case StreamAbort():
                self._spool.abort(message.xid, message.subxid)
            case StreamCommit():
                await self._replay(message)
            case BeginPrepare() | Prepare() | CommitPrepared() | RollbackPrepared():
                raise SourceStopped(
                    "The replication slot has two_phase on. It sends transactions before they are committed. Use a slot without two_phase."
                )

    async def _replay(self, commit: StreamCommit) -> None:
        """Handle a streamed transaction that has committed."""
        self._begin_transaction(Transaction(commit.lsn, commit.at, commit.xid))
        for count, payload in enumerate(self._spool.replay(commit.xid)):
            message = self._decoder.decode(payload)
            if isinstance(message, (Insert, Update, Delete, Truncate)):
                self._change(message, len(payload))
            else:
                await self._handle_other(message)
            if self._outbox.full:
                await self._outbox.offer()
            elif self._spec.transform is not None or count % REPLAY_PAUSE_EVERY == 0:
                await anyio.lowlevel.checkpoint()
        self._commit_transaction(commit.end)

    def _begin_transaction(self, transaction: Transaction) -> None:
        self._already_captured = transaction.lsn < self._start_position
        self._transaction = transaction
        self._idx, self._is_empty = 0, True
        if not self._already_captured:
            self._outbox.begin()

    def _change(self, change: Change, size: int) -> None:
        if self._already_captured or self._transaction is None:
            return
        self._is_empty = False
        transaction, backfiller = self._transaction, self._backfiller
        if backfiller.tracking:
            for table, key in self._shaper.touched_keys(change):
                backfiller.row_changed(table, key, transaction.xid)
        count = self._shaper.change(change, transaction, self._idx, self._outbox.shaped_changes)
        self._idx += count
        self._outbox.changed(count, size)

    def _commit_transaction(self, end: int) -> None:
        transaction, self._transaction = self._transaction, None
        if self._already_captured or transaction is None:
            self._already_captured = False
            return
        self._backfiller.transaction_captured(transaction.xid)
        if self._is_empty:
            # PostgreSQL 14 also sends transactions that changed no captured table. In Headrace's own database each
            # append is one, so appending its position immediately would never end. See `_store_idle_position`.
            self._outbox.skip()
            return
        self._outbox.end(end)
        if self._idx:
            self._committed_at = _EPOCH + timedelta(microseconds=transaction.at)

    def _handle_logical_message(self, message: LogicalMessage) -> None:
        """Handle a message that was written into the WAL. A message with the prefix `headrace` may
        be the watermark of a backfill chunk.
        """
        self._is_empty = False
        if message.prefix != "headrace" or self._transaction is None or self._already_captured:
            return
        chunk = self._backfiller.watermark_reached(message.content)
        if chunk is None:
            return
        shaped_changes = self._outbox.shaped_changes
        before = len(shaped_changes.keys)
        count = self._shaper.add_rows(
            chunk.table, self._schema_cache.types, chunk.rows, chunk.columns, self._transaction, shaped_changes
        )
        shaped_changes.chunks.append(store.ChunkDone(**{**_as_dict(chunk.done), "published": count}))
        self._idx += count
        self._outbox.changed(count, sum(map(len, shaped_changes.data[before:])))

    async def _handle_relation(self, relation: Relation) -> None:
        async with self._connection_lock:
            table = await self._schema_cache.table_of(self._connection, relation)
        self._shaper.set_relation(relation, table, self._schema_cache.types)

    # --- progress

    async def _report_running(self, slot_monitor: SlotMonitor, position: int) -> None:
        """Report the state `running` once the server sends something, or has been silent for a second,
        as an idle server may. A server that refuses to stream does so immediately.
        """
        with anyio.move_on_after(STARTUP_SILENCE):
            await self._first_received.wait()
        await store.report_capture(self._database, self._todo.number, self._epoch, "running", *self._problem())
        log.info("capture started", source=self._todo.name, position=positions.as_text(position))
        self._slot_monitor = slot_monitor
        await slot_monitor.run()

    def _on_appended(self, position: int, shaped_changes: ShapedChanges) -> None:
        self._appended_position = position
        self._captured = shaped_changes.captured
        self._appended_at = self._clock()
        self._replication.confirm(position)
        for chunk in shaped_changes.chunks:
            self._backfiller.appended(chunk.id)
        if shaped_changes.keys or shaped_changes.truncated:
            self._notify_committed(self._todo.stream)

    def _progress(self) -> tuple[int, int, datetime | None]:
        """Return the position, the number of changes, and the commit time of the newest one, for the slot monitor."""
        return self._appended_position, self._captured, self._committed_at

    def _problem(self) -> tuple[str | None, str | None]:
        """Return a problem that does not stop the capture, and the statement that corrects it."""
        for error in self._schema_cache.missing.values():
            return error.reason, error.mend
        for _, reason in missing_columns(self._spec, self._schema_cache.tables.values()):
            return f"{reason} Its changes become failures, or lack what the setting does.", None
        return None, None

    @property
    def captured_count(self) -> int:
        """Number of changes that this capturer has captured."""
        return self._captured - self._captured_before

    @property
    def facts(self) -> CaptureFacts | None:
        """The facts that the slot monitor reported last, or None before it runs."""
        return None if self._slot_monitor is None else self._slot_monitor.facts

    # --- changes of tables

    async def _check_tables(self) -> None:
        """Check regularly whether a table was dropped or recreated under its name. A new table is
        backfilled, and the capturer restarts.
        """
        while True:
            await anyio.sleep(self._limits.table_check_interval)
            before = dict(self._schema_cache.oids())
            schema_cache = SchemaCache(self._spec)
            async with self._connection_lock:
                await schema_cache.refresh(self._connection)
                filters = await find_row_filters(self._connection, self._publication, schema_cache.tables.values())
            if filters:
                raise TablesChanged(f"The publication has a row filter for {filters[0].name}.")
            now = schema_cache.oids()
            new = [name for name in now if before.get(name) != now[name]]
            for name in new if self._spec.backfill else ():
                await store.start_backfill(self._database, self._todo.id, name, None, self._spec.rate)
            if new or before.keys() - now.keys():
                raise TablesChanged(f"The tables have changed: {', '.join(new) or 'one was dropped'}.")


_STREAM_STOP, _ORIGIN = ord("E"), ord("O")


def _as_dict(done: store.ChunkDone) -> dict[str, Any]:
    return {name: getattr(done, name) for name in done.__struct_fields__}
