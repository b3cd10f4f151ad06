"""The capturer moves one source's changes from the server's WAL into its stream, under one capture
lease.

    run ── server, publication, slot, position                            see `preparation`
        ├─ replication ── change reader ── shaper ── outbox               as fast as they come
        ├─ outbox ── stream and position ── replication.confirm           see `appender`
        └─ backfill, slot monitor, table checks, failure retries          at the same time

Everything runs in one event loop, so changes are handled in the order of the WAL. With a shared slot, the replication
stream and the change reader belong to the slot, see `shared_slot`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec

from headrace import store
from headrace.model.capture import CaptureFacts
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.sources.postgres.backfill.adding import ChunkAdder
from headrace.sources.postgres.backfill.backfiller import Backfiller
from headrace.sources.postgres.capture.appender import Appender
from headrace.sources.postgres.capture.change_reader import ChangeReader
from headrace.sources.postgres.capture.failure_retries import FailureRetries
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.capture.preparation import CapturePreparation, StartingPoint, application_name
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.shared_slot import SharedSlot, is_of_others, refuse_root
from headrace.sources.postgres.capture.slot_monitor import SlotMonitor
from headrace.sources.postgres.capture.toast_completion import ToastCompletion
from headrace.sources.postgres.connection.replication_stream import Replication, ReplicationStream
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database import shared_slots
from headrace.sources.postgres.database.columns import missing_columns
from headrace.sources.postgres.errors import NoFreeSlot, SourceStopped, SourceUnavailable
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.pgoutput.messages import Change, LogicalMessage, Relation
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.rules.transform_watchdog import TransformWatchdog
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo
from headrace.store import CaptureToDo

log = Log("headrace")

STARTUP_SILENCE = 1.0
"""Seconds of silence after which the server is assumed to have nothing to send."""

CATCH_UP_INTERVAL = 0.2
"""Seconds between two checks whether a capturer has caught up with its shared slot."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class CaptureResources(msgspec.Struct, frozen=True):
    """The resources that the capturers of one process share.

    Args:
        committed: called with the stream's name after new messages were committed.
        watchdog: watches the transforms of this event loop.
        limits: the timings and sizes of captures.
        clock: seconds, monotonic.
    """

    committed: Callable[[str], None]
    watchdog: TransformWatchdog
    limits: CaptureLimits
    clock: Clock


class Capturer:
    """Captures one source.

    Args:
        capture: the source's capture.
        todo: the source.
        spec: its settings.
        dsn: the captured database.
        resources: the resources of the process.
        streaming: whether the server may send large transactions while they are still open.
        shared_slot: the slot that it shares with other sources. None for a separate slot.

    Attributes:
        handled: the position up to which every change was handed to it, and is in the outbox or appended.
        transaction: the transaction that is being shaped.
        has_read_copy: whether it has tried to catch up with a temporary copy of a shared slot.
    """

    def __init__(
        self,
        capture: HeldCapture,
        todo: CaptureToDo,
        spec: PostgresSpec,
        dsn: SourceDatabase,
        resources: CaptureResources,
        *,
        streaming: bool = True,
        shared_slot: SharedSlot | None = None,
    ) -> None:
        self._capture = capture
        self._todo = todo
        self._spec = spec
        self._notify_committed = resources.committed
        self._clock = resources.clock
        self._streaming = streaming
        self._limits = resources.limits
        self._watchdog = resources.watchdog
        self._shared_slot = shared_slot
        self.has_read_copy = False
        self.dsn = dsn
        self._connection_lock = anyio.Lock()
        self._replication: ReplicationStream | None = None
        self.handled = 0
        self.transaction: Transaction | None = None
        self._already_captured = False  # whether that transaction was captured before
        self._idx = 0
        self._committed_at: int | None = None  # microseconds since 2000-01-01
        self._appended_at = self._clock()
        self._reading = anyio.Event()
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
        database = store.Database(self._capture.database.dsn, max_connections=1)
        await database.open()
        try:
            await store.stop_capture(database, self._todo.number, self._capture.epoch, error.reason, error.mend)
        finally:
            await database.close()

    async def _run(self, transform: transforms.Transform | None) -> None:
        self._shaper = Shaper(self._spec, transform)
        self._chunk_adder = ChunkAdder(self._spec, self._shaper)
        self._schema_cache = SchemaCache(self._spec)
        self._types: Mapping[int, TypeInfo] = self._schema_cache.types
        self._alterations = 0
        self._relations: dict[int, tuple[Relation, Table | None]] = {}
        async with self._connected() as self._connection:
            preparation = CapturePreparation(self._capture, self._todo, self._spec, self.dsn, self._schema_cache)
            start = await preparation.run(self._connection, self._shared_slot)
            self.publication, self.is_new = start.publication, start.is_new
            self.handled = self._appended_position = start.position
            self._table_watch = start.table_watch
            self._outbox = Outbox(start.captured, start.position, self._limits)
            self._captured = self._captured_before = start.captured
            await self._run_tasks(start)

    async def _run_tasks(self, start: StartingPoint) -> None:
        capture = self._capture
        self._backfiller = Backfiller(
            capture, self._spec, self.connect, lambda: self._schema_cache.tables, self._clock, self._limits
        )
        slot_monitor = SlotMonitor(capture, self._spec, start.slot, self, self._clock)
        toast_completion = ToastCompletion(
            self._spec, self._shaper, self._schema_cache, self._query, self._backfiller.publishes, self._limits
        )
        appender = Appender(
            capture, self._todo.stream, self._outbox, toast_completion.complete, self._on_appended, self._limits
        )
        failure_retries = FailureRetries(
            capture, self._spec, self._shaper, appender.append_lock, self._notify_committed
        )
        async with anyio.create_task_group() as group:
            background = (self._backfiller.run, failure_retries.run, self._watch_tables)
            for task in (appender.run, *background):
                group.start_soon(task)
            group.start_soon(self._report_running, slot_monitor, start.position)
            await self._capture_from(start.slot)

    # --- changes, in the order of the WAL

    async def _capture_from(self, slot: str) -> None:
        shared_slot = self._shared_slot
        if shared_slot is None:
            await self._read(await self._start(slot))
            return
        if shared_slot.is_past(self.handled):
            await self._catch_up(shared_slot)
        self._reading.set()
        await shared_slot.feed(self)

    async def _catch_up(self, shared_slot: SharedSlot) -> None:
        """Read what the other sources of the slot have already from a temporary copy of it. The copy has this source's
        position, since a shared slot is confirmed only as far as all of its sources are.
        """
        self.has_read_copy = True
        try:
            replication = await self._start(shared_slots.copy_name(shared_slot.slot), copy_of=shared_slot.slot)
        except (NoFreeSlot, SourceUnavailable) as error:
            hint = "the other sources of its slot wait until it has caught up"
            log.warning("no slot to catch up with", source=self._todo.name, error=error, hint=hint)
        else:
            await self._read(replication, shared_slot)

    async def _start(self, slot: str, copy_of: str | None = None) -> ReplicationStream:
        return await ReplicationStream.start(
            self.dsn,
            Replication(
                slot=slot,
                publications=[self.publication],
                position=self.handled,
                copy_of=copy_of,
                streaming=self._streaming,
            ),
            application_name=application_name(self._todo.id),
        )

    async def _read(self, replication: ReplicationStream, shared_slot: SharedSlot | None = None) -> None:
        """Read a slot for ever, or until this capturer has caught up with the other sources of a shared slot."""
        self._replication = replication
        reader = ChangeReader([self])
        self._reading.set()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(replication.send_statuses)
                while shared_slot is None or not self._has_caught_up(shared_slot, reader):
                    received = None
                    with anyio.move_on_after(None if shared_slot is None else CATCH_UP_INTERVAL):
                        received = await replication.read()
                    if received is not None:
                        await reader.handle(received)
                group.cancel_scope.cancel()
        finally:
            self._replication = None
            reader.close()
            with anyio.CancelScope(shield=True):
                await replication.close()

    def _has_caught_up(self, shared_slot: SharedSlot, reader: ChangeReader) -> bool:
        """Whether a separate reader is no longer needed. Everything is appended, so that a source that can't append is
        not handed to the others."""
        if not (reader.between_transactions and self._outbox.idle):
            return False
        self.handled = max(self.handled, reader.position)
        return not shared_slot.is_past(self.handled + self._limits.catch_up_bytes)

    # --- connections

    async def connect(self) -> SourceConnection:
        """Make a connection to the captured server."""
        return await SourceConnection.connect(self.dsn, application_name=f"headrace {self._todo.name}"[:63])

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[SourceConnection]:
        connection = await self.connect()
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _query(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        """Query the captured database during the capture."""
        async with self._connection_lock:
            return await self._connection.rows(sql, *params)

    @property
    def roots(self) -> set[int]:
        """The oids of its partitioned tables."""
        return {table.oid for table in self._schema_cache.tables.values() if table.partitioned}

    # --- called by the reader, in the order of the WAL

    @property
    def full(self) -> bool:
        """Whether `offer` must be awaited before the next change."""
        return self._outbox.full

    async def offer(self) -> None:
        """Offer the appender what there is. Waits while there is no room."""
        await self._outbox.offer()

    def idle(self, end: int) -> None:
        """Store the position now and then while nothing is pending. It is stored before it is
        confirmed to the server. A slot that is ahead of the stored position was therefore advanced by another client.
        """
        self._first_received.set()
        if (
            end > self._appended_position
            and self._clock() >= self._appended_at + self._limits.idle_position_interval
            and self._outbox.idle
        ):
            self._outbox.end(end)

    async def relation(self, relation: Relation) -> bool:
        """Note the current definition of a relation. Returns whether its changes are captured."""
        shared_slot, tables = self._shared_slot, self._schema_cache.tables.values()
        async with self._connection_lock:
            if shared_slot is not None and is_of_others(relation, tables):
                if relation.oid in shared_slot.roots:
                    await refuse_root(self._connection, relation, tables)
                return False
            table = await self._schema_cache.table_of(self._connection, relation)
        self._relations[relation.oid] = relation, table
        if table is not None:
            self._backfiller.table_captured(table)
        self._use_types(self.transaction)
        self._shaper.set_relation(relation, table, self._types)
        return table is not None

    async def look(self) -> None:
        """Look at the definitions of types before changes are taken, since the WAL does not announce that one was altered."""
        if self._schema_cache.has_composites:
            async with self._connection_lock:
                await self._schema_cache.look_at_types(self._connection)
            self._use_types(self.transaction)

    def begin(self, transaction: Transaction) -> None:
        """Begin a transaction, which has something for this capturer."""
        self._already_captured = transaction.lsn < self.handled
        self.transaction = transaction
        self._idx = 0
        self._use_types(transaction)
        if not self._already_captured:
            self._outbox.begin()

    def change(self, change: Change, size: int) -> bool:
        """Shape a change. Returns whether renewing the lease needs a turn, or the outbox is full."""
        transaction, backfiller, outbox = self.transaction, self._backfiller, self._outbox
        if self._already_captured or transaction is None:
            return False
        if backfiller.tracking:
            for table, key, left_out in self._shaper.touched_keys(change):
                backfiller.row_changed(table, key, transaction.xid, left_out)
        count = self._shaper.change(change, transaction, self._idx, outbox.shaped_changes)
        self._idx += count
        outbox.changed(count, size)
        return outbox.full or self._spec.transform is not None

    def takes_message(self, message: LogicalMessage) -> bool:
        """Whether a message in the WAL is for this capturer. The watermarks of other sources' backfills are not. The
        commit of any other message advances the position.
        """
        return message.prefix != "headrace" or self._backfiller.expects(message.content)

    def message(self, message: LogicalMessage) -> None:
        """Handle a message that was written into the WAL. One with the prefix `headrace` is the watermark of a
        backfill chunk.
        """
        if message.prefix != "headrace" or self.transaction is None or self._already_captured:
            return
        chunk = self._backfiller.watermark_reached(message.content)
        if chunk is None:
            return
        shaped_changes = self._outbox.shaped_changes
        before = len(shaped_changes.keys)
        count = self._chunk_adder.add(chunk, self._schema_cache.types, self.transaction, shaped_changes)
        self._idx += count
        self._outbox.changed(count, sum(map(len, shaped_changes.data[before:])))

    def commit(self, end: int) -> None:
        """End the transaction, whose commit ends at this position."""
        transaction, self.transaction = self.transaction, None
        if self._already_captured or transaction is None:
            return
        self._backfiller.transaction_captured(transaction.xid)
        self.handled = end
        self._outbox.end(end)
        if self._idx:
            self._committed_at = transaction.at

    def _use_types(self, transaction: Transaction | None) -> None:
        """Use the definitions of types that the values of this transaction have."""
        if self._alterations != self._schema_cache.alterations:
            self._alterations = self._schema_cache.alterations
            self._backfiller.discard()  # the chunks that were read before
        types = self._schema_cache.types if transaction is None else self._schema_cache.types_of(transaction.xid)
        if types is not self._types and types != self._types:
            for relation, table in self._relations.values():
                self._shaper.set_relation(relation, table, types)
        self._types = types

    # --- progress

    async def _report_running(self, slot_monitor: SlotMonitor, position: int) -> None:
        """Report the state `running` once the server sends something, or has been silent for a second,
        as an idle server may. A server that refuses to stream does so immediately.
        """
        await self._reading.wait()
        with anyio.move_on_after(STARTUP_SILENCE):
            await self._first_received.wait()
        await self._report()
        log.info("capture started", source=self._todo.name, position=positions.as_text(position))
        self._slot_monitor = slot_monitor
        await slot_monitor.run()

    def _on_appended(self, position: int, shaped_changes: ShapedChanges) -> None:
        self._appended_position = position
        self._captured = shaped_changes.captured
        self._appended_at = self._clock()
        if self._replication is not None:  # a shared slot is confirmed as far as all of its sources are
            self._replication.confirm(position)
        for chunk in shaped_changes.chunks:
            self._backfiller.appended(chunk.id)
        if shaped_changes.keys or shaped_changes.truncated:
            self._notify_committed(self._todo.stream)

    async def _report(self) -> None:
        await store.report_capture(
            self._capture.database, self._todo.number, self._capture.epoch, "running", *self.problem
        )

    @property
    def progress(self) -> tuple[int, int, datetime | None]:
        """The position, the number of changes, and the commit time of the newest one, for the slot monitor."""
        committed_at = None if self._committed_at is None else _EPOCH + timedelta(microseconds=self._committed_at)
        return self._appended_position, self._captured, committed_at

    @property
    def lowest(self) -> tuple[str, int] | None:
        """The source of its shared slot with the smallest stored position, and that position."""
        return None if self._shared_slot is None else self._shared_slot.lowest

    @property
    def problem(self) -> tuple[str | None, str | None]:
        """A problem that does not stop the capture, and the statement that corrects it."""
        lacking = [
            (f"{reason} Its changes become failures, or lack what the setting does.", None)
            for _, reason in missing_columns(self._spec, self._schema_cache.tables.values())
        ]
        unlisted = [
            (f"The publication {self.publication} does not have the column {column.name} of {table.name}.", None)
            for table in self._schema_cache.tables.values()
            for column in table.columns
            if not column.listed and column.name in self._spec.columns.get(table.name, (column.name,))
        ]
        problems = [*self._table_watch.problems, *lacking, *unlisted][:3]
        mends = " ".join(mend for _, mend in problems if mend)
        return " ".join(reason for reason, _ in problems) or None, mends or None

    @property
    def captured_count(self) -> int:
        """Number of changes that this capturer has captured."""
        return self._captured - self._captured_before

    @property
    def facts(self) -> CaptureFacts | None:
        """The facts that the slot monitor reported last, or None before it runs."""
        return None if self._slot_monitor is None else self._slot_monitor.facts

    # --- changes of tables

    async def _watch_tables(self) -> None:
        async def report() -> None:
            if self._slot_monitor is not None:
                await self._report()

        interval = self._limits.table_check_interval
        await self._table_watch.run(self._connection, self._connected, self._connection_lock, interval, report)
