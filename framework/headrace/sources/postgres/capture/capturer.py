"""The capturer moves one source's changes from the server's WAL into its stream, under one capture
lease.

    run ── server, publication, slot, position                            see `preparing`
        ├─ feed ── decoder ── (spool) ── shaper ── outbox                 as fast as they come
        ├─ outbox ── stream and position ── feed.confirm                  see `appender`
        └─ backfill, watch, tables, retries                               beside it

Everything runs in one event loop, so changes are handled in the order of the WAL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from headrace import store
from headrace.model.capture import CaptureFacts
from headrace.model.clock import Clock
from headrace.sources.postgres.backfill.backfiller import Backfiller
from headrace.sources.postgres.capture.appender import Appender
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.capture.preparing import Beginning, Preparing, application_name
from headrace.sources.postgres.capture.retrying import Retrying
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.spool import Spool
from headrace.sources.postgres.capture.toast_completion import ToastCompletion
from headrace.sources.postgres.capture.watch import Watch
from headrace.sources.postgres.connection.feed import Feed
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.errors import SourceStopped
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
    Message,
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
from headrace.sources.postgres.shaping import transforms
from headrace.sources.postgres.shaping.shaped import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo

logger = logging.getLogger("headrace")

MARK = 10.0
"""Interval in seconds at which an idle source stores its position, so that its slot advances."""

LOOK = 10.0
"""Seconds between two checks that the tables are still the same."""

SILENCE = 1.0
"""Seconds of silence after which the server is assumed to have nothing to send."""

BREATH = 500
"""Changes of a streamed transaction to replay before other tasks may run."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Restart(Exception):
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
    """

    def __init__(
        self, database: store.Database, todo: CaptureToDo, spec: PostgresSpec, epoch: int,
        committed: Callable[[str], None] = lambda _: None, clock: Clock = time.monotonic, *, streaming: bool = True,
    ) -> None:  # fmt: skip
        self._database = database
        self._todo = todo
        self._spec = spec
        self._epoch = epoch
        self._tell_committed = committed
        self._clock = clock
        self._streaming = streaming
        self._dsn = spec.database or database.dsn
        self._link_lock = anyio.Lock()
        self._decoder = Decoder()
        self._spool = Spool()
        self._piece: int | None = None  # xid of the streamed transaction that is arriving
        self._transaction: Transaction | None = None  # the transaction that is being shaped
        self._passed_over = False  # whether that transaction was captured before
        self._idx = 0
        self._committed_at: datetime | None = None
        self._appended_at = clock()
        self._begun = anyio.Event()
        self._captured = self._captured_before = 0
        self._watch: Watch | None = None

    # --- the run

    async def run(self) -> None:
        """Capture until cancelled.

        Raises:
            LeaseLost: the capture lease is lost.
            SourceStopped, SourceRefused, ConfigurationError: something has to be corrected.
            SourceUnavailable, StoreUnavailable, StreamFull: a temporary failure.
            Restart: the capturer has to start again.
        """
        transform = None if self._spec.transform is None else transforms.load(self._spec.transform)
        self._shaper = Shaper(self._spec, transform)
        self._schema_cache = SchemaCache(self._spec)
        async with self._linked() as self._link:
            preparing = Preparing(self._database, self._todo, self._spec, self._epoch, self._dsn, self._schema_cache)
            begin = await preparing.run(self._link)
            self._from = self._appended = begin.position
            self._outbox = Outbox(begin.captured, begin.position)
            self._captured = self._captured_before = begin.captured
            await self._work(begin)

    async def _work(self, begin: Beginning) -> None:
        number, database = self._todo.number, self._database
        self._backfiller = Backfiller(
            database, number, self._epoch, self._spec, self._connect, lambda: self._schema_cache.tables, self._clock
        )
        watch = Watch(
            database,
            number,
            self._epoch,
            self._spec,
            begin.slot,
            self._connect,
            self._standing,
            self._clock,
            self._note,
        )
        toast_completion = ToastCompletion(self._spec, self._shaper, self._schema_cache, self._query)
        appender = Appender(
            database, number, self._epoch, self._todo.stream, self._outbox, toast_completion.complete, self._is_appended
        )
        retrying = Retrying(
            database, number, self._epoch, self._spec, self._shaper, appender.alone, self._tell_committed
        )
        self._feed = feed = await Feed.start(
            self._dsn, slot=begin.slot, publication=begin.publication, position=begin.position,
            application_name=application_name(self._todo.id), streaming=self._streaming,
        )  # fmt: skip
        try:
            async with anyio.create_task_group() as group:
                beside = (self._backfiller.run, retrying.run, self._look_after)
                for task in (feed.keep, appender.run, *beside):
                    group.start_soon(task)
                group.start_soon(self._tell_running, watch, begin.position)
                await self._capture()
        finally:
            with anyio.CancelScope(shield=True):
                await feed.close()
            self._spool.close()

    # --- connections

    async def _connect(self) -> Link:
        return await Link.connect(self._dsn, application_name=f"headrace {self._todo.name}"[:63])

    @asynccontextmanager
    async def _linked(self) -> AsyncIterator[Link]:
        link = await self._connect()
        try:
            yield link
        finally:
            with anyio.CancelScope(shield=True):
                await link.close()

    async def _query(self, sql: str, *params: str | None) -> list[list[bytes | None]]:
        """Query the captured database during the capture."""
        async with self._link_lock:
            return await self._link.rows(sql, *params)

    # --- changes, in the order of the WAL

    async def _capture(self) -> None:
        read, take, outbox = self._feed.read, self._take, self._outbox
        while True:
            received = await read()
            self._begun.set()
            await take(received.payloads)
            if outbox.idle:
                self._rest(received.end)
            await outbox.offer()

    def _rest(self, end: int) -> None:
        """Store the position now and then while nothing is pending. It is stored before it is
        confirmed to the server. So a slot that is ahead of the stored position was advanced by
        another client.
        """
        if end > self._appended and self._clock() >= self._appended_at + MARK:
            self._outbox.end(end)

    async def _take(self, payloads: Iterable[bytes]) -> None:
        decode, outbox, transforms_ = self._decoder.decode, self._outbox, self._spec.transform is not None
        for payload in payloads:
            if self._piece is not None and payload[0] != _STREAM_STOP:
                if payload[0] != _ORIGIN:  # it has no xid, unlike the others in a piece, and is not needed
                    self._spool.add(self._piece, payload)
                continue
            message = decode(payload)
            if isinstance(message, (Insert, Update, Delete, Truncate)):
                self._change(message, len(payload))
            elif type(message) is Begin:
                self._begin(Transaction(message.lsn, message.at, message.xid))
            elif type(message) is Commit:
                self._commit(message.end)
            else:
                await self._other(message)
            if outbox.full:
                await outbox.offer()
            elif transforms_:  # a transform may take long, so renewing the lease gets a turn
                await anyio.lowlevel.checkpoint()

    async def _other(self, message: AnyMessage) -> None:
        match message:
            case Relation():
                await self._learn(message)
            case Type():
                self._schema_cache.types.pop(
                    message.oid, None
                )  # the type may have changed, and its relation comes next
            case Message():
                self._marked(message)
            case StreamStart():
                self._piece = message.xid
            case StreamStop():
                self._piece = None
            case StreamAbort():
                self._spool.abort(message.xid, message.subxid)
            case StreamCommit():
                await self._replay(message)
            case BeginPrepare() | Prepare() | CommitPrepared() | RollbackPrepared():
                raise SourceStopped(
                    "The slot sends transactions when they are prepared, and not when they are committed: use one that was"
                    " made without two_phase."
                )

    async def _replay(self, commit: StreamCommit) -> None:
        """Handle a transaction that came in pieces and has committed."""
        self._begin(Transaction(commit.lsn, commit.at, commit.xid))
        for count, payload in enumerate(self._spool.replay(commit.xid)):
            message = self._decoder.decode(payload)
            if isinstance(message, (Insert, Update, Delete, Truncate)):
                self._change(message, len(payload))
            else:
                await self._other(message)
            if self._outbox.full:
                await self._outbox.offer()
            elif self._spec.transform is not None or count % BREATH == 0:
                await anyio.lowlevel.checkpoint()
        self._commit(commit.end)

    def _begin(self, transaction: Transaction) -> None:
        self._passed_over = transaction.lsn < self._from
        self._transaction = transaction
        self._idx = 0
        if not self._passed_over:
            self._outbox.begin()

    def _change(self, change: Change, size: int) -> None:
        if self._passed_over or self._transaction is None:
            return
        transaction, backfiller = self._transaction, self._backfiller
        if backfiller.tracking:
            for table, key in self._shaper.identities(change):
                backfiller.saw(table, key, transaction.xid)
        made = self._shaper.change(change, transaction, self._idx, self._outbox.shaped_changes)
        self._idx += made
        self._outbox.changed(made, size)

    def _commit(self, end: int) -> None:
        transaction, self._transaction = self._transaction, None
        if self._passed_over or transaction is None:
            self._passed_over = False
            return
        self._backfiller.captured(transaction.xid)
        self._outbox.end(end)
        if self._idx:
            self._committed_at = _EPOCH + timedelta(microseconds=transaction.at)

    def _marked(self, message: Message) -> None:
        """Handle a message that was written into the WAL. A message with the prefix `headrace` may
        mark the place of a backfill chunk.
        """
        if message.prefix != "headrace" or self._transaction is None or self._passed_over:
            return
        chunk = self._backfiller.reached(message.content)
        if chunk is None:
            return
        shaped_changes = self._outbox.shaped_changes
        before = len(shaped_changes.keys)
        made = self._shaper.read(
            chunk.table, self._schema_cache.types, chunk.rows, chunk.columns, self._transaction, shaped_changes
        )
        shaped_changes.chunks.append(store.ChunkDone(**{**_fields(chunk.done), "published": made}))
        self._idx += made
        self._outbox.changed(made, sum(map(len, shaped_changes.data[before:])))

    async def _learn(self, relation: Relation) -> None:
        async with self._link_lock:
            table = await self._schema_cache.table_of(self._link, relation)
        self._shaper.learn(relation, table, self._schema_cache.types)

    # --- progress

    async def _tell_running(self, watch: Watch, position: int) -> None:
        """Report the state `running` once the server sends something, or has been silent for a second,
        as an idle server may. A server that refuses to stream does so at once.
        """
        with anyio.move_on_after(SILENCE):
            await self._begun.wait()
        await store.tell_capture(self._database, self._todo.number, self._epoch, "running", *self._note())
        logger.info("%s is captured from %s on", self._todo.name, positions.text(position))
        self._watch = watch
        await watch.run()

    def _is_appended(self, position: int, shaped_changes: ShapedChanges) -> None:
        self._appended = position
        self._captured = shaped_changes.captured
        self._appended_at = self._clock()
        self._feed.confirm(position)
        for chunk in shaped_changes.chunks:
            self._backfiller.appended(chunk.id)
        if shaped_changes.keys or shaped_changes.emptied:
            self._tell_committed(self._todo.stream)

    def _standing(self) -> tuple[int, int, datetime | None]:
        """Return the position, the number of changes, and the commit time of the newest one, for the watch."""
        return self._appended, self._captured, self._committed_at

    def _note(self) -> tuple[str | None, str | None]:
        """Return a problem that does not stop the capture, and the statement that corrects it."""
        for error in self._schema_cache.missing.values():
            return error.reason, error.mend
        return None, None

    @property
    def counted(self) -> int:
        """Number of changes that this capturer has captured."""
        return self._captured - self._captured_before

    @property
    def facts(self) -> CaptureFacts | None:
        """The facts that the watch reported last, or None before it runs."""
        return None if self._watch is None else self._watch.facts

    # --- changes of tables

    async def _look_after(self) -> None:
        """Check regularly whether a table was dropped or recreated under its name. A new table is
        backfilled, and the capturer restarts.
        """
        while True:
            await anyio.sleep(LOOK)
            before = dict(self._schema_cache.oids())
            schema_cache = SchemaCache(self._spec)
            async with self._link_lock:
                await schema_cache.look(self._link)
            now = schema_cache.oids()
            made = [name for name in now if before.get(name) != now[name]]
            for name in made if self._spec.backfill else ():
                await store.start_backfill(self._database, self._todo.id, name, None, self._spec.rate)
            if made or before.keys() - now.keys():
                raise Restart(f"{', '.join(made) or 'a table'} was made, or dropped, meanwhile")


_STREAM_STOP, _ORIGIN = ord("E"), ord("O")


def _fields(done: store.ChunkDone) -> dict[str, Any]:
    return {name: getattr(done, name) for name in done.__struct_fields__}
