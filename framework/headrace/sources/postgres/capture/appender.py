"""The appender writes captured messages into the stream together with the position, in one
transaction.

A captured transaction that is larger than one append is appended in parts, inside one transaction
that stays open. It thus appears in the stream whole or not at all. The position is confirmed to the
captured server only after the commit.

A position that is kept apart from the messages, in the slot or in a file, makes a capture at-least-once, and consumers
have to remove the duplicates. Here both are one commit, so it makes no difference what the server sends again. The
slot's own position only says which WAL may be removed, and may lag behind.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from headrace import store
from headrace.model.errors import InvalidInput, public_text
from headrace.model.log import Log
from headrace.sources.postgres.backfill.comparing import compare, split_at_comparison
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, TruncatedTable
from headrace.store.database.errors import translated

log = Log("headrace")

WARNING_INTERVAL = 10.0
"""Seconds between two warnings about changes that can't be published."""

Complete = Callable[[ShapedChanges, store.Executor], Awaitable[None]]


class Appender:
    """Appends messages under one capture lease.

    Args:
        capture: the source's capture.
        stream: where to append.
        outbox: the messages to append.
        complete: adds values to a batch that the WAL does not contain.
        committed: called after each commit, with the position up to which everything is in the
            stream, and what was appended last, see `_append_in_parts`.
        limits: the timings of its transactions.

    Attributes:
        append_lock: a lock that is held during an append.
    """

    def __init__(
        self,
        capture: HeldCapture,
        stream: str,
        outbox: Outbox,
        complete: Complete,
        committed: Callable[[int, ShapedChanges], None],
        limits: CaptureLimits = DEFAULTS,
    ) -> None:
        self._database = capture.database
        self._number = capture.number
        self._epoch = capture.epoch
        self._stream = stream
        self._outbox = outbox
        self._complete = complete
        self._committed = committed
        self._limits = limits
        self.append_lock = anyio.Lock()
        self._warned_at = float("-inf")

    async def run(self) -> None:
        """Append until cancelled. Raises `LeaseLost`, `UnknownStream`, `StreamFull`, `StoreUnavailable`."""
        while True:
            shaped_changes = await self._outbox.take()
            async with self.append_lock:
                if shaped_changes.position is None or shaped_changes.truncated or shaped_changes.incomplete:
                    shaped_changes = await self._append_in_parts(shaped_changes)
                else:
                    _mark_overtaken(shaped_changes)
                    await self._append_or_bisect(self._database, shaped_changes)
            self._outbox.appended()
            assert shaped_changes.position is not None
            self._committed(positions.parse(shaped_changes.position), shaped_changes)

    async def _append_in_parts(self, shaped_changes: ShapedChanges) -> ShapedChanges:
        """Append a captured transaction part by part. Returns the last part, with the backfill chunks
        of all parts. If any part had messages, the returned one has some too.
        """
        chunks: list[store.ChunkDone] = []
        last_with_messages = shaped_changes
        async with self._database.transaction() as connection:
            await store.set_idle_timeout(connection, self._limits.append_idle_timeout)
            while True:
                chunks += await self._append_part(connection, shaped_changes)
                chunks += shaped_changes.chunks
                if shaped_changes.keys or shaped_changes.truncated:
                    last_with_messages = shaped_changes
                if shaped_changes.position is not None:
                    return msgspec.structs.replace(
                        shaped_changes,
                        keys=last_with_messages.keys,
                        truncated=last_with_messages.truncated,
                        chunks=chunks,
                    )
                shaped_changes = await self._next_part(connection)

    async def _next_part(self, connection: Any) -> ShapedChanges:
        """Return the next part. Reading or transforming it may take a while, so `select 1` keeps the
        transaction from being ended as idle.
        """
        while True:
            with anyio.move_on_after(self._limits.append_keepalive_interval):
                return await self._outbox.take()
            await connection.fetchval("select 1")

    async def _append_part(self, connection: Any, shaped_changes: ShapedChanges) -> list[store.ChunkDone]:
        """Append a part, and compare what it has to compare. Returns the chunks that were compared."""
        compared: list[store.ChunkDone] = []
        while True:
            shaped_changes, comparison, rest = split_at_comparison(shaped_changes)
            await self._append_completed(connection, shaped_changes)
            if comparison is None or rest is None:
                return compared
            repaired = await compare(connection, comparison)
            await self._append_or_bisect(connection, repaired)
            compared += repaired.chunks
            shaped_changes = rest

    async def _append_completed(self, connection: Any, shaped_changes: ShapedChanges) -> None:
        await self._complete(shaped_changes, connection)
        _mark_overtaken(shaped_changes)
        appended = 0
        for truncated in shaped_changes.truncated:  # tables were emptied between the messages
            assert isinstance(truncated, TruncatedTable)
            before = ShapedChanges(
                keys=shaped_changes.keys[appended : truncated.index],
                data=shaped_changes.data[appended : truncated.index],
            )
            await self._append_or_bisect(connection, before)
            target = (self._stream, truncated.table.schema, truncated.table.relation)
            await store.truncate_captured(connection, self._number, self._epoch, *target, truncated.metadata)
            appended = truncated.index
        rest = msgspec.structs.replace(
            shaped_changes, keys=shaped_changes.keys[appended:], data=shaped_changes.data[appended:]
        )
        await self._append_or_bisect(connection, rest)

    async def _append_or_bisect(self, executor: Any, shaped_changes: ShapedChanges) -> None:
        """Append a batch. If the stream refuses a message, append the others, and keep that one as a
        failure.
        """
        try:
            await self._append(executor, shaped_changes)
        except InvalidInput as error:
            if isinstance(executor, store.Database):
                async with executor.transaction() as connection:
                    await self._bisect(connection, shaped_changes, error)
            else:
                await self._bisect(executor, shaped_changes, error)

    async def _append(self, executor: Any, shaped_changes: ShapedChanges) -> None:
        if isinstance(executor, store.Database):
            await store.append_captured(executor, self._number, self._epoch, self._stream, shaped_changes)
            return
        # A savepoint, so that a refused message does not abort the whole transaction.
        with translated(self._database.dsn):
            async with executor.transaction():
                await store.append_captured(executor, self._number, self._epoch, self._stream, shaped_changes)

    async def _bisect(self, connection: Any, shaped_changes: ShapedChanges, error: InvalidInput) -> None:
        """Find the refused messages by bisection, since there are few of them."""
        count = len(shaped_changes.keys)
        if not count:
            raise error
        if count == 1:
            failed = store.CaptureFailure(
                key=None, data=msgspec.json.encode(shaped_changes.data[0]).decode(), error=public_text(error)
            )
            self._warn(error)
            failure_only = msgspec.structs.replace(
                shaped_changes, keys=[], data=[], failures=[*shaped_changes.failures, failed]
            )
            await self._append(connection, failure_only)
            return
        middle = count // 2
        first = ShapedChanges(keys=shaped_changes.keys[:middle], data=shaped_changes.data[:middle])
        # The last messages carry the rest of the batch, above all the position.
        second = msgspec.structs.replace(
            shaped_changes, keys=shaped_changes.keys[middle:], data=shaped_changes.data[middle:]
        )
        for half in (first, second):
            try:
                await self._append(connection, half)
            except InvalidInput as half_error:
                await self._bisect(connection, half, half_error)

    def _warn(self, error: InvalidInput) -> None:
        """Log the error, at most every 10 seconds. Thousands may be alike, and all are kept as failures."""
        now = time.monotonic()
        if now >= self._warned_at + WARNING_INTERVAL:
            self._warned_at = now
            log.warning("change not published", stream=self._stream, error=error, hint="it is kept as a failure")


def _mark_overtaken(shaped_changes: ShapedChanges) -> None:
    """Mark the failures that are followed by a message with the same key. A retry of such a failure
    must not replace a newer row.
    """
    if shaped_changes.failures:
        last = {key: index for index, key in enumerate(shaped_changes.keys)}
        shaped_changes.failures = [
            msgspec.structs.replace(
                failure, overtaken=failure.key is not None and last.get(failure.key, -1) >= failure.index
            )
            for failure in shaped_changes.failures
        ]
