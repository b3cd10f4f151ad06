"""Connections between two calls: the next call takes the last one, and nothing that a call left behind reaches it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.store.connections import pool
from headrace.store.connections import spare as spares

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def two(empty_dsn: str) -> AsyncIterator[store.Database]:
    """A database with two connections at most."""
    database = store.Database(empty_dsn, max_connections=2, connect_timeout=5)
    await database.open()
    yield database
    await database.close()


async def _backend(database: store.Database) -> int:
    pid: int = await database.fetchval("select pg_backend_pid()")
    return pid


async def test_a_call_takes_the_connection_of_the_call_before_it(two: store.Database) -> None:
    assert len({await _backend(two) for _ in range(5)}) == 1
    assert (two.statistics()["open"], two.statistics()["idle"]) == (1, 1)


async def test_calls_that_wait_are_served_by_the_connections_that_become_free(two: store.Database) -> None:
    served = []

    async def call() -> None:
        served.append(await _backend(two))

    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(call)
    assert len(served) == 40
    assert len(set(served)) == 2


async def test_a_call_takes_a_connection_that_is_released_before_it_opens_another(
    two: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 3600.0)
    served = []

    async def call() -> None:
        served.append(await _backend(two))

    async with anyio.create_task_group() as group, two.connections.connection() as connection:
        first = await connection.fetchval("select pg_backend_pid()")
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert served == []
    assert served == [first]
    assert two.statistics()["open"] == 1


async def test_a_call_opens_a_connection_if_none_is_released(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        assert await _backend(two) != await connection.fetchval("select pg_backend_pid()")


async def test_few_connections_are_opened_at_a_time(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = store.Database(empty_dsn, max_connections=8)
    await database.open()
    opening, most, gate = 0, 0, anyio.Event()
    connect = database._connector._connect

    async def slow(*args: Any) -> Any:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        await gate.wait()
        try:
            return await connect(*args)
        finally:
            opening -= 1

    monkeypatch.setattr(database._connector, "_connect", slow)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(database.fetchval, "select pg_sleep(0.01)")
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert most == pool.OPENED_AT_A_TIME
    await database.close()


async def test_a_caller_that_gives_up_leaves_its_turn_to_the_next(
    two: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 3600.0)
    served = []

    async def call(scope: anyio.CancelScope | None = None) -> None:
        with scope or anyio.CancelScope():
            served.append(await _backend(two))

    async with anyio.create_task_group() as group, two.connections.connection():
        for scope in (anyio.CancelScope(), anyio.CancelScope(), None):
            group.start_soon(call, scope)
            await anyio.wait_all_tasks_blocked()
            if scope is not None:
                scope.cancel()
    assert len(served) == 1


async def test_a_transaction_that_a_call_left_open_is_ended(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        before = await connection.fetchval("select pg_backend_pid()")
        await connection.execute("begin")
    assert await _backend(two) != before


async def test_a_connection_that_still_listens_is_closed(two: store.Database) -> None:
    hold = await two.begin(30)
    await hold.connection.add_listener("news", lambda *_: None)
    await hold.commit()
    connection = hold.connection._con
    await two.end(hold)
    assert connection.is_closed()
    assert await two.fetchval("select count(*) from pg_listening_channels()") == 0
    assert two.statistics()["open"] == 1


async def test_a_connection_that_broke_is_replaced(two: store.Database) -> None:
    before = await _backend(two)
    async with two.connections.connection() as connection:
        connection.terminate()
    assert await _backend(two) != before


async def test_a_spare_connection_that_broke_is_replaced(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        before, spare = await connection.fetchval("select pg_backend_pid()"), connection._con
    spare.terminate()
    assert await _backend(two) != before
    assert two.statistics()["open"] == 1


async def test_expired_connections_are_replaced_also_if_they_were_in_use(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        in_use = await connection.fetchval("select pg_backend_pid()")
        spare = await _backend(two)
        await two.connections.expire()
    assert not {in_use, spare} & {await _backend(two) for _ in range(2)}


async def test_a_connection_that_is_unused_for_a_while_returns_to_the_pool(
    two: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "SPARE_TIME", 0.0)
    before = await _backend(two)
    pool, spare = two.connections._pool, two.connections._spare
    while len(spare) or spare._unused.ending:
        await anyio.lowlevel.checkpoint()
    assert pool.get_idle_size() == 1
    assert await _backend(two) == before


async def test_a_connection_that_is_closed_during_its_return_is_no_error(two: store.Database) -> None:
    pool = two.connections._pool
    connection = await pool.acquire()
    returning = asyncio.ensure_future(spares.release(pool, connection))
    await anyio.lowlevel.checkpoint()  # asyncpg's own task for the return has not begun
    connection._con.terminate()
    await returning
    assert pool.get_idle_size() == 0


async def test_a_call_succeeds_although_its_connection_breaks_after_it(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        await connection.execute("create temporary table kept (n int)")
        connection._con._reset = AsyncMock(side_effect=asyncpg.ConnectionDoesNotExistError("gone"))
        two.connections._spare._expired_at = math.inf  # so that it goes through the pool
    assert connection._con is None


async def test_a_closed_database_keeps_no_connection(two: store.Database) -> None:
    async with two.connections.connection() as connection:
        inner = connection._con
        await two.close()
    assert inner.is_closed()
    with pytest.raises(StoreUnavailable, match="not open"):
        await _backend(two)


async def test_a_drained_database_closes_its_spare_connections(empty_dsn: str) -> None:
    database = store.Database(empty_dsn, max_connections=2)
    await database.open()
    pid = await _backend(database)
    with anyio.fail_after(10):
        await database.drain()
    connection = await asyncpg.connect(empty_dsn)
    try:
        while await connection.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid):
            await anyio.lowlevel.checkpoint()
    finally:
        await connection.close()


async def test_whoever_keeps_the_connection_of_a_handler_can_not_use_it_after_the_handler(two: store.Database) -> None:
    hold = await two.begin(30)
    connection = hold.connection
    await hold.commit()
    await two.end(hold)
    for _ in range(3):
        await _backend(two)
        with pytest.raises(asyncpg.InterfaceError):
            await connection.execute("select 1")
