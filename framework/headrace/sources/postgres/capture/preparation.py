"""Prepares a capture: checks the server, the tables, the publication and the slot, and finds the
position to start from.
"""

from __future__ import annotations

import msgspec

from headrace import store
from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace.sources.postgres.capture.capture_lease import LEASE_DURATION, lease_lost
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.shared_slot import SharedSlot
from headrace.sources.postgres.capture.table_watch import TableWatch
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database import publications, shared_slots, slots
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo

log = Log("headrace")


class StartingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a capture begins.

    Attributes:
        slot, publication: their names.
        position: everything that was committed up to here is in the stream.
        captured: number of changes up to there.
        is_new: whether the source is captured for the first time, or again after `--anew`.
        table_watch: the watch of the tables, which has looked at them once.
    """

    slot: str
    publication: str
    position: int
    captured: int
    is_new: bool
    table_watch: TableWatch


def application_name(source_id: str) -> str:
    """Return the name of the streaming connection in `pg_stat_activity`. It distinguishes a source's
    own connection from those of others.
    """
    return f"headrace capture {source_id}"


async def drop_slot_and_publication(
    database: store.Database, connection: SourceConnection, spec: PostgresSpec, name: str, source_id: str
) -> None:
    """Drop what Headrace has created for a source that is removed: its publication, and its slot unless other sources
    share that. Raises `SourceStopped`, `SourceRefused`, `SourceUnavailable`.
    """
    own_name = slots.slot_name(name, source_id)
    if spec.shared_slot is not None:
        if not await shares_slot(database, spec.shared_slot, source_id):
            slot = slots.slot_name(spec.shared_slot, await store.shared_slot_id(database, spec.shared_slot))
            await slots.drop_slot(connection, slot, slots.shared_application_name(slot))
    elif spec.slot is None:
        await slots.drop_slot(connection, own_name, application_name(source_id))
    if spec.publication is None:
        await publications.drop_publication(connection, own_name)


async def shares_slot(database: store.Executor, shared_slot: str, source_id: str) -> bool:
    """Whether another source than this one has the shared slot."""
    return any(
        one.id != source_id and one.settings.get("shared_slot") == shared_slot
        for one in await store.captures_to_do(database)
    )


class CapturePreparation:
    """Prepares one source, under one capture lease.

    Args:
        capture: the source's capture.
        todo: the source.
        spec: its settings.
        dsn: the captured database.
        schema_cache: the cache of its tables, which is filled here.
    """

    def __init__(
        self,
        capture: HeldCapture,
        todo: CaptureToDo,
        spec: PostgresSpec,
        dsn: SourceDatabase,
        schema_cache: SchemaCache,
    ) -> None:
        self._database = capture.database
        self._todo = todo
        self._spec = spec
        self._epoch = capture.epoch
        self._dsn = dsn
        self._schema_cache = schema_cache
        self._own_name = slots.slot_name(todo.name, todo.id)
        self._slot = spec.slot or self._own_name
        self._publication = spec.publication or self._own_name
        self._table_watch = TableWatch(capture, todo, spec, self._publication, schema_cache)

    async def run(self, connection: SourceConnection, shared_slot: SharedSlot | None = None) -> StartingPoint:
        """Prepare the server. If the source was removed meanwhile, its own slot and publication are
        dropped, since no other process would drop them.

        Args:
            connection: a connection to the captured server.
            shared_slot: the slot that it shares with other sources. None for a separate slot.

        Raises:
            LeaseLost: the capture lease is lost.
            SourceStopped, SourceRefused: something has to be corrected.
            SourceUnavailable, StoreUnavailable: a temporary failure.
        """
        if not await store.renew_capture(self._database, self._todo.number, self._epoch, LEASE_DURATION):
            raise lease_lost()
        try:
            return await self._prepare(connection, shared_slot)
        except HeadraceError:
            if all(one.number != self._todo.number for one in await store.captures_to_do(self._database)):
                await drop_slot_and_publication(self._database, connection, self._spec, self._todo.name, self._todo.id)
            raise

    async def _prepare(self, connection: SourceConnection, shared_slot: SharedSlot | None) -> StartingPoint:
        todo = self._todo
        server = await slots.identify_server(connection)
        stored = await store.capture_position(self._database, todo.number)
        position = None if stored is None else await self._resume_position(server, stored)
        await self._table_watch.find_tables(connection)
        await self._table_watch.guard.prepare(connection, captured_before=stored is not None)
        confirmed = await self._ensure_slot(connection, position, shared_slot)
        if position is None or stored is None:
            await self._begin_at(confirmed, server)
        await self._table_watch.settle(connection)  # also requests that new tables are read
        return StartingPoint(
            slot=self._slot,
            publication=self._publication,
            position=confirmed if position is None else position,
            captured=0 if stored is None else stored.captured,
            is_new=stored is None,
            table_watch=self._table_watch,
        )

    async def _ensure_slot(
        self, connection: SourceConnection, position: int | None, shared_slot: SharedSlot | None
    ) -> int:
        """Make sure that the slot can be read from `position`. Returns where a source without a position starts."""
        if shared_slot is None:
            return await slots.ensure_slot(
                connection,
                self._slot,
                owned=self._spec.slot is None,
                expected=position,
                application_name=application_name(self._todo.id),
            )
        self._slot = shared_slot.slot
        async with shared_slot.preparing:
            confirmed = await slots.ensure_slot(
                connection, self._slot, owned=True, expected=position, application_name=None
            )
        return confirmed if position is not None else await shared_slots.position_for_publication(connection)

    async def _resume_position(self, server: slots.Server, stored: store.CapturePosition) -> int:
        """Return the position at which to continue on this server. Raises `SourceStopped` if it is
        another server.
        """
        position = positions.parse(stored.position)
        if stored.system_id != server.system_id:
            raise SourceStopped(
                f"The database of the source {self._todo.name!r} is on another server than the captured one. Set the old address, or restart the"
                " capture, with a new slot and a fresh backfill.",
                f"headrace source postgres resume {self._todo.name} --anew",
            )
        if stored.timeline == server.timeline:
            return position
        branched_at = await slots.switch_point(self._dsn, stored.timeline, server.timeline)
        if position > branched_at:
            name, position = self._todo.name, branched_at
            log.warning(
                "captured server promoted",
                source=name,
                branched_at=positions.as_text(branched_at),
                captured_to=stored.position,
                hint="the stream has changes that the promoted server lacks, so backfill the tables:"
                f" headrace source backfill start {name}",
            )
        await self._begin_at(position, server)
        return position

    async def _begin_at(self, position: int, server: slots.Server) -> None:
        start = (positions.as_text(position), server.system_id, server.timeline)
        await store.begin_capture(self._database, self._todo.number, self._epoch, *start)
