"""Captures in tests: create them, run them in this process, wait for them, and always drop their slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import anyio
import asyncpg

from headrace import App, store
from headrace.model.capture import CaptureInfo
from headrace.model.specs import StreamSpec
from headrace.sources.postgres.capture.capturing import Capturing
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec

PATIENCE = 60.0
"""Timeout of every operation here in seconds, after which it counts as hung."""

PAUSE = 0.02
"""Pause between two polls in seconds. It leaves the processor to the process that is waited for."""


async def make(database: store.Database, /, **settings: Any) -> PostgresSpec:
    """Create a source, and its stream unless that exists. The source's name defaults to the stream's."""
    spec = PostgresSpec(name=settings.pop("name", settings["stream"]), **settings)
    await store.create_stream(database, StreamSpec(name=spec.stream, one_message_per_key=spec.mode == "rows"))
    assert await store.create_source(database, spec.name, "postgres", spec.stream, spec.settings())
    return spec


@asynccontextmanager
async def capturing(dsn: str, *, within: float = PATIENCE, limits: CaptureLimits | None = None) -> AsyncIterator[App]:
    """Run a capturing process as part of this one. It is drained at the end."""
    app = App(dsn)
    app.attach(Capturing(limits=limits or CaptureLimits()))
    with anyio.fail_after(within):
        async with app.running():
            yield app


async def until(executor: Any, question: str, *args: Any, within: float = PATIENCE) -> Any:
    """Poll until the answer is true. Returns the answer."""
    try:
        with anyio.fail_after(within):
            while True:
                if answer := await executor.fetchval(question, *args):
                    return answer
                await anyio.sleep(PAUSE)
    except TimeoutError:
        raise TimeoutError(f"not within {within:.0f} s: {question} {args}; captures: {await _show(executor)}") from None


async def _show(executor: Any) -> list[dict[str, Any]]:
    try:
        return [
            dict(row)
            for row in await executor.fetch("select state, reason, mend, held_until from headrace_internal.captures")
        ]
    except asyncpg.PostgresError:  # queries a captured database, not Headrace's
        return []


async def until_state(database: Any, name: str, state: str, *, within: float = PATIENCE) -> CaptureInfo:
    """Wait until the source is in this state. Returns its status."""
    with anyio.fail_after(within):
        while True:
            info = (await store.source(database, name)).capture
            assert info is not None
            if info.state == state:
                return info
            await anyio.sleep(PAUSE)


async def until_message(database: Any, stream: str, marker: str, *, within: float = PATIENCE) -> int:
    """Wait until there is a message whose data contains this text. Returns its seq."""
    found: int = await until(
        database,
        f"""select min(seq) from headrace_streams."{stream}" where position($1 in data::text) > 0""",
        marker,
        within=within,
    )
    return found


async def until_tracked(database: Any, name: str, *, within: float = PATIENCE) -> None:
    """Wait until the source captures, so that every later commit becomes messages. Fails immediately if the source has
    stopped.
    """
    state = await until(
        database,
        """select c.state from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id
           where o.name = $1 and (c.state = 'stopped' or
               c.state = 'running' and exists (select from headrace_internal.capture_positions where source_id = c.source_id))""",
        name,
        within=within,
    )
    assert state == "running", await _show(database)


async def position(database: Any, name: str) -> int:
    """Return the position of the source as a number."""
    found: int = await database.fetchval(
        """select (position - '0/0')::bigint from headrace_internal.capture_positions where source_id = (select id from headrace_internal.sources where name = $1)
           order by id desc limit 1""",
        name,
    )
    return found


async def until_all_is_captured(database: Any, name: str, statement: str, *, on: Any = None) -> None:
    """Make a last change to a captured table, and wait until everything up to it is in the stream.

    Args:
        statement: Makes the change.
        on: The connection to make it on. The default is Headrace's own database.
    """
    there = on if on is not None else database
    before = await there.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
    await there.fetch(statement)
    await until(
        database,
        """select exists (select from headrace_internal.capture_positions where (position - '0/0')::bigint > $2
                          and source_id = (select id from headrace_internal.sources where name = $1))""",
        name, before,
    )  # fmt: skip


async def set_in_database(connection: Any, setting: str, value: str) -> None:
    """Set a parameter for all sessions that start from now on in the connection's database, including WAL senders."""
    name = await connection.fetchval("select quote_ident(current_database())")
    await connection.execute(f"alter database {name} set {setting} = '{value}'")


async def end_tenures(database: Any) -> None:
    """Expire all capture leases, as time does. A dead process is succeeded immediately, and a live process
    has lost its lease.
    """
    await database.fetchval("update headrace_internal.captures set held_until = '-infinity'")


async def holder(database: Any, name: str) -> UUID | None:
    """Return the process that captures the source."""
    found: UUID | None = await database.fetchval(
        "select holder from headrace_internal.captures where source_id = (select id from headrace_internal.sources where name = $1)",
        name,
    )
    return found


async def drop_slots(dsn: str) -> None:
    """Drop all logical slots of a database, even slots that are in use."""
    with anyio.CancelScope(shield=True):
        connection = await asyncpg.connect(dsn)
        try:
            with anyio.fail_after(PATIENCE):
                while slots := await connection.fetch(
                    "select slot_name, active_pid from pg_replication_slots where database = current_database()"
                ):
                    for slot, pid in slots:
                        await _drop(connection, slot, pid)
        finally:
            await connection.close()


async def _drop(connection: Any, slot: str, pid: int | None) -> None:
    if pid is not None:
        await connection.fetchval("select pg_terminate_backend($1, 5000)", pid)
    try:
        await connection.fetchval("select pg_drop_replication_slot($1)", slot)
    except (asyncpg.ObjectInUseError, asyncpg.UndefinedObjectError):
        await anyio.sleep(PAUSE)


@asynccontextmanager
async def slots_dropped(dsn: str) -> AsyncIterator[None]:
    """Drop all slots of the database at the end, whatever happens. With a slot the server would keep
    its WAL forever and refuse to drop the database.
    """
    try:
        yield
    finally:
        await drop_slots(dsn)
