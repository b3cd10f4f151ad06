"""Replication slots of the captured server: create, take over, inspect and drop them. Also identifies
the server.
"""

from __future__ import annotations

import re
import time
from typing import Any

import anyio
import msgspec

from headrace.model.capture import CaptureFacts
from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.errors import SlotLost, SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.pgoutput import positions

PLUGIN = "pgoutput"

MAX_NAME_BYTES = 63
"""Postgres's limit for a name, in bytes."""

CREATE_TIMEOUT = 120.0
"""Timeout in seconds for creating a slot. The server waits for the transactions that are open then."""

RELEASE_TIMEOUT = 10.0
"""Seconds that a connection of the source may take to leave a slot after it was terminated."""

# The end of the WAL. On a standby, which writes no WAL, it is the end of the received WAL.
_WAL_END = """case when pg_catalog.pg_is_in_recovery() then coalesce(pg_catalog.pg_last_wal_receive_lsn(), pg_catalog.pg_last_wal_replay_lsn())
               else pg_catalog.pg_current_wal_lsn() end"""

# The timeline comes from the WAL file's name. The control file has the timeline of the last
# checkpoint, which after a failover is the old one for a while.
_SERVER = f"""
    select s.system_identifier::text, pg_catalog.pg_is_in_recovery(), {_WAL_END},
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
    select {_WAL_END} - s.restart_lsn, s.wal_status, s.safe_wal_size, {_WAL_END} - $2::pg_catalog.pg_lsn
      from (select) as always left join pg_catalog.pg_replication_slots as s on s.slot_name = $1
"""

# pg_locks shows all transactions that have written something to every role. Only privileged roles
# see their users.
_OLDEST_TRANSACTION = """
    select l.pid::text, a.usename, pg_catalog.date_trunc('second', a.xact_start)::text
      from pg_catalog.pg_locks as l left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
     where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid is not null and l.pid <> pg_catalog.pg_backend_pid()
     order by pg_catalog.age(l.transactionid) desc limit 1
"""
_OLDEST_PREPARED = "select gid, pg_catalog.date_trunc('second', prepared)::text from pg_catalog.pg_prepared_xacts order by prepared limit 1"


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
    """The current state of a slot. `in_this_database` says whether it is of this database. `pid`, `application`
    and `user` identify the client that uses it, as far as the role may see that.
    """

    plugin: str | None
    kind: str
    database: str | None
    in_this_database: bool
    temporary: bool
    two_phase: bool
    wal_status: str | None
    confirmed: int | None
    pid: str | None
    application: str | None
    user: str | None
    invalidation: str | None

    @property
    def lost(self) -> bool:
        """Whether WAL that the slot needs is gone."""
        return self.wal_status == "lost" or self.invalidation is not None

    def unusable(self, name: str) -> str | None:
        """Return why the slot can't be read from, or None if it can."""
        if self.kind != "logical":
            return f"The replication slot {name} is physical. It must be logical."
        if self.plugin != PLUGIN:
            return f"The replication slot {name} uses the plugin {self.plugin}. It must use {PLUGIN}."
        if not self.in_this_database:
            return f"The replication slot {name} belongs to another database, {self.database}."
        if self.two_phase:
            return f"The replication slot {name} has two_phase on. It sends transactions before they are committed."
        return f"The replication slot {name} is temporary. It ends with its connection." if self.temporary else None

    def in_use(self, name: str) -> str:
        """Return the text for a slot that another client uses."""
        return (
            f"The replication slot {name} is in use by another client (pid {self.pid}, {self.application!r} of {self.user}). Stop that client,"
            " or name another slot."
        )


def slot_name(source_name: str, source_id: str) -> str:
    """Return the name of a source's own slot and publication, such as `headrace_orders_1b4e28ba`.

    Args:
        source_name: lower-case letters, digits, `-` and `_`.
        source_id: its UUID. A source with the same name in another Headrace database thus has another slot.
    """
    start = "headrace_" + source_name.replace("-", "_")
    return f"{start[: MAX_NAME_BYTES - 9]}_{source_id.replace('-', '')[:8].lower()}"


def shared_application_name(slot: str) -> str:
    """Return the name of the streaming connection of a shared slot in `pg_stat_activity`."""
    return f"headrace capture {slot}"[:MAX_NAME_BYTES]


async def identify_server(connection: SourceConnection) -> Server:
    """Return the server's identity and position. Raises `SourceUnavailable`, `SourceRefused`."""
    ((system_id, in_recovery, position, timeline),) = await connection.query(_SERVER)
    return Server(
        version=connection.version,
        system_id=system_id or "",
        timeline=int(timeline or 0),
        position=positions.parse(position or "0/0"),
        in_recovery=in_recovery == "t",
    )


async def switch_point(
    dsn: SourceDatabase, timeline_from: int, timeline_to: int, *, application_name: str = "headrace"
) -> int:
    """Return the WAL position at which the server's `timeline_to` branched off from `timeline_from`.

    Raises:
        SourceStopped: it does not descend from that timeline, for instance because it was restored
            to an earlier time.
        SourceUnavailable: the server can't be reached.
    """
    async with await SourceConnection.connect(dsn, application_name=application_name, replication=True) as connection:
        try:
            ((_, content),) = await connection.query(f"TIMELINE_HISTORY {timeline_to:d}")
        except SourceRefused as error:
            raise SourceStopped(
                f"The captured server is on timeline {timeline_to}, and does not return its history since timeline {timeline_from} ({error.server_message})."
            ) from error
    return history_switch(content or "", timeline_from, timeline_to)


def history_switch(content: str, timeline_from: int, timeline_to: int) -> int:
    """Find the switch point in a history file. Each line has a timeline, the position where it ended,
    and the reason.

    The format: https://www.postgresql.org/docs/18/continuous-archiving.html#BACKUP-TIMELINES
    """
    for line in content.splitlines():
        match = re.match(r"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", line)
        if match and int(match[1]) == timeline_from:
            return positions.parse(match[2])
    raise SourceStopped(
        f"The captured server is on timeline {timeline_to}, which does not descend from the captured timeline {timeline_from}. It was restored"
        " from another time. Restart the capture, with a fresh backfill."
    )


async def find_slot(connection: SourceConnection, name: str) -> Slot | None:
    """Return the slot of this name, or None."""
    rows = await connection.query(_SLOT, name)
    if not rows:
        return None
    columns = dict(zip(Slot.__struct_fields__, rows[0], strict=True))
    flags = {name: columns[name] == "t" for name in ("in_this_database", "temporary", "two_phase")}
    confirmed = None if columns["confirmed"] is None else positions.parse(columns["confirmed"])
    given: dict[str, Any] = {**columns, **flags, "kind": columns["kind"] or "", "confirmed": confirmed}
    return Slot(**given)


async def ensure_slot(
    connection: SourceConnection,
    name: str,
    *,
    owned: bool,
    expected: int | None,
    application_name: str | None,
    timeout: float = CREATE_TIMEOUT,
) -> int:
    """Make sure that there is a slot to read from, which no other client uses.

    The source's own slot is created if nothing was captured yet, or recreated if it exists. A
    leftover connection of the source is terminated.

    Args:
        connection: a connection to the captured database.
        name: the slot's name.
        owned: whether the slot is the source's own, which may be created, and recreated while
            nothing was captured.
        expected: the position up to which everything is captured. None if nothing was captured yet.
        application_name: the name of the source's own connections, by which a leftover one is
            recognised. None for a slot that other sources use as well. It is recreated only if it is lost, and
            its readers are left alone.
        timeout: timeout in seconds for creating the slot.

    Returns:
        The slot's confirmed position. The slot sends what was committed after it.

    Raises:
        SlotLost: the slot or its WAL is gone, or another client has advanced it beyond `expected`.
        SourceStopped: another client uses it, or it is of the wrong kind.
        SourceUnavailable: it can't be created now, since transactions are open for too long.
    """
    slot = await find_slot(connection, name)
    if slot is not None and (problem := slot.unusable(name)):
        raise SourceStopped(problem + " Name another slot, or none.")
    if slot is not None and owned and expected is None and (application_name is not None or slot.lost):
        # It is left over from before, and may still send a change that made its capture fail.
        await drop_slot(connection, name, application_name or shared_application_name(name))
        slot = None
    if slot is None:
        _check_may_create(name, owned, expected)
        return await _create(connection, name, timeout)
    if slot.lost:
        why = f" ({slot.invalidation})" if slot.invalidation else ""
        raise SlotLost(
            f"The replication slot {name} is lost{why}. The server has removed WAL that was not captured yet."
        )
    if slot.pid is not None and application_name is not None:
        slot = await terminate_own_reader(connection, name, slot, application_name)
    confirmed = slot.confirmed or 0
    if expected is not None and confirmed > expected:
        raise SlotLost(
            f"Another client has advanced the replication slot {name} to {positions.as_text(confirmed)}, and changes are captured only up to"
            f" {positions.as_text(expected)}. The changes in between are missing."
        )
    return confirmed


async def drop_slot(connection: SourceConnection, name: str, application_name: str) -> None:
    """Drop the slot, if it exists. Raises `SourceStopped` if another client uses it."""
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while (slot := await find_slot(connection, name)) is not None:
        if slot.pid is not None:
            await terminate_own_reader(connection, name, slot, application_name)
        try:
            await connection.query("select pg_catalog.pg_drop_replication_slot($1)", name)
        except SourceRefused as error:
            if error.sqlstate == "42704":  # another client has just dropped it
                return
            # In use: a connection of the source has taken it since the last look.
            if error.sqlstate != "55006" or time.monotonic() > deadline:
                raise server_errors.setup_error(error) from error
            await anyio.sleep(0.05)


async def slot_facts(connection: SourceConnection, name: str, captured: int) -> CaptureFacts:
    """Return the state of a slot, given the position up to which everything is captured. A slot that
    is gone is reported as `lost`.
    """
    ((held_back, wal_status, safe_wal_size, behind),) = await connection.query(
        _FACTS, name, positions.as_text(captured)
    )
    return CaptureFacts(
        held_back=None if held_back is None else max(int(held_back), 0),
        wal_status=wal_status or "lost",
        safe_wal_size=None if safe_wal_size is None else int(safe_wal_size),
        behind=None if behind is None else max(int(behind), 0),
    )


def _check_may_create(name: str, owned: bool, expected: int | None) -> None:
    if expected is not None:
        raise SlotLost(
            f"The replication slot {name} no longer exists. The changes since {positions.as_text(expected)} can't be captured any more."
        )
    if not owned:
        raise SourceStopped(f"The captured server has no replication slot {name}.", create_statement(name))


def create_statement(name: str) -> str:
    """Return the statement that creates a slot."""
    return f"select pg_create_logical_replication_slot('{name}', '{PLUGIN}');"


async def _create(connection: SourceConnection, name: str, timeout: float) -> int:
    # From 17 on a standby can keep a copy of the slot, which survives a failover.
    failover = ", failover => true" if connection.version >= 170000 else ""
    await connection.query(f"set statement_timeout = '{max(int(timeout * 1000), 1)}ms'")
    try:
        ((position,),) = await connection.query(
            f"select lsn from pg_catalog.pg_create_logical_replication_slot($1, '{PLUGIN}'{failover})", name
        )
    except SourceRefused as error:
        raise await _creation_error(connection, name, error) from error
    finally:
        await _reset_timeout(connection)
    return positions.parse(position or "0/0")


async def _reset_timeout(connection: SourceConnection) -> None:
    try:
        await connection.query("set statement_timeout = 0")
    except SourceUnavailable:
        return  # the setting is gone with the connection


async def _creation_error(connection: SourceConnection, name: str, error: SourceRefused) -> HeadraceError:
    if error.sqlstate == "42710":
        return SourceUnavailable(f"Another client has just created the replication slot {name}.")
    if error.sqlstate == "42501":
        ((role,),) = await connection.query("select quote_ident(current_user)")
        return SourceStopped(
            f"The role {role} may not create the replication slot {name} ({error.server_message}). It needs the attribute replication.",
            f"alter role {role} replication;",
        )
    if error.sqlstate != "57014":
        return server_errors.setup_error(error)
    return SourceUnavailable(
        f"The replication slot {name} can't be created yet. It waits for transactions that were open before. {await oldest_open_transaction(connection)}."
    )


async def oldest_open_transaction(connection: SourceConnection) -> str:
    """Return text for people about the oldest transaction that the creation of a slot waits for."""
    if rows := await connection.query(_OLDEST_TRANSACTION):
        ((pid, user, since),) = rows
        owner = f" of {user}, open since {since}" if since else ""
        return f"The oldest is that of pid {pid}{owner}. To end it, run: select pg_terminate_backend({pid})"
    if rows := await connection.query(_OLDEST_PREPARED):
        ((gid, since),) = rows
        return (
            f"One is the prepared transaction {gid!r}, since {since}. End it with commit prepared or rollback prepared"
        )
    return "They have ended meanwhile"


async def terminate_own_reader(connection: SourceConnection, name: str, slot: Slot, application_name: str) -> Slot:
    """Terminate the source's own connection that uses the slot."""
    deadline = time.monotonic() + RELEASE_TIMEOUT
    while slot.pid is not None:
        has_left = slot.user is None  # the client left between the server's reads of its two views
        if not has_left and slot.application != application_name:
            raise SourceStopped(slot.in_use(name))
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"The replication slot {name} is still in use by an earlier connection of this source, pid {slot.pid}."
            )
        await _terminate(connection, slot.pid)
        await anyio.sleep(0.05)
        current = await find_slot(connection, name)
        if current is None:
            raise SlotLost(f"The replication slot {name} has just been dropped.")
        slot = current
    return slot


async def _terminate(connection: SourceConnection, pid: str) -> None:
    try:
        await connection.query("select pg_catalog.pg_terminate_backend($1::int)", pid)
    except SourceRefused as error:
        raise server_errors.setup_error(error) from error
