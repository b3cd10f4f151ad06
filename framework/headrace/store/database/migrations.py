"""Upgrades of the schema: migrations of tables, and functions that are created or replaced.

An upgrade is one transaction under a transaction-level advisory lock. So two processes that start at the same
time don't conflict, and an upgrade that fails leaves nothing behind. It only goes up: a process never installs
what is older than what is there.

Changes of tables need locks that a long transaction can withhold, and all other processes would queue behind
an upgrade that waits for it. So the upgrade waits for a lock only a moment, gives up with all that it has
locked, and tries again later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import anyio
import asyncpg
import msgspec

from headrace.model.errors import HeadraceError, InUse, SchemaError
from headrace.model.log import Log
from headrace.model.text.masking import masked
from headrace.model.text.sql import without_timeouts
from headrace.store.database import revisions
from headrace.store.database.database import Database
from headrace.store.database.ownership import become_owner, current_owner, may_migrate
from headrace.store.database.revisions import Migration
from headrace.store.database.schema import SchemaState, read_state, require_schema

log = Log("headrace")

LOCK_TIMEOUT = 0.2
"""The longest wait for a lock, in seconds. The work of other processes may queue behind it for so long."""

QUEUE_TIMEOUT = 30.0
"""The longest wait for another upgrade, in seconds, before it is reported. Nothing queues behind it."""

STATEMENT_TIMEOUT = 86400.0
"""The timeout of a migration's statements, in seconds. One that copies a large table takes its time."""

MIN_DELAY, MAX_DELAY = 0.1, 5.0
"""Bounds of the delay before it is tried again, in seconds."""

REPORT_INTERVAL = 10.0
"""Seconds between reports of what an upgrade waits for."""

_LOCK = "select pg_advisory_xact_lock(1212498508, -1)"

# What the role or the database may have set otherwise. Read committed, since the state must be read as it is after the
# wait for another upgrade. The statements are many and sent together, their strings contain backslashes, and no name
# in them may mean an object of the user's.
_BEGIN = f"""
set transaction isolation level read committed;
{without_timeouts("statement_timeout", "transaction_timeout")};
set local lock_timeout = {QUEUE_TIMEOUT * 1000:.0f};
set local standard_conforming_strings = on;
set local search_path = pg_catalog, pg_temp;
"""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How an upgrade waits for locks and for older processes.

    Attributes:
        lock_timeout: seconds to wait for a lock, before it gives way to the others and tries again.
        timeout: seconds after which it gives up. None tries for as long as it takes.
        report: called with what it waits for, a phrase each, at first and every 10 seconds.
        sleep: waits so many seconds between two tries.
    """

    lock_timeout: float = LOCK_TIMEOUT
    timeout: float | None = None
    report: Callable[[Sequence[str]], None] = lambda reasons: log.warning(
        "schema upgrade waits", reasons="; ".join(reasons)
    )
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


PATIENCE = Patience()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate` would do.

    Attributes:
        state: the schema as it is.
        migrations: the migrations that it would apply.
        functions: whether it would install the functions.
        in_the_way: running processes that the new schema would not serve, a phrase each.
        refusal: why it would do nothing and fail, or None.
    """

    state: SchemaState
    migrations: tuple[Migration, ...]
    functions: bool
    in_the_way: tuple[str, ...] = ()
    refusal: str | None = None


class _Blocked(Exception):
    """An attempt gave way. The reasons are phrases."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


async def migrate(
    database: Database, *, owner: str | None = None, reinstall: bool = False, patience: Patience = PATIENCE
) -> list[str]:
    """Upgrade the schema to this code's revision. A schema of a later revision is left alone.

    A role that is neither the owner of the schema nor a member of it needs a schema that is up to date.

    Args:
        owner: the role that is to own the schema, and all that is created in it later. None leaves it to the present
            owner, or to the current role for a new schema.
        reinstall: replace the functions also if the schema has this code's revision, as after somebody changed them,
            or while a revision is developed.

    Returns:
        What was done, a phrase for each step. Empty if nothing was.

    Raises:
        SchemaError: the schema doesn't serve this code any more, or other software owns it, or there is something to
            do that the role may not do.
        InUse: something was in the way until `patience.timeout`.
    """
    started, reported, delay = monotonic(), float("-inf"), MIN_DELAY
    while True:
        try:
            done = await _attempt(database, owner, reinstall, patience)
            await database.learn_ownership()  # there may have been no schema when it was opened
            return done
        except _Blocked as blocked:
            if patience.timeout is not None and monotonic() - started >= patience.timeout:
                raise InUse(
                    f"The schema in {masked(database.dsn)} was not upgraded within {patience.timeout:g} s. It"
                    f" waits for: {'; '.join(blocked.reasons)}. Nothing was changed. End them, or try again later."
                ) from None
            if monotonic() - reported >= REPORT_INTERVAL:
                patience.report(blocked.reasons)
                reported = monotonic()
        await patience.sleep(delay * random.uniform(0.5, 1.0))
        delay = min(delay * 2, MAX_DELAY)


async def plan_migration(database: Database) -> Plan:
    """What `migrate` would do. It takes no locks."""
    async with database.transaction() as connection:
        state = await read_state(connection)
        refusal = state.refusal(database.dsn)
        missing = () if refusal else tuple(_missing(state))
        older = []
        if state.revision and missing and await may_migrate(connection):
            older = await _older_processes(connection, _serves_from(state, missing))
    return Plan(state=state, migrations=missing, functions=bool(missing), in_the_way=tuple(older), refusal=refusal)


async def schema_state(database: Database) -> SchemaState:
    """The state of the schema in the database."""
    async with database.transaction() as connection:
        return await read_state(connection)


async def schema_version(database: Database) -> int:
    """The revision of the schema in the database, 0 for none."""
    return (await schema_state(database)).revision


async def require_current_schema(database: Database) -> None:
    """Raise `SchemaError` if this code can't use the schema as it is."""
    async with database.transaction() as connection:
        await require_schema(connection, database.dsn)


# --- one attempt


async def _attempt(database: Database, owner: str | None, reinstall: bool, patience: Patience) -> list[str]:
    async with database.transaction() as connection:
        state = await _accepted(connection, database)
        present = await current_owner(connection)
        if not _work(state, reinstall) and owner in (None, present):
            return []
        if not await may_migrate(connection):
            raise SchemaError(await _refused_to_migrate(connection, database, state, present))
    async with database.transaction() as connection, _giving_way(database, connection):
        await connection.execute(_LOCK)
        state = await _accepted(connection, database)
        missing = _missing(state)
        work = _work(state, reinstall)
        if not work and owner in (None, await current_owner(connection)):
            return []
        await connection.execute(f"set local lock_timeout = {patience.lock_timeout * 1000:.0f}")
        if state.revision == 0:
            await _refuse_foreign_tables(connection, database)
        elif older := await _older_processes(connection, _serves_from(state, missing)):
            raise _Blocked(older)
        done = await become_owner(connection, owner)
        if state.revision == 0:
            await connection.execute(_GROUND)
        return [*done, *(await _upgrade(connection, state, missing) if work else [])]


async def _refused_to_migrate(
    connection: asyncpg.Connection[Any], database: Database, state: SchemaState, owner: str | None
) -> str:
    role = await connection.fetchval("select current_user::text")
    reason = state.outdated(database.dsn) or f"The schema in {masked(database.dsn)} belongs to the role {owner!r}."
    return (
        f"{reason} The role {role!r} may not change it. Run the command as a member of the owner {owner!r}, or as a superuser:"
        " headrace migrate --database URL"
    )


async def _upgrade(connection: asyncpg.Connection[Any], state: SchemaState, missing: Sequence[Migration]) -> list[str]:
    done = []
    for index, migration in enumerate(missing, 1):
        # The driver can't send a text without a statement, and a migration may consist of a comment.
        await connection.execute(f"{migration.sql}\n; select", timeout=STATEMENT_TIMEOUT)
        await connection.execute(
            "insert into headrace_internal.migrations (version, name, serves_from) values ($1, $2, $3)",
            migration.version,
            migration.name,
            _serves_from(state, missing[:index]),
        )
        done.append(f"applied migration {migration.version} ({migration.name})")
    text = revisions.functions()
    await connection.execute(text, timeout=STATEMENT_TIMEOUT)
    await connection.execute(
        "update headrace_internal.migrations set functions = $1 where version = (select max(version) from headrace_internal.migrations)",
        revisions.digest(text),
    )
    if state.revision == 0:  # no older process can run
        await connection.execute("update headrace_internal.features set switched_on_at = clock_timestamp()")
    return [*done, "installed the server functions"]


async def _accepted(connection: asyncpg.Connection[Any], database: Database) -> SchemaState:
    """The state of the schema. Raises `SchemaError` if it doesn't serve this code."""
    state = await read_state(connection)
    if (reason := state.refusal(database.dsn)) is not None:
        raise SchemaError(reason)
    return state


def _missing(state: SchemaState) -> list[Migration]:
    return [migration for migration in revisions.migrations() if migration.version > state.revision]


def _work(state: SchemaState, reinstall: bool) -> bool:
    """Whether there is something to do."""
    return bool(_missing(state)) or (reinstall and state.revision == revisions.newest_revision())


def _serves_from(state: SchemaState, missing: Sequence[Migration]) -> int:
    """The oldest revision that the schema serves after these migrations. A feature that was switched on raised it, too."""
    return max(state.serves_from, *(migration.serves_from for migration in missing), 1)


# --- what it waits for


@asynccontextmanager
async def _giving_way(database: Database, connection: asyncpg.Connection[Any]) -> AsyncIterator[None]:
    """Set up the transaction of an attempt. Raise `_Blocked` with the sessions that hold a lock, if a statement of
    the block waits for it too long.
    """
    blockers: dict[int, str] = {}
    await connection.execute(_BEGIN)
    pid = await connection.fetchval("select pg_backend_pid()")
    watch = asyncio.create_task(_watch(database, pid, blockers))
    try:
        yield
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        raise _Blocked(list(blockers.values()) or ["a lock of another session"]) from None
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _watch(database: Database, pid: int, blockers: dict[int, str]) -> None:
    """Note the sessions that block the backend `pid`, over another connection, until cancelled."""
    with suppress(HeadraceError, asyncpg.PostgresError):  # without them, the report is less exact
        while True:
            await asyncio.sleep(LOCK_TIMEOUT / 4)
            found = await database.fetch(_BLOCKERS, pid)
            if found:
                blockers.clear()
                blockers.update({row["pid"]: row["phrase"] for row in found})


_BLOCKERS = """
select a.pid, concat_ws(' ',
    format('the session %s of %s', a.pid, coalesce(nullif(a.application_name, ''), a.usename, a.backend_type)),
    format('(%s for %s s%s)', coalesce(a.state, 'running'),
        coalesce(round(extract(epoch from clock_timestamp() - coalesce(a.xact_start, a.backend_start)))::text, '?'),
        case when a.query <> '' then ': ' || left(regexp_replace(a.query, '\\s+', ' ', 'g'), 60) end)) as phrase
from pg_stat_activity as a where a.pid = any (pg_blocking_pids($1)) order by a.xact_start nulls last
"""


async def _older_processes(connection: asyncpg.Connection[Any], revision: int) -> list[str]:
    """Running processes that are older than a revision, a phrase each."""
    rows = await connection.fetch(
        """select format('the process %s of %s, which has revision %s and the new schema serves from revision %s on',
                         w.facts ->> 'pid', w.facts ->> 'host', coalesce(w.facts ->> 'revision', '1'), $1::int) as phrase
           from headrace_internal.workers as w
           where w.seen_at >= clock_timestamp() - interval '60 seconds' and coalesce((w.facts ->> 'revision')::int, 1) < $1
           order by w.seen_at limit 100""",
        revision,
    )
    return [row["phrase"] for row in rows]


# --- the ground


_GROUND = """
create schema if not exists headrace;
create schema if not exists headrace_internal;
create schema if not exists headrace_streams;
create table headrace_internal.migrations (
    version      int primary key,
    name         text not null,
    serves_from  int not null,      -- the oldest revision whose processes work with the schema
    functions    text,              -- the SHA-256 of the server functions' text
    applied_at   timestamptz not null default clock_timestamp()
);
comment on schema headrace is 'Headrace: functions for users. select headrace.publish(stream, key, data)';
comment on schema headrace_internal is 'Headrace: its tables and functions, which may change with each version';
comment on schema headrace_streams is 'Headrace: one table of messages per stream';
"""


async def _refuse_foreign_tables(connection: asyncpg.Connection[Any], database: Database) -> None:
    # Headrace has had only views in this database schema since its first release.
    table = await connection.fetchval("select min(tablename) from pg_tables where schemaname = 'headrace'")
    if table is not None:
        raise SchemaError(
            f"The database schema headrace in {masked(database.dsn)} has tables already, such as headrace.{table}. Other"
            " software or a version of Headrace before 0.1.0 created them. Use another database, or remove the schema"
            " with all its data: drop schema headrace cascade."
        )
