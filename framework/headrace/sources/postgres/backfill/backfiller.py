"""The backfill publishes the existing rows of tables, while their changes are captured.

    backfiller (a task beside the capturer)                  capturer (in the order of the WAL)
      read a chunk, under a snapshot                           transaction_captured, row_changed: what the snapshots may not see
      write_watermark: a message in the WAL ────── WAL ──▶     watermark_reached: the chunk belongs here
      read the next one                                        … shaped and appended, with the place in the table
      continue, one chunk ahead  ◀────────────────────────     appended

An older read never overwrites a newer change, see `visibility`. The stored place advances in the
transaction that appends the rows. After any crash the backfill therefore continues where it was, and reads the chunks
again that were not appended yet.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

import anyio

from headrace import store
from headrace.model.clock import Clock
from headrace.model.errors import public_text
from headrace.model.log import Log
from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.backfill.chunks import BackfillImpossible, Chunk, Plan
from headrace.sources.postgres.backfill.expecting import unverifiable
from headrace.sources.postgres.backfill.open_transactions import wait_until_visible
from headrace.sources.postgres.backfill.rate_limit import RateLimit
from headrace.sources.postgres.backfill.readers import PendingChunk, Reader, Reading, TableReader
from headrace.sources.postgres.backfill.stream_readers import (
    FoldReader,
    StreamReader,
    refuse_shared_stream,
    verified,
)
from headrace.sources.postgres.backfill.visibility import ChangedKeys, ChangedRows, Key
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.store import BackfillToDo

log = Log("headrace")

POLL_INTERVAL = 1.0
"""Seconds between two checks for a backfill to do."""

VERIFY_INTERVAL = 10.0
"""Seconds between two checks for a verification that is due."""

RETRY_DELAY = 0.5
"""Seconds before a retry after a temporary failure."""

MAX_PENDING_CHUNKS = 2
"""Largest number of chunks that are read and not yet appended."""

FAST_CHUNK, SLOW_CHUNK = 0.05, 0.1
"""Target range in seconds for reading or appending a chunk. Changes wait for that long."""

# lock_not_available, query_canceled, serialization_failure, deadlock_detected, insufficient
# resources
_TRANSIENT = frozenset(("55P03", "57014", "40001", "40P01", "53000", "53100", "53200", "53300"))

# undefined_column, undefined_table, invalid_schema_name, datatype_mismatch, undefined_function,
# feature_not_supported (a changed plan)
_TABLE_ALTERED = frozenset(("42703", "42P01", "3F000", "42804", "42883", "0A000"))


class Backfiller:
    """Runs the backfills of one source, one after the other, under one capture lease.

    Args:
        capture: the source's capture.
        spec: the source's settings.
        connect: makes a connection to the captured database.
        tables: returns the captured tables, by their names in the settings.
        clock: seconds, monotonic.
        limits: the sizes of chunks.
    """

    def __init__(
        self,
        capture: HeldCapture,
        spec: PostgresSpec,
        connect: Callable[[], Awaitable[SourceConnection]],
        tables: Callable[[], Mapping[str, Table]],
        clock: Clock = time.monotonic,
        limits: CaptureLimits = DEFAULTS,
    ) -> None:
        self._limits = limits
        self._database = capture.database
        self._number = capture.number
        self._epoch = capture.epoch
        self._spec = spec
        self._connect = connect
        self._tables = tables
        self._clock = clock
        self._changed_rows = ChangedRows(limits.max_changed_rows)
        self._earlier_visible = False
        self._watermarks = (f"{uuid4().hex}-{n}" for n in itertools.count())
        self._keys: dict[str, tuple[str, ...]] = {}  # of the tables of which changes are captured
        self._pending: dict[bytes, PendingChunk] = {}  # in the order of their watermarks
        self._appending: deque[tuple[int, float, float]] = deque()  # reached: rows, when, and the time to read them
        self._published: str | None = None  # the table whose rows are published, and not compared
        self._discarded = False  # whether a chunk was discarded, and the following ones with it
        self._progress = anyio.Event()
        # A transform may take milliseconds for each row, and all rows of a chunk are shaped at one
        # place of the stream.
        self._rows = limits.first_chunk_rows if spec.transform is None else limits.min_chunk_rows
        self._appended_at = self._verify_at = clock()
        self._refused_at: tuple[int, int] | None = (
            None  # the backfill and the row at which the server refused to continue
        )

    # --- called by the capturer, in the order of the WAL

    @property
    def tracking(self) -> bool:
        """Whether `row_changed` has to be called."""
        return self._changed_rows.tracking

    def publishes(self, table: str) -> bool:
        """Whether it publishes the rows of a table, whatever the stream has of them."""
        return self._published == table

    def transaction_captured(self, xid: int) -> None:
        """Note that a transaction was captured completely."""
        self._changed_rows.transaction_captured(xid)

    def table_captured(self, table: Table) -> None:
        """Note the key of a table's rows in `row_changed` from now on."""
        self._keys[table.name] = table.key

    def row_changed(self, table: str, key: Key, xid: int, left_out: frozenset[str]) -> None:
        """Note that a captured transaction changed a row, see `ChangedRows.row_changed`."""
        self._changed_rows.row_changed(table, key, xid, left_out)

    def expects(self, content: bytes) -> bool:
        """Whether a WAL message with Headrace's prefix is the watermark of one of the chunks."""
        return content in self._pending

    def watermark_reached(self, content: bytes) -> Chunk | None:
        """Return the chunk to append at a WAL message with Headrace's prefix. None if there is no such
        chunk, or it was discarded.
        """
        pending = self._pending.pop(content, None)
        if pending is None:
            return None
        if not self._changed_rows.covers(pending.snapshot) or self._is_under_another_key(pending.chunk.table):
            self.discard()
            return None
        changed_keys = self._changed_rows.keys_unseen_by(pending.snapshot)
        if self._pending:
            self._changed_rows.forget_seen_by(next(iter(self._pending.values())).snapshot)
        chunk = pending.chunk
        self._appending.append((chunk.done.read, self._clock(), pending.seconds))
        _set_changed_rows_apart(chunk, changed_keys)
        return chunk

    def _is_under_another_key(self, table: Table) -> bool:
        """Whether changes were noted under another key than that of a chunk. Then they are forgotten."""
        if self._keys.get(table.name, table.key) == table.key:
            return False
        del self._keys[table.name]
        self._changed_rows.forget()
        return True

    def appended(self, backfill: int) -> None:
        """Note that the rows of a reached chunk are in the stream, and its place is stored. Chunks are
        appended in the order in which they were reached.
        """
        if self._appending:
            rows, since, seconds = self._appending.popleft()
            now = self._clock()
            if rows:
                self._adapt_chunk_size(rows, max(seconds, now - max(since, self._appended_at)))
            self._appended_at = now
        self._notify_progress()

    def failed(self) -> None:
        """Note that the reached chunks can't be appended. They are read again."""
        self._appending.clear()
        self.discard()

    def discard(self) -> None:
        """Discard the chunks that are not reached yet. They are read again."""
        self._pending.clear()
        self._discarded = True
        self._notify_progress()

    def _notify_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    def _adapt_chunk_size(self, rows: int, seconds: float) -> None:
        """Adapt the size of chunks: larger while they are quick, smaller when they are slow."""
        if seconds > SLOW_CHUNK:
            self._rows = max(min(self._rows, rows) // 2, self._limits.min_chunk_rows)
        elif seconds < FAST_CHUNK and rows >= self._rows:
            self._rows = min(self._rows * 2, self._limits.max_chunk_rows)

    # --- the task

    async def run(self) -> None:
        """Work on backfills until cancelled.

        Raises:
            SourceUnavailable, StoreUnavailable: a temporary failure.
            SourceStopped: the captured database refuses connections.
            LeaseLost: the capture lease is lost.
        """
        while True:
            await self._look_after_verifications()
            if await store.next_backfill(self._database, self._number) is None:
                await anyio.sleep(POLL_INTERVAL)
                continue
            connection = await self._connect()
            try:
                await connection.query(chunks.SETTINGS)
                await self._run_requested(connection)
            finally:
                self._pending.clear()
                self._changed_rows.stop()
                self._published = None
                with anyio.CancelScope(shield=True):
                    await connection.close()

    async def _look_after_verifications(self) -> None:
        """Request those that are due, and delete what those that have ended remember."""
        if self._clock() < self._verify_at:
            return
        self._verify_at = self._clock() + VERIFY_INTERVAL
        while await store.delete_verified_rows(self._database, self._number):
            pass
        if self._spec.verify_every is not None:
            await store.request_due_verifications(
                self._database, self._number, self._epoch, list(self._tables()), self._spec.verify_every
            )

    async def _run_requested(self, connection: SourceConnection) -> None:
        """Work on backfills until there are none."""
        while (todo := await store.next_backfill(self._database, self._number)) is not None:
            self._discarded = False
            try:
                await self._run_backfill(connection, todo)
            except BackfillImpossible as error:
                await self._fail(todo, public_text(error))
            except SourceRefused as error:
                await self._handle_refusal(todo, error)
            self._pending.clear()
            while self._appending:  # until their places are stored
                await self._progress.wait()

    async def _run_backfill(self, connection: SourceConnection, todo: BackfillToDo) -> None:
        """Read the table from its stored place. Ends when it is read, a chunk is discarded, or the
        backfill is no longer wanted.
        """
        plan = await self._plan(connection, todo)
        self._changed_rows.start(plan.table.name)
        self._published = plan.table.name if todo.kind == "backfill" else None
        total = todo.total if todo.total is not None else await chunks.estimated_rows(connection, plan)
        if todo.total is None and total is not None and todo.kind != "backfill":
            total *= 2  # the table, and its rows in the stream
        if not await store.begin_backfill(self._database, self._number, self._epoch, todo.number, total):
            return
        if todo.fresh:
            log.info("backfill started", source=self._spec.name, table=todo.table, rows=total)
        if not self._earlier_visible:
            await wait_until_visible(connection, self._clock, self._limits.visibility_timeout)
            self._earlier_visible = True
        rate_limit = RateLimit(todo.rate or self._spec.rate, self._clock)
        reader = await self._reader(connection, plan, todo)
        while await self._wait_for_turn(todo, rate_limit):
            read = await reader.read(rate_limit.chunk_rows(self._rows))
            if self._discarded:
                return
            if read is None:
                await anyio.sleep(RETRY_DELAY / 10)
                continue
            rate_limit.count(read.chunk.done.read)
            await self._write_watermark(connection, read)
            if reader.done:
                await self._until_reached()
                return

    async def _reader(self, connection: SourceConnection, plan: Plan, todo: BackfillToDo) -> Reader:
        """Return what reads the next chunks: of the table, or of the stream that it is compared with."""
        how = None if todo.kind == "backfill" else await verified(self._database, self._spec, todo)
        reading = Reading(connection, plan, todo, self._changed_rows, self._limits, self._clock)
        if how is not None and (isinstance(todo.place, dict) or self._spec.mode == "changes"):
            await refuse_shared_stream(self._database, self._spec, plan.table)
        if how is not None and self._spec.mode == "changes" and todo.place is None:
            return FoldReader(reading, how)
        if how is not None and isinstance(todo.place, dict):
            return await StreamReader.opened(reading, how, self._database, self._spec)
        return await TableReader.opened(reading, how)

    async def _wait_for_turn(self, todo: BackfillToDo, rate_limit: RateLimit) -> bool:
        """Wait until another chunk may be read. Returns whether the backfill is still wanted."""
        while len(self._pending) + len(self._appending) >= MAX_PENDING_CHUNKS and not self._discarded:
            await self._progress.wait()
        while not self._discarded and await store.backfill_wanted(self._database, todo.number):
            wait = rate_limit.seconds_left()
            if wait <= 0:
                return True
            await anyio.sleep(min(wait, POLL_INTERVAL))
        return False

    async def _write_watermark(self, connection: SourceConnection, pending: PendingChunk) -> None:
        """Write the chunk's watermark into the WAL."""
        watermark = next(self._watermarks)
        self._pending[watermark.encode()] = pending  # before it is written, since it may be reached immediately
        if len(self._pending) == 1:
            self._changed_rows.forget_seen_by(pending.snapshot)
        await chunks.write_watermark(connection, watermark)

    async def _until_reached(self) -> None:
        while self._pending and not self._discarded:
            await self._progress.wait()

    async def _plan(self, connection: SourceConnection, todo: BackfillToDo) -> Plan:
        """Return the plan to read the table's current version. Raises `BackfillImpossible`."""
        [(standby,)] = await connection.query("select pg_is_in_recovery()")
        if standby == "t":
            raise BackfillImpossible(
                "The captured server is a standby, and a backfill writes watermarks into the WAL. Capture the primary, or promote the standby,"
                " and start a new backfill."
            )
        known = self._tables().get(todo.table)
        found = None if known is None else await catalog.table_with_oid(connection, known.oid, self._spec.publication)
        if known is None or found is None:
            raise BackfillImpossible(f"The table {todo.table} does not exist, or the source no longer captures it.")
        catalog.refuse_own(found[0])
        plan = await chunks.plan(connection, known, found[0], self._spec, todo.where)
        if todo.kind != "backfill" and (reason := unverifiable(self._spec, plan.table)) is not None:
            raise BackfillImpossible(reason)
        return plan

    async def _handle_refusal(self, todo: BackfillToDo, error: SourceRefused) -> None:
        """Handle a refusal of the server. A temporary one is retried after a pause. An altered table
        is planned once more. Otherwise the backfill fails.
        """
        at = (todo.number, todo.read)
        if error.sqlstate in _TRANSIENT:
            await anyio.sleep(RETRY_DELAY)
        elif error.sqlstate in _TABLE_ALTERED and self._refused_at != at:
            self._refused_at = at
        elif error.sqlstate == "42501":
            await self._fail(
                todo,
                f"{error} The role of the source's database URL must be able to read the whole table: grant select on {todo.table} to ….",  # public: of the captured database
            )
        else:
            await self._fail(todo, f"{todo.table} can't be read. {error}")  # public: of the captured database

    async def _fail(self, todo: BackfillToDo, reason: str) -> None:
        await store.fail_backfill(self._database, self._number, self._epoch, todo.number, reason)
        log.warning("backfill failed", source=self._spec.name, table=todo.table, error=reason)


def _set_changed_rows_apart(chunk: Chunk, changed: ChangedKeys) -> None:
    """Leave only the rows with keys that were not changed. None are left if the table was truncated."""
    if not changed:
        return
    rows, chunk.rows = chunk.rows, []
    if () in changed:
        return
    indexes = [chunk.columns.index(name) for name in chunk.table.key]
    for row in rows:
        left_out = changed.get(tuple(row[index] or b"" for index in indexes))
        if left_out is None:
            chunk.rows.append(row)
        elif left_out and chunk.verified is not None:
            chunk.changed_rows.append((row, left_out))
