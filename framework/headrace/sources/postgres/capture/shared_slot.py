"""A shared slot: several sources of one database read one replication slot, so the server decodes its WAL once.

    source ── capture lease, publication, position ──┐
    source ── capture lease, publication, position ──┤  one replication stream, which names the publications,
    source ── …                                     ──┘  and one change reader ── shaper, outbox, appender of each source

Each source keeps its own capture lease, position, publication and stream, and all of their promises. The leases of a
shared slot are held by one process, see `take_capture` in `captures.sql`. The rules:

1.  The server is told the smallest position that is stored for a source of the slot, whether it runs or not. A source
    that is paused or stopped therefore loses nothing.
2.  The stream starts at the smallest position of the sources that it is for. The others skip what they have.
3.  A source that is behind doesn't join them. It reads a temporary copy of the slot until it has caught up, so it
    holds up no other source. If the server has no slot left for that, they wait for it. Sources that start at the same
    time start together if none of them is far behind.
4.  A source that fails or can't keep up leaves. The others continue.
5.  A source starts at a position from which its publication exists for all transactions, see
    `shared_slots.position_for_publication`. Before that position the server refuses to decode with its publication, so the
    source is left out until the others have reached it.

A single publication for all sources is no alternative: the actions of one source would apply to the tables of another,
and an update of a table without a key would be refused. Nor need the position of each publication be stored, since the
server's error tells a publication that is too young.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.log import Log
from headrace.sources.postgres.capture.change_reader import ChangeReader, Taker
from headrace.sources.postgres.connection.arrays import oid_array
from headrace.sources.postgres.connection.replication_stream import CONFIRM_INTERVAL, Replication, ReplicationStream
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database import shared_slots, slots
from headrace.sources.postgres.errors import (
    PublicationMissing,
    SlotInUse,
    SourceStopped,
    SourceUnavailable,
    StreamingFailed,
)
from headrace.sources.postgres.limits import DEFAULTS, CaptureLimits
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.pgoutput.messages import Relation
from headrace.sources.postgres.tables import Table

log = Log("headrace")

_READ_BY_ITSELF = (
    "The source {} the other sources with its replication slot. It is read by itself until it has caught up."
)


class Member(Taker, Protocol):
    """A capturer of a shared slot.

    Attributes:
        handled: the position up to which every change was handed to it.
        is_new: whether it is captured for the first time. Its publication may not exist before its position.
        publication: its publication.
        dsn: the captured database.
        has_read_copy: whether it has tried to catch up with a temporary copy of the slot.
    """

    handled: int
    is_new: bool
    has_read_copy: bool
    publication: str
    dsn: SourceDatabase

    @property
    def roots(self) -> set[int]:
        """The oids of its partitioned tables."""


class SharedSlot:
    """A replication slot of several sources, in the process that captures them.

    Args:
        database: Headrace's database, open.
        name: its name in the settings of the sources.
        slot_id: its id.
        limits: its timings and sizes.

    Attributes:
        slot: its name on the server.
        preparing: a lock to hold while the slot is examined or created.
        lowest: the source with the smallest stored position, and that position.
        roots: the oids of the partitioned tables of the sources that are read.
    """

    def __init__(self, database: store.Database, name: str, slot_id: str, limits: CaptureLimits = DEFAULTS) -> None:
        self.slot = slots.slot_name(name, slot_id)
        self.preparing = anyio.Lock()
        self.lowest: tuple[str, int] | None = None
        self.roots: set[int] = set()
        self._database = database
        self._name = name
        self._limits = limits
        self._members: list[_Feeding] = []
        self._reader: _SharedReader | None = None
        self._read_scope: anyio.CancelScope | None = None
        self._joined = anyio.Event()
        self._left_out: dict[str, int] = {}  # publications that do not exist yet before these positions
        self._streaming = True

    # --- called by the capturers

    def is_past(self, position: int) -> bool:
        """Whether the slot is being read, and the other sources are beyond this position."""
        return self._reader is not None and position < self._reader.position

    def _is_before(self, position: int) -> bool:
        return self._reader is not None and self._reader.position < position

    async def feed(self, member: Member) -> None:
        """Hand changes to a capturer until it fails. Raises the error of the capturer, or of the replication."""
        feeding = _Feeding(member)
        left_out, name = self._left_out, member.publication
        if member.is_new or self._is_before(member.handled):
            left_out[name] = member.handled
        elif name in left_out:  # a member that failed is back at its stored position, where its publication exists
            left_out[name] = min(left_out[name], member.handled)
        self._members.append(feeding)
        self._joined.set()
        self._interrupt_read()
        try:
            await feeding.failed.wait()
            assert feeding.error is not None
            raise feeding.error
        finally:
            self._remove(feeding)

    def _interrupt_read(self) -> None:
        if self._read_scope is not None:
            self._read_scope.cancel()

    def _remove(self, feeding: _Feeding) -> None:
        if feeding in self._members:
            self._members.remove(feeding)
        if feeding.waiting is not None:
            feeding.waiting.cancel()
        if self._reader is not None:
            self._reader.remove(feeding.member)
        if not self._members:
            self._interrupt_read()

    def fail(self, member: Taker, error: Exception) -> None:
        """End the feeding of one capturer."""
        for feeding in [one for one in self._members if one.member is member]:
            self._remove(feeding)
            feeding.fail(error)

    def feeding_of(self, member: Taker) -> _Feeding | None:
        """Return the feeding of a capturer, or None if it has left."""
        return next((one for one in self._members if one.member is member), None)

    # --- the reader

    async def run(self) -> None:
        """Read while there are capturers, until cancelled."""
        while True:
            await self._gather()
            try:
                await self._read()
            except Exception as error:
                self._fail_all(error)

    async def _gather(self) -> None:
        """Wait until there are capturers. At the start and after a failure they come at about the same time."""
        while not self._members:
            self._joined = anyio.Event()
            await self._joined.wait()
        count = 0
        while count != len(self._members) and not any(member.fed for member in self._members):
            count = len(self._members)
            await anyio.sleep(self._limits.gather_interval)

    async def _read(self) -> None:
        """Read until a capturer can join, or none is left."""
        if not self._members:
            return
        feedings, start = self._choose()
        self.roots = set().union(*(one.member.roots for one in feedings))
        replication = await self._start(feedings[0].member.dsn, [one.member.publication for one in feedings], start)
        self._reader = reader = _SharedReader(self, [one.member for one in feedings], start, self._limits)
        for gone in [one for one in feedings if one not in self._members]:  # while the replication started
            reader.remove(gone.member)
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(replication.send_statuses)
                group.start_soon(self._confirm_stored, replication)
                try:
                    await self._hand_out(replication, reader)
                except Exception as error:
                    failure = error
                group.cancel_scope.cancel()
        finally:
            self._reader = None
            reader.close()
            with anyio.CancelScope(shield=True):
                await replication.close()
        if isinstance(failure, PublicationMissing):
            self._leave_out(failure, feedings, start)
            if reader.between_transactions:  # otherwise capturers have a part of one
                failure = None
        if failure is not None:
            raise failure
        for feeding in feedings:
            feeding.member.handled = max(feeding.member.handled, reader.position)

    def _choose(self) -> tuple[list[_Feeding], int]:
        """Choose the capturers to feed, and the position to start at. Those that are far behind fail, and read a copy."""
        bound = max(one.member.handled for one in self._members) - self._limits.behind_bytes
        for member in [one.member for one in self._members]:
            if member.handled < bound and not member.has_read_copy:
                self.fail(member, SourceUnavailable(_READ_BY_ITSELF.format("is far behind")))
        start = min(one.member.handled for one in self._members)
        reached = max((one.member.handled for one in self._members if one.fed), default=None)
        for one in self._members:
            one.needed_from = one.member.handled
            one.fed = self._left_out.get(one.member.publication, 0) <= start and (
                reached is None or one.needed_from <= reached
            )
        return [one for one in self._members if one.fed], start

    async def _hand_out(self, replication: ReplicationStream, reader: _SharedReader) -> None:
        while self._members:
            reader.stops = self._can_join(reader)
            if reader.stops and reader.between_transactions:
                return
            received = None
            with anyio.CancelScope() as self._read_scope:
                received = await replication.read()
            self._read_scope = None
            if received is not None:
                await reader.handle(received)

    def _can_join(self, reader: _SharedReader) -> bool:
        return any(not member.fed and member.member.handled <= reader.position for member in self._members)

    def _fail_all(self, error: Exception) -> None:
        """Let all capturers fail. They try again, and start where each of them was."""
        if isinstance(error, StreamingFailed):
            self._streaming = False
        elif isinstance(error, PublicationMissing):
            error = SourceUnavailable(
                f"The publication {error.publication} of another source with the same replication slot is missing. The slot is read without it."
            )
        feedings, self._members = self._members, []
        for feeding in feedings:
            feeding.fail(error)

    def _leave_out(self, error: PublicationMissing, feedings: Iterable[_Feeding], start: int) -> None:
        """Leave out the source whose publication was missing. If it is needed from a later position on, the source waits
        for the others. Otherwise it has missed changes, and fails. It may also have been removed.
        """
        for feeding in feedings:
            if feeding.member.publication != error.publication:
                continue
            if feeding.needed_from > start:
                self._left_out[error.publication] = feeding.needed_from
            else:
                self.fail(feeding.member, error)

    async def _start(self, dsn: SourceDatabase, publications: Sequence[str], start: int) -> ReplicationStream:
        """Start the replication. An earlier connection is terminated, also one of a process that has lost its leases."""
        application_name = slots.shared_application_name(self.slot)
        async with await SourceConnection.connect(dsn, application_name="headrace slot") as connection:
            await shared_slots.free_slot(connection, self.slot, application_name)
        try:
            return await ReplicationStream.start(
                dsn,
                Replication(
                    slot=self.slot,
                    publications=publications,
                    position=start,
                    streaming=self._streaming,
                    confirmed=min(await self._stored_position(), start),
                ),
                application_name=application_name,
            )
        except SlotInUse as error:  # by such a process, which has been a moment faster
            raise SourceUnavailable(error.reason) from error

    # --- the server is told the smallest stored position

    async def _confirm_stored(self, replication: ReplicationStream) -> None:
        while True:
            with suppress(StoreUnavailable):
                replication.confirm(await self._stored_position())
            await anyio.sleep(CONFIRM_INTERVAL)

    async def _stored_position(self) -> int:
        """Return the smallest position that is stored for a source of this slot."""
        stored = await store.shared_slot_positions(self._database, self._name)
        self.lowest = min(((name, positions.parse(at)) for name, at in stored), key=lambda one: one[1], default=None)
        return 0 if self.lowest is None else self.lowest[1]


class _Feeding:
    """A capturer, from the time it asks to be fed until it leaves."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.fed = False  # whether the reader hands changes to it
        self.needed_from = member.handled  # its position when the reader started
        self.waiting: anyio.CancelScope | None = None  # while the reader waits for its outbox
        self.failed = anyio.Event()
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.failed.set()


class _SharedReader(ChangeReader):
    """The reader of a shared slot. One capturer that fails, or holds up the others, is removed."""

    def __init__(self, shared_slot: SharedSlot, members: Iterable[Member], start: int, limits: CaptureLimits) -> None:
        super().__init__(members)
        self._shared_slot = shared_slot
        self._limits = limits
        self.position = start

    async def _offer(self, taker: Taker) -> None:
        if not taker.full:
            await taker.offer()
            return
        feeding = self._shared_slot.feeding_of(taker)
        if feeding is None:
            return
        with anyio.move_on_after(self._limits.hold_up_timeout) as feeding.waiting:
            await taker.offer()
        if feeding.waiting is not None and feeding.waiting.cancelled_caught:
            self._failed(taker, SourceUnavailable(_READ_BY_ITSELF.format("is slower than")))
        feeding.waiting = None

    def _failed(self, taker: Taker, error: Exception) -> None:
        self.remove(taker)
        self._shared_slot.fail(taker, error)


def is_of_others(relation: Relation, tables: Iterable[Table]) -> bool:
    """Whether a relation can't be one of these tables. The publications of the sources name the tables themselves, and
    not their partitions.
    """
    return all(
        relation.oid != table.oid and (relation.schema, relation.name) != (table.schema, table.relation)
        for table in tables
    )


async def refuse_root(connection: SourceConnection, relation: Relation, tables: Iterable[Table]) -> None:
    """Raise `SourceStopped` if one of the tables is a partition of this relation.

    With several publications, the server sends a change as one of the topmost table that any of them publishes, so a
    source of the partition alone would miss it.
    """
    rows = await connection.query(
        """select t.relid::pg_catalog.regclass::text from pg_catalog.pg_partition_tree($1::oid::pg_catalog.regclass) as t
            where t.relid = any ($2::oid[]) limit 1""",
        str(relation.oid),
        oid_array(table.oid for table in tables),
    )
    if rows:
        raise SourceStopped(
            f"The table {rows[0][0]} is a partition of {relation.schema}.{relation.name}, which another source with the same replication"
            " slot captures. The server sends the changes of both as those of the root. Use a separate slot for one of them."
        )
