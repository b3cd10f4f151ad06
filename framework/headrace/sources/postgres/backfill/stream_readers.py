"""Readers of a stream, for the parts of a verification that do not read the table."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace import store
from headrace.sources.postgres.backfill.chunks import BackfillImpossible, Chunk, Verified
from headrace.sources.postgres.backfill.expecting import in_stream, key_columns
from headrace.sources.postgres.backfill.lookups import look_up
from headrace.sources.postgres.backfill.readers import PendingChunk, Reading
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.store import BackfillToDo

FOLD_MESSAGES = 2_000
"""Number of messages to fold in one append, whatever the rate is. Folding has to be faster than the captured changes."""

_ABOVE_ALL_HASHES = "g"


async def verified(database: store.Database, spec: PostgresSpec, todo: BackfillToDo) -> Verified:
    """Return how a verification treats its rows."""
    stream = await store.stream(database, spec.stream)
    limited = stream.retain_up_to is not None or stream.max_storage is not None or stream.retention == "interest"
    missing: Literal["difference", "unchecked", "ignored"] = "difference"
    if not (spec.backfill or todo.complete):
        missing = "ignored"
    elif limited and todo.kind != "repair":  # retention may have removed the message
        missing = "unchecked"
    return Verified(repair=todo.kind == "repair", missing=missing)


async def refuse_shared_stream(database: store.Executor, spec: PostgresSpec, table: Table) -> None:
    """Raise `BackfillImpossible` if another source has rows of a table of this name in the stream."""
    if (other := await source_of_the_same(database, spec, table.name)) is not None:
        raise BackfillImpossible(
            f"Messages of rows of {table.name} that are gone can't be distinguished from those of the source {other!r}, which publishes a table"
            f" of this name to the stream {spec.stream!r}, too."
        )


async def source_of_the_same(database: store.Executor, spec: PostgresSpec, table: str) -> str | None:
    """Return another source that publishes a table of this name to the same stream."""
    others = await store.captures_to_do(database)
    return next(
        (
            one.name
            for one in others
            if one.name != spec.name and one.stream == spec.stream and table in one.settings["tables"]
        ),
        None,
    )


class FoldReader:
    """Reads a stream in mode `changes` for the newest message of each row, see `comparing`. Chunks have no rows.

    A reader reads one chunk. Another one reads the next, unless the place has become that of the table.

    Args:
        how: how rows are compared.
    """

    def __init__(self, reading: Reading, how: Verified) -> None:
        self.done = False
        self._reading = reading
        self._how = how

    async def read(self, limit: int) -> PendingChunk | None:
        reading, todo = self._reading, self._reading.todo
        [(text,)] = await reading.connection.query("select pg_current_snapshot()")
        assert text is not None
        done = store.ChunkDone(id=todo.number, place=None, read=0, published=0, done=False)
        how = msgspec.structs.replace(self._how, fold=FOLD_MESSAGES)
        self.done = True
        return PendingChunk(Chunk(reading.plan.table, reading.plan.names, [], done, how), Snapshot.of(text), 0.0)


class StreamReader:
    """Looks up the rows of messages.

    A message that still has its seq when its chunk is appended was replaced by no change since it was read. The
    snapshot sees all changes that were captured before. So its row is gone if the snapshot has no such row.

    Args:
        how: how rows are compared.
        database: Headrace's database.
        spec: the source's settings.
        up_to: the last key to read.
    """

    def __init__(
        self, reading: Reading, how: Verified, database: store.Database, spec: PostgresSpec, up_to: str
    ) -> None:
        self.done = False
        self._reading = reading
        self._how = how
        self._database = database
        self._spec = spec
        self._up_to = up_to
        self._after = reading.todo.place["key"]
        self._table = in_stream(spec, reading.plan.table)
        self._columns = key_columns(spec, reading.plan.table)

    @classmethod
    async def opened(
        cls, reading: Reading, how: Verified, database: store.Database, spec: PostgresSpec
    ) -> StreamReader:
        """Return a reader of what comes after the stored place."""
        up_to = await store.last_key(database, spec.stream) if spec.mode == "rows" else _ABOVE_ALL_HASHES
        return cls(reading, how, database, spec, up_to)

    async def read(self, limit: int) -> PendingChunk | None:
        reading, plan = self._reading, self._reading.plan
        started_at, captured = reading.clock(), reading.changed_rows.transactions()
        page = await self._page(limit)
        messages = [message for message in page if message.values is not None and message.key <= self._up_to]
        looked_up, snapshot = await look_up(reading.connection, plan, self._columns, messages, self._table.prefix)
        if not reading.changed_rows.covers(snapshot) or not all(map(snapshot.sees, captured)):
            return None
        self.done = len(page) < limit or page[-1].key >= self._up_to
        self._after = page[-1].key if page else self._after
        done = store.ChunkDone(
            id=reading.todo.number, place={"key": self._after}, read=len(messages), published=0, done=self.done
        )
        how = msgspec.structs.replace(self._how, messages=looked_up)
        chunk = Chunk(plan.table, self._columns, [], done, how)
        return PendingChunk(chunk, snapshot, reading.clock() - started_at)

    async def _page(self, limit: int) -> list[store.CapturedMessage]:
        key = self._reading.plan.table.key
        if self._spec.mode == "rows":
            return await store.captured_page(self._database, self._table, self._after, limit, key)
        page = await store.folded_page(self._database, self._reading.todo.number, self._after, limit, key)
        if any(message.values is None for message in page):
            raise BackfillImpossible(
                f"The key of {self._reading.plan.table.name} has changed since the verification began. Start a new one."
            )
        return page
