"""Readers read the chunks of a backfill or a verification, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace import store
from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.backfill.chunks import Chunk, Plan, Verified
from headrace.sources.postgres.backfill.visibility import ChangedRows, Snapshot
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.limits import CaptureLimits
from headrace.store import BackfillToDo


class PendingChunk(msgspec.Struct):
    """A chunk that waits for its watermark. `seconds` is the time to read it, in seconds."""

    chunk: Chunk
    snapshot: Snapshot
    seconds: float


class Reading(msgspec.Struct, frozen=True):
    """The common interface of readers.

    Attributes:
        connection: a connection to the captured database.
        plan: how the table is read.
        todo: the backfill or verification.
        changed_rows: the rows that were changed by captured transactions.
        limits: the sizes of chunks.
        clock: seconds, monotonic.
    """

    connection: SourceConnection
    plan: Plan
    todo: BackfillToDo
    changed_rows: ChangedRows
    limits: CaptureLimits
    clock: Callable[[], float]


class Reader(Protocol):
    """Reads chunks. `done` is true after the last one."""

    done: bool

    async def read(self, limit: int) -> PendingChunk | None:
        """Read the next chunk.

        Args:
            limit: largest number of rows or messages.

        Returns:
            None if it has to be read again, since a captured transaction is not visible yet.
        """


class TableReader:
    """Reads a table in the order of its key.

    Args:
        how: how the rows are compared with the stream. None publishes them.
        after, up_to: the bounds, see `chunks.read`.
    """

    def __init__(
        self, reading: Reading, how: Verified | None, after: Sequence[str] | None, up_to: Sequence[str] | None
    ) -> None:
        self.done = False
        self._reading = reading
        self._how = how
        self._after = after
        self._up_to = up_to

    @classmethod
    async def opened(cls, reading: Reading, how: Verified | None) -> TableReader:
        """Return a reader of what comes after the stored place. Raises `BackfillImpossible`."""
        place = reading.todo.place
        after = reading.plan.bound_of(place) if place else None
        return cls(reading, how, after, await chunks.last_key(reading.connection, reading.plan))

    async def read(self, limit: int) -> PendingChunk | None:
        reading, plan, started_at = self._reading, self._reading.plan, self._reading.clock()
        read = await chunks.read(
            reading.connection, plan, self._after, self._up_to, limit, reading.limits.max_chunk_bytes, reading.clock
        )
        if not reading.changed_rows.covers(read.snapshot):
            return None
        self.done = read.done
        place = plan.place_of(read.rows[-1]) if read.rows else None
        self._after = self._after if place is None else plan.bound_of(place)
        done = store.ChunkDone(id=reading.todo.number, place=place, read=len(read.rows), published=0, done=read.done)
        if self._how is not None and read.done:  # the stream comes next
            done = msgspec.structs.replace(done, place={"key": ""}, done=False)
        chunk = Chunk(plan.table, plan.names, read.rows, done, self._how)
        return PendingChunk(chunk, read.snapshot, reading.clock() - started_at)
