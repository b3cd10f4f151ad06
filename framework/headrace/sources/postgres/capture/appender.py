"""The appender: what was captured goes into the stream, together with the position, in one transaction.

A transaction that is larger than an append is appended in parts, inside one transaction that stays open meanwhile: it appears whole or not
at all. Only when that has committed is the captured server told that it may forget.
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
from headrace.sources.postgres.shaping.portion import Portion
from headrace.store.translate import translated

logger = logging.getLogger("headrace")

IDLE_LIMIT = 5.0
"""Seconds that nothing may be said in the transaction of a large append: of a process that froze others needn't wait for it."""

AWAKE = 1.0
"""Seconds after which it is spoken to while there is nothing to append."""

SILENT = 10.0
"""Seconds after which changes that can't be published are told of again."""

Complete = Callable[[Portion, store.Executor], Awaitable[None]]


class Appender:
    """Appends for one tenure.

    Args:
        database: an open database.
        number: the source's number in it.
        epoch: the tenure's.
        stream: where to append.
        outbox: what to append.
        complete: adds values to a portion that are not in the WAL.
        committed: told the position up to which all is in the stream, and what was appended last, see `_in_parts`.

    Attributes:
        alone: held while something is appended.
    """

    def __init__(
        self, database: store.Database, number: int, epoch: int, stream: str, outbox: Outbox, complete: Complete,
        committed: Callable[[int, Portion], None],
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
            portion = await self._outbox.take()
            async with self.alone:
                if portion.position is None or portion.emptied or portion.incomplete:
                    portion = await self._in_parts(portion)
                else:
                    _overtake(portion)
                    await self._append_or_sort_out(self._database, portion)
            self._outbox.appended()
            assert portion.position is not None
            self._committed(positions.number(portion.position), portion)

    async def _in_parts(self, portion: Portion) -> Portion:
        """Append a transaction part by part. Returns the last one, with the chunks of all, and as having messages if any part had."""
        chunks: list[store.ChunkDone] = []
        told = portion
        async with self._database.transaction() as connection:
            await store.end_when_idle(connection, IDLE_LIMIT)
            while True:
                await self._part(connection, portion)
                chunks += portion.chunks
                if portion.keys or portion.emptied:
                    told = portion
                if portion.position is not None:
                    return msgspec.structs.replace(portion, keys=told.keys, emptied=told.emptied, chunks=chunks)
                portion = await self._next(connection)

    async def _next(self, connection: Any) -> Portion:
        """The next part. It may take a while to be read or transformed, and the server must not end the transaction meanwhile."""
        while True:
            with anyio.move_on_after(AWAKE):
                return await self._outbox.take()
            await connection.fetchval("select 1")

    async def _part(self, connection: Any, portion: Portion) -> None:
        await self._complete(portion, connection)
        _overtake(portion)
        appended = 0
        for emptied in portion.emptied:  # tables were emptied between the messages
            before = Portion(keys=portion.keys[appended : emptied.place], data=portion.data[appended : emptied.place])
            await self._append_or_sort_out(connection, before)
            await store.empty_captured(
                connection, self._number, self._epoch, self._stream, emptied.table.schema, emptied.table.relation,
                emptied.metadata,
            )  # fmt: skip
            appended = emptied.place
        rest = msgspec.structs.replace(portion, keys=portion.keys[appended:], data=portion.data[appended:])
        await self._append_or_sort_out(connection, rest)

    async def _append_or_sort_out(self, executor: Any, portion: Portion) -> None:
        """Append; or, if there is a message in it that the stream can't take, all but that, which becomes a failure."""
        try:
            await self._append(executor, portion)
        except InvalidInput as error:
            if isinstance(executor, store.Database):
                async with executor.transaction() as connection:
                    await self._sort_out(connection, portion, error)
            else:
                await self._sort_out(executor, portion, error)

    async def _append(self, executor: Any, portion: Portion) -> None:
        if isinstance(executor, store.Database):
            await store.append_captured(executor, self._number, self._epoch, self._stream, portion)
            return
        # A savepoint: what is refused must not take the rest with it.
        with translated(self._database.dsn):
            async with executor.transaction():
                await store.append_captured(executor, self._number, self._epoch, self._stream, portion)

    async def _sort_out(self, connection: Any, portion: Portion, error: InvalidInput) -> None:
        """By halves: there are few such messages."""
        count = len(portion.keys)
        if not count:
            raise error
        if count == 1:
            failed = store.Failed(key=None, data=msgspec.json.encode(portion.data[0]).decode(), error=str(error))
            self._tell(error)
            without = msgspec.structs.replace(portion, keys=[], data=[], failures=[*portion.failures, failed])
            await self._append(connection, without)
            return
        middle = count // 2
        first = Portion(keys=portion.keys[:middle], data=portion.data[:middle])
        # What goes with the messages, the position above all, goes with the last ones.
        second = msgspec.structs.replace(portion, keys=portion.keys[middle:], data=portion.data[middle:])
        for half in (first, second):
            try:
                await self._append(connection, half)
            except InvalidInput as refused:
                await self._sort_out(connection, half, refused)

    def _tell(self, error: InvalidInput) -> None:
        """Once for a while: thousands may be alike, and all are kept as failures."""
        now = time.monotonic()
        if now >= self._told_at + SILENT:
            self._told_at = now
            logger.warning("Stream %s: a change can't be published, and is kept as a failure: %s", self._stream, error)


def _overtake(portion: Portion) -> None:
    """Mark the failures that are followed by a message of their key: tried again, they must not take the place of a newer row."""
    if portion.failures:
        last = {key: place for place, key in enumerate(portion.keys)}
        portion.failures = [
            msgspec.structs.replace(one, overtaken=one.key is not None and last.get(one.key, -1) >= one.place)
            for one in portion.failures
        ]
