"""Replication slots of the captured server: create, take over, inspect and drop them. Also identifies
the server.
"""

from __future__ import annotations

import re
import time

import anyio
import msgspec

from headrace.model.capture import CaptureFacts
from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database.publications import drop_publication, ensure_publication
from headrace.sources.postgres.errors import SlotLost, SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.pgoutput import positions

__all__ = [
    "PLUGIN", "Server", "Slot", "drop_publication", "drop_slot", "ensure_publication", "ensure_slot", "history_switch", "server_of",
    "slot_facts", "slot_name", "slot_of", "switch_point",
]  # fmt: skip

PLUGIN = "pgoutput"

LONGEST_NAME = 63
"""Postgres's limit for a name, in bytes."""

PATIENCE = 120.0
"""Timeout in seconds for creating a slot. The server waits for the transactions that are open then."""

LEAVING = 10.0
"""Seconds that a connection of the source may take to leave a slot after it was terminated."""

# The end of the WAL. On a standby, which writes no WAL, it is the end of the received WAL.
_NOW = """case when pg_catalog.pg_is_in_recovery() then coalesce(pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn())
               else pg_catalog.pg_current_wal_lsn() end"""

# The timeline comes from the WAL file's name. The control file has the timeline of the last
# checkpoint, which after a failover is the old one for a while.
_SERVER = f"""
    select s.system_identifier::text, pg_catalog.pg_is_in_recovery(), {_NOW},
           case when pg_catalog.pg_is_in_recovery() then c.timeline_id::text
                else (('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int)::text end
      from pg_catalog.pg_control_system() as s, pg_catalog.pg_control_checkpoint() as c
"""

# Columns of later versions are read through JSON: `invalidation_reason` came with 17, `conflicting`
# with 16.
_SLOT = """
    select s.plugin, s.slot_type, s.database, s.database = pg_catalog.current_database(), s.temporary, s.two_phase, s.wal_status,
           s.confirmed_flush_lsn, s.active_pid::text, a.application_name, a.usename,
           coalesce(to_jsonb(s) ->> 'invalidation_reason', case when (to_jsonb(s) ->> 'conflicting')::boolean then 'conflict' end)
      from pg_catalog.pg_replication_slots as s left join pg_catalog.pg_stat_activity as a on a.pid = s.active_pid
     where s.slot_name = $1
"""

_FACTS = f"""
    select {_NOW} - s.restart_lsn, s.wal_status, s.safe_wal_size, {_NOW} - $2::pg_catalog.pg_lsn
      from (select) as always left join pg_catalog.pg_replication_slots as s on s.slot_name = $1
"""

# pg_locks shows all transactions that have written something to every role. Only privileged roles
# see their users.
_OPEN = """
    select l.pid::text, a.usename, pg_catalog.date_trunc('second', a.xact_start)::text
      from pg_catalog.pg_locks as l left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
     where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid is not null and l.pid <> pg_catalog.pg_backend_pid()
     order by pg_catalog.age(l.transactionid) desc limit 1
"""
_PREPARED = "select gid, pg_catalog.date_trunc('second', prepared)::text from pg_catalog.pg_prepared_xacts order by prepared limit 1"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server. `position` is the end of its WAL. `timeline` rises with each failover. `system_id`
    stays the same.
    """

    version: int
    system_id: str
    timeline: int
    position: int
    in_recovery: bool


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a slot. `here` says whether it is of this database. `pid`, `application`
    and `user` identify the client that uses it, as far as the role may see that.
    """

    plugin: str | None
    kind: str
    database: str | None
    here: bool
    temporary: bool
    two_phase: bool
    wal_status: str | None
    confirmed: int | None
    pid: str | None
    application: str | None
    user: str | None
    invalid: str | None

    @property
    def lost(self) -> bool:
        """Whether WAL that the slot needs is gone."""
        return self.wal_status == "lost" or self.invalid is not None

    def unfit(self, name: str) -> str | None:
        """Return why the slot can't be read from, or None if it can."""
        if self.kind != "logical":
            return f"The replication slot {name} is for a standby, not for changes."
        if self.plugin != PLUGIN:
            return f"The replication slot {name} is of the plugin {self.plugin}, and has to be of {PLUGIN}."
        if not self.here:
            return f"The replication slot {name} is of the database {self.database}, not of this one."
        if self.two_phase:
            return (
                f"The replication slot {name} has two_phase on, which hands out transactions before they are committed."
            )
        return f"The replication slot {name} is temporary: it ends with its connection." if self.temporary else None


def slot_name(source_name: str, source_id: str) -> str:
    """Return the name of a source's own slot and publication, such as `headrace_orders_1b4e28ba`.

    Args:
        source_name: lower-case letters, digits, `-` and `_`.
        source_id: its UUID. So a source with the same name in another Headrace database has another
            slot.
    """
    start = "headrace_" + source_name.replace("-", "_")
    return f"{start[: LONGEST_NAME - 9]}_{source_id.replace('-', '')[:8].lower()}"


async def server_of(link: Link) -> Server:
    """Return the server's identity and position. Raises `SourceUnavailable`, `SourceRefused`."""
    ((system_id, in_recovery, position, timeline),) = await link.query(_SERVER)
    return Server(
        version=link.version, system_id=system_id or "", timeline=int(timeline or 0), position=positions.number(position or "0/0"),
        in_recovery=in_recovery == "t",
    )  # fmt: skip


async def switch_point(dsn: str, timeline_from: int, timeline_to: int, *, application_name: str = "headrace") -> int:
    """Return the WAL position at which the server's `timeline_to` branched off from `timeline_from`.

    Raises:
        SourceStopped: it does not descend from that timeline, for instance because it was restored
            to an earlier time.
        SourceUnavailable: the server can't be reached.
    """
    async with await Link.connect(dsn, application_name=application_name, replication=True) as link:
        try:
            ((_, content),) = await link.query(f"TIMELINE_HISTORY {timeline_to:d}")
        except SourceRefused as error:
            raise SourceStopped(
                f"The captured server is on timeline {timeline_to}, and does not say how it came there from {timeline_from} ({error.told})."
            ) from error
    return history_switch(content or "", timeline_from, timeline_to)


def history_switch(content: str, timeline_from: int, timeline_to: int) -> int:
    """Find the switch point in a history file. Each line has a timeline, the position where it ended,
    and the reason.

    The format: https://www.postgresql.org/docs/18/continuous-archiving.html#BACKUP-TIMELINES
    """
    for line in content.splitlines():
        found = re.match(r"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", line)
        if found and int(found[1]) == timeline_from:
            return positions.number(found[2])
    raise SourceStopped(
        f"The captured server is on timeline {timeline_to}, which does not descend from {timeline_from}, where we were: it was restored"
        " from another time. Start anew, with a fresh backfill."
    )


async def slot_of(link: Link, name: str) -> Slot | None:
    """Return the slot of this name, or None."""
    found = await link.query(_SLOT, name)
    if not found:
        return None
    plugin, kind, database, here, temporary, two_phase, wal_status, confirmed, pid, application, user, invalid = found[
        0
    ]
    return Slot(
        plugin=plugin, kind=kind or "", database=database, here=here == "t", temporary=temporary == "t", two_phase=two_phase == "t",
        wal_status=wal_status, confirmed=None if confirmed is None else positions.number(confirmed), pid=pid, application=application,
        user=user, invalid=invalid,
    )  # fmt: skip


async def ensure_slot(
    link: Link, name: str, *, ours: bool, expected: int | None, application_name: str, patience: float = PATIENCE
) -> int:
    """Make sure that there is a slot to read from, which no other client uses.

    The source's own slot is created if nothing was captured yet, or recreated if it exists. A
    leftover connection of the source is terminated.

    Args:
        link: a connection to the captured database.
        name: the slot's name.
        ours: whether the slot is the source's own, which may be created, and recreated while
            nothing was captured.
        expected: the position up to which everything is captured. None if nothing was captured yet.
        application_name: the name of the source's own connections, by which a leftover one is
            recognised.
        patience: timeout in seconds for creating the slot.

    Returns:
        The slot's confirmed position. The slot sends what was committed after it.

    Raises:
        SlotLost: the slot or its WAL is gone, or another client has advanced it beyond `expected`.
        SourceStopped: another client uses it, or it is of the wrong kind.
        SourceUnavailable: it can't be created now, since transactions are open for too long.
    """
    found = await slot_of(link, name)
    if found is not None and (wrong := found.unfit(name)):
        raise SourceStopped(wrong + " Name another one, or none.")
    if found is not None and ours and expected is None:
        # It is left over from before, and may still send a change that made its capture fail.
        await drop_slot(link, name, application_name)
        found = None
    if found is None:
        _refuse_missing(name, ours, expected)
        return await _create(link, name, patience)
    if found.lost:
        why = f" ({found.invalid})" if found.invalid else ""
        raise SlotLost(
            f"The replication slot {name} is lost{why}: the server has removed WAL that was not captured yet."
        )
    if found.pid is not None:
        found = await _vacate(link, name, found, application_name)
    confirmed = found.confirmed or 0
    if expected is not None and confirmed > expected:
        raise SlotLost(
            f"The replication slot {name} was moved on to {positions.text(confirmed)} by someone else, and only up to"
            f" {positions.text(expected)} everything is captured: changes between them are missing."
        )
    return confirmed


async def drop_slot(link: Link, name: str, application_name: str) -> None:
    """Drop the slot, if it exists. Raises `SourceStopped` if another client uses it."""
    deadline = time.monotonic() + LEAVING
    while (found := await slot_of(link, name)) is not None:
        if found.pid is not None:
            await _vacate(link, name, found, application_name)
        try:
            await link.query("select pg_catalog.pg_drop_replication_slot($1)", name)
        except SourceRefused as error:
            if error.sqlstate == "42704":  # another client has just dropped it
                return
            # In use: a connection of the source has taken it since the last look.
            if error.sqlstate != "55006" or time.monotonic() > deadline:
                raise server_errors.mended(error) from error
            await anyio.sleep(0.05)


async def slot_facts(link: Link, name: str, captured: int) -> CaptureFacts:
    """Return the state of a slot, given the position up to which everything is captured. A slot that
    is gone is reported as `lost`.
    """
    ((held_back, wal_status, safe, behind),) = await link.query(_FACTS, name, positions.text(captured))
    return CaptureFacts(
        held_back=None if held_back is None else max(int(held_back), 0),
        wal_status=wal_status or "lost",
        safe_wal_size=None if safe is None else int(safe),
        behind=None if behind is None else max(int(behind), 0),
    )


def _refuse_missing(name: str, ours: bool, expected: int | None) -> None:
    if expected is not None:
        raise SlotLost(
            f"The replication slot {name} is gone: what was committed since {positions.text(expected)} can't be captured any more."
        )
    if not ours:
        raise SourceStopped(f"The captured server has no replication slot {name}.", creation(name))


def creation(name: str) -> str:
    """Return the statement that creates a slot."""
    return f"select pg_create_logical_replication_slot('{name}', '{PLUGIN}');"


async def _create(link: Link, name: str, patience: float) -> int:
    # From 17 on a standby can keep a copy of the slot, which survives a failover.
    failover = ", failover => true" if link.version >= 170000 else ""
    await link.query(f"set statement_timeout = '{max(int(patience * 1000), 1)}ms'")
    try:
        ((position,),) = await link.query(
            f"select lsn from pg_catalog.pg_create_logical_replication_slot($1, '{PLUGIN}'{failover})", name
        )
    except SourceRefused as error:
        raise await _not_created(link, name, error) from error
    finally:
        await _unlimited(link)
    return positions.number(position or "0/0")


async def _unlimited(link: Link) -> None:
    try:
        await link.query("set statement_timeout = 0")
    except SourceUnavailable:
        return  # the setting is gone with the connection


async def _not_created(link: Link, name: str, error: SourceRefused) -> HeadraceError:
    if error.sqlstate == "42710":
        return SourceUnavailable(f"The replication slot {name} was made by someone else this moment.")
    if error.sqlstate == "42501":
        ((role,),) = await link.query("select quote_ident(current_user)")
        return SourceStopped(
            f"The role {role} may not make the replication slot {name} ({error.told}): it needs the right to replicate.",
            f"alter role {role} replication;",
        )
    if error.sqlstate != "57014":
        return server_errors.mended(error)
    return SourceUnavailable(
        f"The replication slot {name} can't be made yet: it waits for transactions that were open before, {await waits_for(link)}."
    )


async def waits_for(link: Link) -> str:
    """Return text for people about the oldest transaction that the creation of a slot waits for."""
    if found := await link.query(_OPEN):
        ((pid, user, since),) = found
        whose = f" of {user}, open since {since}" if since else ""
        return f"the oldest of which is that of pid {pid}{whose} (select pg_terminate_backend({pid}) ends it)"
    if prepared := await link.query(_PREPARED):
        ((gid, since),) = prepared
        return f"such as the prepared one {gid!r}, since {since} (commit prepared, or rollback prepared, ends it)"
    return "which have ended meanwhile"


async def _vacate(link: Link, name: str, slot: Slot, application_name: str) -> Slot:
    """Terminate the source's own connection that uses the slot."""
    deadline = time.monotonic() + LEAVING
    while slot.pid is not None:
        gone = slot.user is None  # the client left between the server's reads of its two views
        if not gone and slot.application != application_name:
            raise SourceStopped(
                f"The replication slot {name} is in use by someone else (pid {slot.pid}, {slot.application!r} of {slot.user}): a slot"
                " serves one reader. Stop the other one, or name another slot."
            )
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"The replication slot {name} is still in use by a connection of ours, pid {slot.pid}."
            )
        await _end(link, slot.pid)
        await anyio.sleep(0.05)
        found = await slot_of(link, name)
        if found is None:
            raise SlotLost(f"The replication slot {name} was dropped this moment.")
        slot = found
    return slot


async def _end(link: Link, pid: str) -> None:
    try:
        await link.query("select pg_catalog.pg_terminate_backend($1::int)", pid)
    except SourceRefused as error:
        raise server_errors.mended(error) from error
