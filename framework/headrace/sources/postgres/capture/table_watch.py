"""The table watch looks about each second at what the captured tables consist of, and whether they harm their writers.

What changes rows and is not in the WAL is found by comparing fingerprints, see `fingerprints`. Those that were compared
last are stored in Headrace's database, so that a difference is found after a restart, too. A table with a difference is
read again: its new fingerprint is stored in the transaction that requests that. After a crash at any point the
difference is therefore found again, or the request is there.

A look is one query, which returns a digest, see `digests`. Only when that is another one, the publication guard looks
at the publication, and the fingerprints are fetched.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

import anyio
import msgspec

from headrace import store
from headrace.model.clock import Clock
from headrace.model.log import Log
from headrace.sources.postgres.backfill.resyncing import request_resync
from headrace.sources.postgres.capture.publication_guard import PublicationGuard
from headrace.sources.postgres.capture.schema_cache import SchemaCache, next_xid
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import fingerprints, publications
from headrace.sources.postgres.database.digests import digest
from headrace.sources.postgres.database.fingerprints import Fingerprint
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CapturedTable, CaptureToDo
from headrace.store.database.missing_objects import with_repeat

log = Log("headrace")

FIRST_RETRY_DELAY, LONGEST_RETRY_DELAY = 2.0, 600.0
"""Seconds after which a resync that has failed is requested again: at first, and at most."""

SHARE_OF_TIME = 10
"""The pause between two looks is at least this many times as long as a look takes."""


class TablesChanged(Exception):
    """Raised when the capturer has to start again, because its tables have changed."""


class TableWatch:
    """Watches the tables of one source, under one capture lease.

    Args:
        capture: the source's capture.
        todo: the source.
        spec: its settings.
        publication: the name of its publication.
        schema_cache: the cache of its tables.
        clock: seconds, monotonic.

    Attributes:
        guard: guards the publication.
    """

    def __init__(
        self,
        capture: HeldCapture,
        todo: CaptureToDo,
        spec: PostgresSpec,
        publication: str,
        schema_cache: SchemaCache,
        clock: Clock = time.monotonic,
    ) -> None:
        self.guard = PublicationGuard(capture.database, todo.id, spec, publication, lambda: schema_cache.tables, clock)
        self._database = capture.database
        self._todo = todo
        self._spec = spec
        self._epoch = capture.epoch
        self._publication = publication
        self._schema_cache = schema_cache
        self._clock = clock
        self._digest = ""
        self._stored: dict[str, Fingerprint | None] = {}
        # Those that can't be stored yet, because another backfill of the table has to finish first, and the reasons.
        self._unsettled: dict[str, tuple[Fingerprint, str]] = {}
        self._awaited: set[str] = set()  # the tables of which a resync is under way, or has failed
        self._failures: dict[str, str] = {}
        self._retries: dict[str, tuple[float, float]] = {}  # of these: when the next one is due, and the delay
        self._uncaptured: dict[str, str] = {}
        self._unsent: list[tuple[str, str | None]] = []
        self._duration = 0.0  # of the last look, in seconds

    async def find_tables(self, connection: SourceConnection) -> None:
        """Look the tables up, those that were renamed by their oids. Raises `SourceStopped` if none can be captured."""
        stored = await store.captured_tables(self._database, self._todo.number)
        if dropped := stored.keys() - set(self._spec.tables):
            await store.forget_captured_tables(self._database, self._todo.number, self._epoch, sorted(dropped))
        self._stored = {
            name: None if one.fingerprint is None else msgspec.json.decode(one.fingerprint, type=Fingerprint)
            for name, one in stored.items()
            if name not in dropped
        }
        self._note_resyncs(stored)
        await self._schema_cache.refresh(connection, self._captured())
        for name, error in self._schema_cache.missing.items():
            log.warning(
                "table missing", source=self._todo.name, table=name, error=error, hint="the others are captured"
            )

    def _captured(self) -> dict[str, int]:
        stored = {name: one.oid for name, one in self._stored.items() if one is not None}
        return {**stored, **self._schema_cache.oids()}

    async def run(
        self,
        connection: SourceConnection,
        connected: Callable[[], AbstractAsyncContextManager[SourceConnection]],
        lock: anyio.Lock,
        interval: float,
        report: Callable[[], Awaitable[None]],
    ) -> None:
        """Look until cancelled.

        Args:
            connection: a connection to the captured database.
            connected: makes another one, for statements that may wait for a lock.
            lock: is held while the connection is used.
            interval: seconds between two looks.
            report: reports other problems than before.

        Raises:
            TablesChanged: the capturer has to start again.
            LeaseLost, SourceStopped, SourceRefused, SourceUnavailable, StoreUnavailable.
        """
        while True:
            await anyio.sleep(max(interval, SHARE_OF_TIME * self._duration))
            before = self.problems
            await self.look(connection, connected, lock)
            if self.problems != before:
                await report()

    async def look(
        self,
        connection: SourceConnection,
        connected: Callable[[], AbstractAsyncContextManager[SourceConnection]],
        lock: anyio.Lock,
    ) -> None:
        """Look once. Writers come first. Raises as `run` does."""
        oids = self._schema_cache.oids()
        async with lock:
            started_at = self._clock()
            found = await digest(connection, oids.values(), self._spec.tables, self._publication)
            self._duration = self._clock() - started_at
        if found != self._digest or not self.guard.settled:
            await self.guard.look(connection, connected, lock)
        async with lock:
            if found != self._digest:
                await self._schema_cache.refresh(connection, self._captured())
                if self._schema_cache.oids() != oids:
                    raise TablesChanged("A captured table was dropped, created or replaced.")
                await self.settle(connection)
                self._digest = found
            for name, (fingerprint, reason) in list(self._unsettled.items()):
                await self._record(connection, name, fingerprint, reason)
            if self._awaited:
                stored = await store.captured_tables(self._database, self._todo.number)
                self._note_resyncs(stored)
                await self._retry_resyncs(connection, [name for name, one in stored.items() if one.failure is not None])

    async def _retry_resyncs(self, connection: SourceConnection, failed: Iterable[str]) -> None:
        """Request resyncs that have failed again, with growing delays, since their cause may be corrected."""
        for name in failed:
            due, delay = self._retries.setdefault(name, (self._clock() + FIRST_RETRY_DELAY, FIRST_RETRY_DELAY))
            fingerprint = self._stored.get(name)
            if self._clock() >= due and fingerprint is not None:
                delay = min(2 * delay, LONGEST_RETRY_DELAY)
                self._retries[name] = self._clock() + delay, delay
                await self._record(connection, name, fingerprint, "it could not be read")

    async def settle(self, connection: SourceConnection) -> None:
        """Compare the tables with what is stored of them, store what has changed, and request what has to be read again."""
        found = await self._fingerprints(connection)
        if connection.version < 150000 and self._spec.publication is None and self._attached_or_detached(found):
            # The server keeps what it has found out about a partition, before it was attached or detached, until the
            # publication is altered.
            await publications.refresh_publication(connection, self._spec, self._publication)
            found = await self._fingerprints(connection)
            self._stored = {
                name: one
                and msgspec.structs.replace(one, publication=found[name].publication if name in found else None)
                for name, one in self._stored.items()
            }
        if connection.version < 150000 and self._spec.publication is not None:
            found = {name: fingerprints.dated(one, self._stored.get(name)) for name, one in found.items()}
        await self._note_unsent(connection, found)
        self._uncaptured = {}
        for name, fingerprint in found.items():
            if leaves := fingerprints.not_captured(fingerprint):
                self._uncaptured[name] = await fingerprints.names(connection, leaves[:3])
            self._unsettled.pop(name, None)
            await self._note_altered_types(connection, name, fingerprint)
            if self._stored.get(name) != fingerprint:
                reason = await self._reason(connection, name, fingerprint)
                await self._record(connection, name, fingerprint, reason)
        self._unsettled = {name: one for name, one in self._unsettled.items() if name in found}

    async def _fingerprints(self, connection: SourceConnection) -> dict[str, Fingerprint]:
        tables = self._schema_cache.tables
        return await fingerprints.fingerprints(connection, tables, self._publication, self._spec.actions)

    def _attached_or_detached(self, found: Mapping[str, Fingerprint]) -> bool:
        return any(
            (before := self._stored.get(name)) is not None and before.attachments != fingerprint.attachments
            for name, fingerprint in found.items()
        )

    async def _note_unsent(self, connection: SourceConnection, found: Mapping[str, Fingerprint]) -> None:
        self._unsent = []
        tables = [name for name, one in found.items() if one.moved_at is not None and one.moved_at == one.publication]
        if tables and (publication := await publications.find_publication(connection, self._publication)):
            reason = (
                f"Partitions of {', '.join(tables)} were attached or detached. If they were written before, PostgreSQL 14 does not send their"
                f" changes correctly until the publication {self._publication} is altered. The tables are read again then."
            )
            self._unsent.append((reason, publications.touch_statement(self._publication, publication)))

    async def _note_altered_types(self, connection: SourceConnection, name: str, fingerprint: Fingerprint) -> None:
        before = self._stored.get(name)
        if before is None:
            return
        fingerprint.altered.update(before.altered)
        altered = [
            altered_type.oid
            for altered_type in fingerprints.altered_types(before, fingerprint)
            if altered_type.composite
        ]
        if altered:
            await self._schema_cache.look_at_types(connection)
            fingerprint.altered.update(dict.fromkeys(altered, await next_xid(connection)))
        self._schema_cache.distrust_types(fingerprint.altered)

    async def _reason(self, connection: SourceConnection, name: str, fingerprint: Fingerprint) -> str:
        """Return why the table has to be read. Empty if it has not."""
        if name not in self._stored:
            return "it is captured for the first time"
        before = self._stored[name]
        found = [] if before is None else list(fingerprints.differences(before, fingerprint))
        return ", ".join(
            [
                difference.text
                for difference in found
                if not difference.attached or await fingerprints.with_rows(connection, difference.attached)
            ]
        )

    async def _record(self, connection: SourceConnection, name: str, fingerprint: Fingerprint, reason: str) -> None:
        """Store a fingerprint, and request that the table is read if there is a reason."""

        is_new = name not in self._stored

        async def record() -> bool:
            async with self._database.transaction() as transaction:
                resync = None
                if reason and self._spec.backfill:
                    resync = await request_resync(transaction, self._todo.id, self._spec, name, is_new=is_new)
                    if resync is None:
                        return False
                await store.record_captured_table(
                    transaction, self._todo.number, self._epoch, name, msgspec.json.encode(fingerprint).decode(), resync
                )
                return True

        # Transactions from before a type was altered may still commit values that are kept as text. The table is read
        # after them.
        altered = max(fingerprint.altered.values(), default=None) if reason else None
        is_early = altered is not None and await fingerprints.are_open_before(connection, altered)
        if is_early or not await with_repeat(record):
            self._unsettled[name] = fingerprint, reason
            return
        self._unsettled.pop(name, None)
        self._stored[name] = fingerprint
        if reason and self._spec.backfill:
            self._awaited.add(name)
            log.info("table is read", source=self._todo.name, table=name, reason=reason)
        elif reason and not is_new:
            hint = f"the source has no backfill, so read the table: {self._backfill_command(name)}"
            log.warning("rows changed without messages", source=self._todo.name, table=name, reason=reason, hint=hint)

    def _note_resyncs(self, stored: Mapping[str, CapturedTable]) -> None:
        unfinished = {name for name, one in stored.items() if one.unfinished}
        tried_again = {name: reason for name, reason in self._failures.items() if name in unfinished}
        self._failures = tried_again | {name: one.failure for name, one in stored.items() if one.failure is not None}
        self._awaited = unfinished | self._failures.keys()
        self._retries = {name: one for name, one in self._retries.items() if name in self._awaited}

    def _backfill_command(self, table: str) -> str:
        return f"headrace source postgres backfill start {self._todo.name} --table {shlex.quote(table)}"

    @property
    def problems(self) -> list[tuple[str, str | None]]:
        """Problems that do not stop the capture, and the statements or commands that correct them."""
        missing = [(error.reason, error.mend) for error in self._schema_cache.missing.values()]
        failed = [
            (
                f"Rows of {table} are missing in the stream or differ, since the table could not be read. {reason}",
                self._backfill_command(table),
            )
            for table, reason in self._failures.items()
        ]
        unsettled = [
            f"Rows of {table} have changed without a message: {reason}. They are read as soon as another backfill of the table"
            " and the transactions from before have ended."
            for table, (_, reason) in self._unsettled.items()
        ]
        uncaptured = [
            f"{table} has partitions that are foreign or unlogged. Their changes are not in the WAL: {leaves}."
            for table, leaves in self._uncaptured.items()
        ]
        texts = [*unsettled, *uncaptured]
        return [*missing, *failed, *self._unsent, *((text, None) for text in texts), *self.guard.notes]
