"""Connections to a pooler die in silence, and the client does not know which backend serves which connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.store.connections.connection import Connection
from tests.conftest import Connect
from tests.runtime.running import running
from tests.support.servers import opened
from tests.support.silence import Proxy, proxied
from tests.support.silent_work import SOON, go_on_over_deaths, note_orders, wait_for_a_lock


@pytest_asyncio.fixture
async def proxy(pooled_dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(pooled_dsn) as proxy:
        yield proxy


@pytest.mark.long
@pytest.mark.asyncio
async def test_handlers_go_on_within_seconds_when_every_connection_to_the_pooler_died_in_silence(
    database: store.Database, proxy: Proxy
) -> None:
    app = App(proxy.url())
    seen = note_orders(app)
    async with running(app):
        assert app.database.pooled
        await go_on_over_deaths(app, seen, database, proxy)


@pytest.mark.asyncio
@pytest.mark.long
async def test_a_call_that_the_server_works_on_is_waited_for(proxy: Proxy, connect: Connect) -> None:
    async with opened(proxy.url()) as database:
        await wait_for_a_lock(database, await connect())
        assert database.statistics()["died"] == 0


@pytest.mark.asyncio
async def test_a_transaction_that_died_in_the_middle_of_a_statement_lets_go_of_its_locks(
    database: store.Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver prepares a statement and then sends the arguments. In between the statement counts as
    active, and no timeout of the server ends it.
    """
    prepare = Connection._get_statement

    async def prepare_and_die(self: Any, query: str, *args: Any, **options: Any) -> Any:
        statement = await prepare(self, query, *args, **options)
        if "into work" in query:
            proxy.forget()
        return statement

    monkeypatch.setattr(Connection, "_get_statement", prepare_and_die)
    await database.fetch("create table work (name text primary key)")
    async with opened(proxy.url()) as through, asyncio.timeout(SOON):
        hold = await through.begin(60.0)
        await hold.connection.execute("lock table work")
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await hold.connection.execute("insert into work values ($1)", "a")
        await through.end(hold)
        assert await database.fetch("select * from work") == []  # waits for the lock
