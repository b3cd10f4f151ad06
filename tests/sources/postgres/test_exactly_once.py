"""Each change is in the stream once and in order, whatever dies, freezes or is disconnected.

`tests/torture` kills processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.errors import LeaseLost
from tests.support import captures, clusters
from tests.torture.capture_judge import Replica, check_places, taken
from tests.torture.capture_process import capturer

pytestmark = pytest.mark.asyncio

TABLE = "create table t (id int primary key, v int)"

# A transaction of several changes, so that a partial one would be visible.
CHANGE = (
    "with n as (insert into t values ($1, 0), (-$1, 0) returning id) update t set v = $1 where id in ($1 - 1, 1 - $1)"
)


@asynccontextmanager
async def table(database: store.Database, dsn: str | None = None) -> AsyncIterator[Any]:
    """A connection to the captured database, with a table that is captured."""
    connection = await asyncpg.connect(dsn or database.dsn)
    try:
        await connection.execute(TABLE)
        await captures.make(database, stream="log", tables=("public.t",), backfill=False, database=dsn)
        async with captures.slots_dropped(dsn or database.dsn):
            yield connection
    finally:
        await connection.close()


async def change(connection: Any, first: int, last: int) -> None:
    for n in range(first, last + 1):
        await connection.execute(CHANGE, n)


async def settled(database: store.Database, connection: Any) -> None:
    """Wait until everything is captured, and compare it with the table."""
    await captures.until_all_is_captured(database, "log", "insert into t values (1000000)", on=connection)
    messages = await taken(database, "log")
    check_places(messages, whole=True)
    replica = Replica({"public.t": ["id"]}).all(messages)
    replica.compare("public.t", [dict(row) for row in await connection.fetch("select * from t")])


async def test_a_connection_that_is_cut_again_and_again(database: store.Database) -> None:
    async with table(database) as connection, captures.capturing(database.dsn):
        await captures.until_tracked(database, "log")
        for n in range(5):
            await change(connection, 100 * n + 1, 100 * n + 50)
            await captures.until(
                connection,
                """select pg_terminate_backend(active_pid) from pg_replication_slots
                   where database = current_database() and active_pid is not null""",
            )
            await change(connection, 100 * n + 51, 100 * n + 100)
        await settled(database, connection)


async def test_all_connections_to_the_database_are_cut_again_and_again(database: store.Database) -> None:
    async with table(database) as connection, captures.capturing(database.dsn):
        await captures.until_tracked(database, "log")
        for n in range(4):
            await change(connection, 100 * n + 1, 100 * n + 50)
            # This includes connections to Headrace's tables, perhaps during an append, or between its
            # commit and the reply.
            await connection.fetch(
                """select pg_terminate_backend(pid) from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')
                   and application_name like 'headrace%'"""
            )
            await change(connection, 100 * n + 51, 100 * n + 100)
        await captures.until_tracked(database, "log")
        await settled(database, connection)


async def test_only_appended_changes_are_confirmed_to_the_server(database: store.Database) -> None:
    async with table(database) as connection:
        await captures.set_in_database(connection, "wal_sender_timeout", "1s")  # it asks for a reply twice a second
        async with captures.capturing(database.dsn), connected(database.dsn) as other:
            await captures.until_tracked(database, "log")
            async with other.transaction():
                await other.execute("lock table headrace_streams.log in share mode")  # no append can succeed
                before = await connection.fetchval("select pg_current_wal_insert_lsn()::text")
                await change(connection, 1, 50)
                for _ in range(3):  # of the coming replies the last one covers everything
                    replied = await connection.fetchval(
                        f"select coalesce(max(reply_time)::text, '-infinity') {WALSENDER}"
                    )
                    await captures.until(connection, f"select max(reply_time) > '{replied}' {WALSENDER}")
                text = f"confirmed_flush_lsn > '{before}' from pg_replication_slots where database = current_database()"
                assert await connection.fetchval(f"select {text}") is False
            await settled(database, connection)
            await captures.until(connection, f"select {text}")


WALSENDER = (
    """from pg_stat_replication join pg_replication_slots on active_pid = pid where database = current_database()"""
)


async def test_a_process_that_was_frozen_past_its_tenure_appends_nothing(
    database: store.Database, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(table(database))
        frozen = await stack.enter_async_context(capturer(database.dsn, tmp_path / "frozen"))
        await captures.until_tracked(database, "log")
        await change(connection, 1, 20)
        await captures.until(database, "select count(*) >= 40 from headrace_streams.log")
        first = await captures.holder(database, "log")
        flood = asyncio.create_task(change(connection, 21, 300))  # so that it is frozen with unappended changes
        await captures.until(database, "select count(*) >= 100 from headrace_streams.log")
        frozen.freeze()
        await flood
        await captures.end_tenures(database)
        successor = await stack.enter_async_context(captures.capturing(database.dsn))
        assert successor.statistics() is not None
        await captures.until(database, f"select holder <> '{first}' from headrace_internal.captures")
        await captures.until(database, "select count(*) >= 900 from headrace_streams.log")
        frozen.thaw()
        await frozen.said("capture ended")
        await change(connection, 301, 400)
        await settled(database, connection)
        assert await captures.holder(database, "log") != first


async def test_an_append_of_a_tenure_that_is_over_is_refused_and_leaves_nothing(database: store.Database) -> None:
    async with table(database):
        [todo] = await store.captures_to_do(database)
        old = await store.take_capture(database, todo.number, uuid4(), 60)
        assert old is not None
        await store.begin_capture(database, todo.number, old, "0/10", "1", 1)
        await captures.end_tenures(database)
        new = await store.take_capture(database, todo.number, uuid4(), 60)
        assert new == old + 1
        late = store.CaptureBatch(keys=["k"], data=["1"], position="0/20", captured=1)
        with pytest.raises(LeaseLost):
            await store.append_captured(database, todo.number, old, "log", late)
        assert await database.fetchval("select count(*) from headrace_streams.log") == 0
        assert await captures.position(database, "log") == 0x10
        await store.append_captured(database, todo.number, new, "log", late)
        assert await captures.position(database, "log") == 0x20


async def test_one_of_two_processes_captures_and_the_other_takes_over(database: store.Database, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(table(database))
        first = await stack.enter_async_context(capturer(database.dsn, tmp_path / "first"))
        await captures.until_tracked(database, "log")
        held_by = await captures.holder(database, "log")
        await stack.enter_async_context(captures.capturing(database.dsn))
        await change(connection, 1, 100)
        assert await captures.holder(database, "log") == held_by
        await first.kill()
        await captures.end_tenures(database)
        await change(connection, 101, 200)
        await settled(database, connection)
        assert await captures.holder(database, "log") not in {None, held_by}


async def test_a_process_that_ends_hands_over_at_once(database: store.Database) -> None:
    async with table(database) as connection:
        async with captures.capturing(database.dsn):
            await captures.until_tracked(database, "log")
            await change(connection, 1, 50)
        assert await captures.holder(database, "log") is None
        await change(connection, 51, 100)
        async with captures.capturing(database.dsn):
            await settled(database, connection)


@pytest.mark.process
async def test_a_server_that_crashes_and_comes_back(tmp_path: Path) -> None:
    with clusters.cluster(tmp_path / "postgres") as server:
        database = store.Database(server.url())
        await database.open()
        await store.migrate(database)
        async with table(database), captures.capturing(database.dsn, within=120):
            await captures.until_tracked(database, "log")
            for n, mode in enumerate(["immediate", "fast"]):
                async with connected(database.dsn) as connection:
                    await change(connection, 100 * n + 1, 100 * n + 100)
                await database.close()
                await anyio.to_thread.run_sync(server.restart, mode)
                await database.open()
            async with connected(database.dsn) as connection:
                await change(connection, 201, 300)
                await settled(database, connection)
        await database.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
