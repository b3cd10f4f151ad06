"""Prepares a capture: checks the server, the tables, the publication and the slot, and finds the
position to start from.
"""

from __future__ import annotations

import logging

import msgspec

from headrace import store
from headrace.model.errors import HeadraceError, LeaseLost
from headrace.sources.postgres.backfill.backfiller import begin_first
from headrace.sources.postgres.capture.capture_lease import LASTS
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import publications, slots
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store import CaptureToDo

logger = logging.getLogger("headrace")


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """Where a capture begins.

    Attributes:
        slot, publication: their names.
        position: everything that was committed up to here is in the stream.
        captured: number of changes up to there.
    """

    slot: str
    publication: str
    position: int
    captured: int


def application_name(source_id: str) -> str:
    """Return the name of the streaming connection in `pg_stat_activity`. It distinguishes a source's
    own connection from those of others.
    """
    return f"headrace capture {source_id}"


class Preparing:
    """Prepares one source, under one capture lease.

    Args:
        database: Headrace's database, open.
        todo: the source.
        spec: its settings.
        epoch: the capture lease's epoch.
        dsn: the captured database.
        knowledge: the cache of its tables, which is filled here.
    """

    def __init__(
        self, database: store.Database, todo: CaptureToDo, spec: PostgresSpec, epoch: int, dsn: str, schema_cache: SchemaCache
    ) -> None:  # fmt: skip
        self._database = database
        self._todo = todo
        self._spec = spec
        self._epoch = epoch
        self._dsn = dsn
        self._schema_cache = schema_cache
        self._name = slots.slot_name(todo.name, todo.id)
        self._slot = spec.slot or self._name
        self._publication = spec.publication or self._name

    async def run(self, link: Link) -> Beginning:
        """Prepare the server. If the source was removed meanwhile, its own slot and publication are
        dropped, since no other process would drop them.

        Args:
            link: a connection to the captured server.

        Raises:
            LeaseLost: the capture lease is lost.
            SourceStopped, SourceRefused: something has to be corrected.
            SourceUnavailable, StoreUnavailable: a temporary failure.
        """
        if not await store.renew_capture(self._database, self._todo.number, self._epoch, LASTS):
            raise LeaseLost("The source is captured by another process now, or is paused or removed.")
        try:
            return await self._prepare(link)
        except HeadraceError:
            if all(one.number != self._todo.number for one in await store.captures_to_do(self._database)):
                if self._spec.slot is None:
                    await slots.drop_slot(link, self._name, application_name(self._todo.id))
                if self._spec.publication is None:
                    await slots.drop_publication(link, self._name)
            raise

    async def _prepare(self, link: Link) -> Beginning:
        todo, spec = self._todo, self._spec
        server = await slots.server_of(link)
        known = await store.capture_position(self._database, todo.number)
        position = None if known is None else await self._position_on(server, known)
        await self._schema_cache.look(link)
        if known is not None and spec.backfill and spec.publication is None:
            await self._backfill_new(link)
        await slots.ensure_publication(link, spec, self._publication)
        found = await slots.ensure_slot(
            link, self._slot, ours=spec.slot is None, expected=position, application_name=application_name(todo.id)
        )
        if position is not None and known is not None:
            return self._from(position, known.captured)
        if spec.backfill:  # before the position is stored, so that a crash here does not lose the backfill
            await begin_first(self._database, todo.id, spec)
        await store.begin_capture(
            self._database, todo.number, self._epoch, positions.text(found), server.system_id, server.timeline
        )
        return self._from(found, 0)

    def _from(self, position: int, captured: int) -> Beginning:
        return Beginning(slot=self._slot, publication=self._publication, position=position, captured=captured)

    async def _backfill_new(self, link: Link) -> None:
        """Start backfills of tables that were created or recreated while the source was not captured.
        They are not in the source's publication yet, and their first rows are not in the stream.
        """
        published = await publications.publication_of(link, self._publication)
        for name, table in self._schema_cache.tables.items():
            if published is not None and not published.everything and table.oid not in published.named:
                await store.start_backfill(self._database, self._todo.id, name, None, self._spec.rate)

    async def _position_on(self, server: slots.Server, known: store.CapturePosition) -> int:
        """Return the position at which to continue on this server. Raises `SourceStopped` if it is
        another server.
        """
        position = positions.number(known.position)
        if known.system_id != server.system_id:
            raise SourceStopped(
                f"The database of the source {self._todo.name!r} is another server's than the one that was captured: set its old"
                " address, or begin anew, with a new slot and a fresh backfill.",
                f"headrace source postgres resume {self._todo.name} --anew",
            )
        if known.timeline == server.timeline:
            return position
        switched = await slots.switch_point(self._dsn, known.timeline, server.timeline)
        if position > switched:
            logger.warning(
                "%s: the server was promoted at %s, and has never seen the changes from there to %s, which were captured from its"
                " predecessor. Capture goes on from there; to make the stream as the tables are, backfill:"
                " `headrace source backfill start %s`",
                self._todo.name, positions.text(switched), known.position, self._todo.name,
            )  # fmt: skip
            position = switched
        await store.begin_capture(
            self._database, self._todo.number, self._epoch, positions.text(position), server.system_id, server.timeline
        )
        return position
