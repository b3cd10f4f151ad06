"""Connections to a pooler that die in silence, where nobody knows which backend works for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace import App, store
from tests.conftest import Connect
from tests.runtime.running import running
from tests.support.silence import Proxy, proxied
from tests.support.silent_work import go_on_over_deaths, note_orders, wait_for_a_lock


@pytest_asyncio.fixture
async def proxy(pooled_dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(pooled_dsn) as proxy:
        yield proxy


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
async def test_a_call_that_the_server_works_on_is_waited_for(proxy: Proxy, connect: Connect) -> None:
    database, holder = store.Database(proxy.url()), await connect()
    await database.open()
    try:
        await wait_for_a_lock(database, holder)
        assert database.statistics()["died"] == 0
    finally:
        await database.close()
