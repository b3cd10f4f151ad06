"""Connections to a pooler that die in silence, where nobody knows which backend works for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace import App, store
from tests.conftest import Connect
from tests.runtime.running import Seen, running
from tests.runtime.test_silence import SOON, in_order, publish
from tests.support.silence import Proxy, proxied


@pytest_asyncio.fixture
async def proxy(pooled_dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(pooled_dsn) as proxy:
        yield proxy


@pytest.mark.asyncio
async def test_handlers_go_on_within_seconds_when_every_connection_to_the_pooler_died_in_silence(
    database: store.Database, proxy: Proxy
) -> None:
    app, seen = App(proxy.url()), Seen()

    @app.consumer("orders")
    async def ship(order: int) -> None:
        seen.note(order)

    async with running(app):
        assert app.database.pooled
        for first in (0, 100, 200):
            await publish(database, range(first, first + 100))
            async with asyncio.timeout(SOON):
                while set(seen.notes) != set(range(first + 100)):
                    await seen.until(len(seen.notes) + 1)
                await app.idle()
            proxy.forget()
    assert in_order(seen.notes)


@pytest.mark.asyncio
async def test_a_call_that_the_server_works_on_is_waited_for(proxy: Proxy, connect: Connect) -> None:
    database, holder = store.Database(proxy.url()), await connect()
    await database.open()
    try:
        await holder.execute("select pg_advisory_lock(7)")
        waiting = asyncio.create_task(database.fetchval("select 1 from pg_advisory_xact_lock(7)"))
        async with asyncio.timeout(SOON):
            while database._detector.looks < 3:
                await holder.execute("select pg_sleep(0.05)")
            await holder.execute("select pg_advisory_unlock(7)")
            assert await waiting == 1
        assert database.statistics()["died"] == 0
    finally:
        await database.close()
