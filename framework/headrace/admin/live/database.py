"""All that is read of one database again and again for its live state."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import anyio

from headrace import store
from headrace.admin.live.reading import Reading
from headrace.admin.live.snapshot import Part, Snapshot
from headrace.admin.live.together import together
from headrace.flow.observed import Samples
from headrace.model.capture import BackfillInfo
from headrace.model.records import WorkerInfo
from headrace.model.sources import SourceInfo
from headrace.model.watching.live import LiveSnapshot

SOURCES_EVERY = 2.0
"""Seconds between two readings of the sources of a database, and of the running processes."""


class LiveDatabase:
    """The state of one database between snapshots.

    Args:
        clock: monotonic time in seconds.

    Attributes:
        reading: the figures of its streams and consumers.
        clock_offset: seconds by which its clock is ahead of this process's. None at first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.reading = Reading()
        self.clock_offset: float | None = None
        self._clock = clock
        self._lock = anyio.Lock()
        self._sources: tuple[list[SourceInfo], list[BackfillInfo]] = ([], [])
        self._workers: list[WorkerInfo] = []
        self._sources_at = self._workers_at = float("-inf")
        self._captured: dict[str, Samples] = {}

    def changed(self) -> None:
        """Read more the next time, since somebody changed something."""
        self.reading.changed()
        self._sources_at = self._workers_at = float("-inf")

    async def snapshot(self, database: store.Database) -> LiveSnapshot:
        """Read the database, and return the rows of everything. Raises `StoreUnavailable`."""
        async with self._lock:
            part = await self.read(database)
            snapshot = Snapshot(0, part.at)
            await snapshot.add(part)
            return await snapshot.everything()

    async def read(self, database: store.Database) -> Part:
        """Read everything that is due, with about four short statements once a second. Raises `StoreUnavailable`."""
        before = self._sources_at
        await together(
            partial(self.reading.read, database),
            partial(self._read_workers, database),
            partial(self._read_sources, database),
        )
        at = self.reading.at or datetime.now(UTC)
        sources, backfills = self._sources
        if self._sources_at != before:
            known, self._captured = self._captured, {}
            for source in sources:
                samples = self._captured[source.id] = known.get(source.id) or Samples()
                samples.add(at, 0 if source.capture is None else source.capture.captured)
        return Part(at, self.reading, self._workers, sources, backfills, self._captured)

    async def _read_workers(self, database: store.Database) -> None:
        if self._clock() < self._workers_at + SOURCES_EVERY:
            return
        sent = datetime.now(UTC)
        at, self._workers = await store.workers(database)
        self._workers_at = self._clock()
        self.clock_offset = (at - sent).total_seconds()

    async def _read_sources(self, database: store.Database) -> None:
        if self._clock() < self._sources_at + SOURCES_EVERY:
            return
        self._sources = await store.sources_at_work(database)
        self._sources_at = self._clock()
