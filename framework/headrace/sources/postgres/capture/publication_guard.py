"""The publication guard looks after a source's publication while the source is captured, so that no writer of a table is
refused because of the capture.

The server announces neither new partitions nor dropped keys, so the table watch has it look whenever the catalog has
changed. A table that is not published for a while is resynced when it is published again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import anyio

from headrace import store
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.sources.postgres.backfill.resyncing import request_resync
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.upkeep import Note, PublicationUpkeep, Upkeep
from headrace.sources.postgres.errors import SourceLocked, SourceStopped
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

log = Log("headrace")

LONGEST_DELAY = 30.0
"""Longest time in seconds between two attempts to add a table. Each may hold up its writers for a moment."""


class PublicationGuard:
    """Guards the publication of one source.

    Args:
        database: Headrace's database, open.
        source_id: the source's id.
        spec: the source's settings.
        publication: the publication's name.
        tables: returns the captured tables, by their names in the settings.
        clock: seconds, monotonic.

    Attributes:
        notes: problems that don't stop the capture.
        settled: whether the next look can wait until the catalog has another digest. While something is wrong or has
            just been altered, it can't.
    """

    def __init__(
        self,
        database: store.Database,
        source_id: str,
        spec: PostgresSpec,
        publication: str,
        tables: Callable[[], Mapping[str, Table]],
        clock: Clock,
    ) -> None:
        self._database = database
        self._source_id = source_id
        self._spec = spec
        self._upkeep = PublicationUpkeep(spec, publication)
        self._tables = tables
        self._clock = clock
        self._delay = 1.0
        self._add_at = clock()
        self.notes: list[Note] = []
        self.settled = False

    async def prepare(self, connection: SourceConnection, *, captured_before: bool) -> None:
        """Make the publication as the source needs it, before the capture starts.

        Raises:
            SourceStopped: something has to be corrected.
            SourceUnavailable, StoreUnavailable: a temporary failure.
        """
        upkeep = await self._upkeep.ensure(connection, list(self._tables().values()), captured_before=captured_before)
        if captured_before and self._spec.backfill and self._spec.publication is None:
            for table in upkeep.missing:  # its first rows are read once its owner has added it
                await request_resync(self._database, self._source_id, self._spec, self._name_of(table))
        if captured_before:
            await self._resync_filtered(upkeep)
        if upkeep.stop is not None:
            raise upkeep.stop
        await self._accept(connection, upkeep)

    async def look(
        self,
        connection: SourceConnection,
        connected: Callable[[], AbstractAsyncContextManager[SourceConnection]],
        lock: anyio.Lock,
    ) -> None:
        """Look once. Sets `settled`, see there.

        Args:
            connection: the capturer's connection.
            connected: makes a connection for statements that may wait for a lock.
            lock: held while the capturer's connection is used.

        Raises:
            SourceStopped: a given publication lacks something, or has a row filter.
            SourceUnavailable, StoreUnavailable: a temporary failure.
        """
        self.settled = False
        tables = list(self._tables().values())
        async with lock:
            upkeep = await self._upkeep.look(connection, tables, may_add=self._clock() >= self._add_at)
            if upkeep is not None:
                await self._resync_filtered(upkeep)
                if upkeep.stop is not None:
                    raise upkeep.stop
                await self._accept(connection, upkeep)
                self.settled = not upkeep.notes and not upkeep.incomplete
                return
        async with connected() as own_connection:
            try:
                upkeep = await self._upkeep.ensure(own_connection, tables, captured_before=True)
            except SourceStopped as error:
                upkeep = Upkeep(notes=[(error.reason, error.mend)])
            except SourceLocked:  # until the next look
                return
            await self._accept(own_connection, upkeep)
        self._delay = min(2 * self._delay, LONGEST_DELAY) if upkeep.notes else 1.0
        self._add_at = self._clock() + self._delay

    async def _resync_filtered(self, upkeep: Upkeep) -> None:
        """Request resyncs of tables that a given publication filters. They run once it has no row filter any more."""
        for table in upkeep.filtered:
            await request_resync(self._database, self._source_id, self._spec, self._name_of(table))

    async def _accept(self, connection: SourceConnection, upkeep: Upkeep) -> None:
        """Report notes that are new, and request resyncs."""
        for reason, mend in upkeep.notes:
            if (reason, mend) not in self.notes:
                log.warning("publication not complete", source=self._spec.name, error=reason, hint=mend)
        self.notes = list(upkeep.notes)
        requested = [
            table
            for table in upkeep.incomplete
            if await request_resync(self._database, self._source_id, self._spec, self._name_of(table))
        ]
        if requested:
            log.info("tables resynced", source=self._spec.name, tables=", ".join(table.name for table in requested))
            await self._upkeep.resync_requested(connection, requested)

    def _name_of(self, table: Table) -> str:
        """Return the name of a table in the settings."""
        return next((name for name, known in self._tables().items() if known.oid == table.oid), table.name)
