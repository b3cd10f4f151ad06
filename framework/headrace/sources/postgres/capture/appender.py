"""The appender writes captured messages into the stream together with the position, in one
transaction.

A captured transaction that is larger than one append is appended in parts, inside one transaction
that stays open. So it appears in the stream whole or not at all. The position is confirmed to the
captured server only after the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.shaping.shaped import ShapedChanges
from headrace.store.database.errors import translated

logger = logging.getLogger("headrace")

IDLE_LIMIT = 5.0
"""Idle limit of the open transaction of a large append, in seconds. The database ends it after that,
so that a frozen process does not block others.
"""

AWAKE = 1.0
"""Keep-alive interval of the open transaction while there is nothing to append, in seconds."""

SILENT = 10.0
"""Seconds between two warnings about changes that can't be published."""

Complete = Callable[[ShapedChanges, store.Executor], Awaitable[None]]


class Appender:
    """Appends messages under one capture lease.

    Args:
        database: an open database.
        number: the source's number in it.
        epoch: the capture lease's epoch.
        stream: where to append.
        outbox: the messages to append.
        complete: adds values to a portion that the WAL does not contain.
        committed: called after each commit, with the position up to which everything is in the
            stream, and what was appended last, see `_in_parts`.

    Attributes:
        alone: a lock that is held during an append.
    """

    def __init__(
        self, database: store.Database, number: int, epoch: int, stream: str, outbox: Outbox, complete: Complete,
        committed: Callable[[int, ShapedChanges], None],
    ) -> None:  # fmt: skip
        self._database = database
        self._number = number
        self._epoch = epoch
        self._stream = stream
        self._outbox = outbox
        self._complete = complete
        self._committed = committed
        self.alone = anyio.Lock()
        self._told_at = float("-inf")

    async def run(self) -> None:
        """Append until cancelled. Raises `LeaseLost`, `UnknownStream`, `StreamFull`, `StoreUnavailable`."""
        while True:
            shaped_changes = await self._outbox.take()
            async with self.alone:
                if shaped_changes.position is None or shaped_changes.emptied or shaped_changes.incomplete:
                    shaped_changes = await self._in_parts(shaped_changes)
                else:
                    _overtake(shaped_changes)
                    await self._append_or_sort_out(self._database, shaped_changes)
            self._outbox.appended()
            assert shaped_changes.position is not None
            self._committed(positions.number(shaped_changes.position), shaped_changes)

    async def _in_parts(self, shaped_changes: ShapedChanges) -> ShapedChanges:
        """Append a captured transaction part by part. Returns the last part, with the backfill chunks
        of all parts. If any part had messages, the returned one has some too.
        """
        chunks: list[store.ChunkDone] = []
        told = shaped_changes
        async with self._database.transaction() as connection:
            await store.end_when_idle(connection, IDLE_LIMIT)
            while True:
                await self._part(connection, shaped_changes)
                chunks += shaped_changes.chunks
                if shaped_changes.keys or shaped_changes.emptied:
                    told = shaped_changes
                if shaped_changes.position is not None:
                    return msgspec.structs.replace(shaped_changes, keys=told.keys, emptied=told.emptied, chunks=chunks)
                shaped_changes = await self._next(connection)

    async def _next(self, connection: Any) -> ShapedChanges:
        """Return the next part. Reading or transforming it may take a while, so `select 1` keeps the
        transaction from being ended as idle.
        """
        while True:
            with anyio.move_on_after(AWAKE):
                return await self._outbox.take()
            await connection.fetchval("select 1")

    async def _part(self, connection: Any, shaped_changes: ShapedChanges) -> None:
        await self._complete(shaped_changes, connection)
        _overtake(shaped_changes)
        appended = 0
        for emptied in shaped_changes.emptied:  # tables were emptied between the messages
            before = ShapedChanges(
                keys=shaped_changes.keys[appended : emptied.place], data=shaped_changes.data[appended : emptied.place]
            )
            await self._append_or_sort_out(connection, before)
            await store.empty_captured(
                connection, self._number, self._epoch, self._stream, emptied.table.schema, emptied.table.relation,
                emptied.metadata,
            )  # fmt: skip
            appended = emptied.place
        rest = msgspec.structs.replace(
            shaped_changes, keys=shaped_changes.keys[appended:], data=shaped_changes.data[appended:]
        )
        await self._append_or_sort_out(connection, rest)

    async def _append_or_sort_out(self, executor: Any, shaped_changes: ShapedChanges) -> None:
        """Append a portion. If the stream refuses a message, append the others, and keep that one as a
        failure.
        """
        try:
            await self._append(executor, shaped_changes)
        except InvalidInput as error:
            if isinstance(executor, store.Database):
                async with executor.transaction() as connection:
                    await self._sort_out(connection, shaped_changes, error)
            else:
                await self._sort_out(executor, shaped_changes, error)

    async def _append(self, executor: Any, shaped_changes: ShapedChanges) -> None:
        if isinstance(executor, store.Database):
            await store.append_captured(executor, self._number, self._epoch, self._stream, shaped_changes)
            return
        # A savepoint, so that a refused message does not abort the whole transaction.
        with translated(self._database.dsn):
            async with executor.transaction():
                await store.append_captured(executor, self._number, self._epoch, self._stream, shaped_changes)

    async def _sort_out(self, connection: Any, shaped_changes: ShapedChanges, error: InvalidInput) -> None:
        """Find the refused messages by bisection, since there are few of them."""
        count = len(shaped_changes.keys)
        if not count:
            raise error
        if count == 1:
            failed = store.Failed(key=None, data=msgspec.json.encode(shaped_changes.data[0]).decode(), error=str(error))
            self._tell(error)
            without = msgspec.structs.replace(
                shaped_changes, keys=[], data=[], failures=[*shaped_changes.failures, failed]
            )
            await self._append(connection, without)
            return
        middle = count // 2
        first = ShapedChanges(keys=shaped_changes.keys[:middle], data=shaped_changes.data[:middle])
        # The last messages carry the rest of the portion, above all the position.
        second = msgspec.structs.replace(
            shaped_changes, keys=shaped_changes.keys[middle:], data=shaped_changes.data[middle:]
        )
        for half in (first, second):
            try:
                await self._append(connection, half)
            except InvalidInput as refused:
                await self._sort_out(connection, half, refused)

    def _tell(self, error: InvalidInput) -> None:
        """Log the error, at most every 10 seconds. Thousands may be alike, and all are kept as failures."""
        now = time.monotonic()
        if now >= self._told_at + SILENT:
            self._told_at = now
            logger.warning("Stream %s: a change can't be published, and is kept as a failure: %s", self._stream, error)


def _overtake(shaped_changes: ShapedChanges) -> None:
    """Mark the failures that are followed by a message with the same key. A retry of such a failure
    must not replace a newer row.
    """
    if shaped_changes.failures:
        last = {key: place for place, key in enumerate(shaped_changes.keys)}
        shaped_changes.failures = [
            msgspec.structs.replace(one, overtaken=one.key is not None and last.get(one.key, -1) >= one.place)
            for one in shaped_changes.failures
        ]
