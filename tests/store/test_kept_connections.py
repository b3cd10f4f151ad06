"""Connections that are kept at hand between calls: they are the same as the pool's, and none is lost to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace.model.errors import InvalidData
from headrace.store import Database
from headrace.store.database import connection
from headrace.store.database.connection import KeptConnections, unused

pytestmark = pytest.mark.asyncio

BACKEND = "select pg_backend_pid()"


@pytest_asyncio.fixture
async def small(database: Database) -> AsyncIterator[Database]:
    """A database with two connections at most."""
    made = Database(database.dsn, max_connections=2)
    await made.open()
    yield made
    await made.close()


def kept(database: Database) -> KeptConnections:
    return database._kept


async def test_the_next_call_gets_the_connection_of_the_last(small: Database) -> None:
    first = await small.fetchval(BACKEND)
    assert len(kept(small)) == 1
    assert await small.fetchval(BACKEND) == first
    assert small.statistics()["idle"] == small.statistics()["open"] == 1


async def test_calls_at_the_same_time_have_a_connection_each_and_no_more_than_there_may_be(
    small: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEPT_FOR", 3600.0)  # whoever waited for one that is kept would wait that long
    found = set()

    async def call() -> None:
        found.add(await small.fetchval("select pg_backend_pid() from pg_sleep(0.01)"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(call)
    assert len(found) == 2
    assert small.statistics()["open"] == 2


async def test_they_go_back_to_the_pool_when_their_time_is_over(small: Database) -> None:
    before = await small.fetchval(BACKEND)
    kept(small)._begin_giving_back()
    await kept(small)._task  # type: ignore[misc]
    assert len(kept(small)) == 0
    assert await small.fetchval(BACKEND) == before


async def test_an_error_of_the_server_leaves_the_connection_usable(small: Database) -> None:
    before = await small.fetchval(BACKEND)
    with pytest.raises(InvalidData):
        await small.fetchval("select 1/0")
    assert len(kept(small)) == 1
    assert await small.fetchval(BACKEND) == before


async def test_the_connection_of_a_cancelled_call_is_not_kept(small: Database) -> None:
    with anyio.move_on_after(0.05) as scope:
        await small.fetchval("select pg_sleep(10)")
    assert scope.cancelled_caught
    assert len(kept(small)) == 0
    assert await small.fetchval("select 7") == 7


async def test_a_connection_on_which_a_transaction_is_open_is_not_kept(small: Database) -> None:
    before = await small.fetchval(BACKEND)
    await small.fetchval("begin")
    assert len(kept(small)) == 0
    assert await small.fetchval(BACKEND) != before


async def test_a_connection_that_the_server_has_closed_is_not_used_again(small: Database, database: Database) -> None:
    backend = await small.fetchval(BACKEND)
    await database.fetchval("select pg_terminate_backend($1, 10000)", backend)
    last = kept(small)._kept[0]
    with anyio.fail_after(10):
        while unused(last):  # noqa: ASYNC110 - the driver notices it by reading
            await anyio.sleep(0.001)
    assert await small.fetchval(BACKEND) != backend
    assert small.statistics()["open"] == 1


async def test_they_are_replaced_when_connections_are_found_dead(small: Database) -> None:
    before = await small.fetchval(BACKEND)
    await small._expire()
    assert await small.fetchval(BACKEND) != before


async def test_a_transaction_of_a_handler_gets_one_that_is_kept_and_returns_it_to_the_pool(small: Database) -> None:
    before = await small.fetchval(BACKEND)
    hold = await small.begin(10)
    assert await hold.connection.fetchval(BACKEND) == before
    await small.end(hold)
    assert len(kept(small)) == 0
    with pytest.raises(asyncpg.InterfaceError):  # whoever has kept the handler's connection can't use it
        await hold.connection.fetchval("select 1")


async def test_all_connections_are_closed_in_the_end(small: Database, database: Database) -> None:
    for end in (small.drain, small.close):
        await small.open()
        backend = await small.fetchval(BACKEND)
        with anyio.fail_after(10):
            await end()
            while await database.fetchval("select count(*) from pg_stat_activity where pid = $1", backend):  # noqa: ASYNC110
                await anyio.sleep(0.001)
