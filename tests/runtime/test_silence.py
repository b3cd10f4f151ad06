"""Connections that die in silence under a running app: they are not closed, and receive nothing any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import anyio
import pytest
import pytest_asyncio

from headrace import App, Message, StoreUnavailable, Transaction, store
from tests.runtime.running import Gate, eventually, running
from tests.support.logs import logged
from tests.support.silence import Proxy, proxied
from tests.support.silent_work import SOON, go_on_over_deaths, in_order, note_orders, publish


@pytest_asyncio.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(dsn) as proxy:
        yield proxy


@pytest.mark.asyncio
async def test_handlers_go_on_within_seconds_when_every_connection_died_in_silence(
    database: store.Database, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(proxy.url())
    seen = note_orders(app)
    async with running(app):
        await go_on_over_deaths(app, seen, database, proxy)
    [record, *_] = logged(caplog, "connections died silently")
    assert record.levelno == logging.WARNING
    assert vars(record)["connections"] >= 1


@pytest.mark.asyncio
@pytest.mark.long
async def test_handlers_go_on_within_seconds_after_the_network_heals(
    database: store.Database, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    app = App(proxy.url())
    seen = note_orders(app)

    async with running(app):
        await publish(database, range(100))
        await seen.until(100)
        await app.idle()
        proxy.cut()
        await publish(database, range(100, 200))
        async with asyncio.timeout(SOON):
            while not logged(caplog, "database does not answer"):
                await database.fetch("select pg_sleep(0.05)")
        proxy.heal()
        async with asyncio.timeout(SOON):
            while set(seen.notes) != set(range(200)):
                await seen.until(len(seen.notes) + 1)
            await app.idle()
    assert in_order(seen.notes)
    assert len(logged(caplog, "database does not answer")) == len(logged(caplog, "database answers again")) == 1


@pytest.mark.asyncio
async def test_a_transaction_on_a_connection_that_died_in_silence_frees_its_locks_and_is_done_once(
    database: store.Database, proxy: Proxy
) -> None:
    await database.fetch("create table effects (id bigint)")
    await database.fetch("create table totals (total bigint)")
    await database.fetch("insert into totals values (0)")
    app, gate = App(proxy.url()), Gate()

    @app.consumer("orders", transactional=True, backoff=0)
    async def ship(order: int, message: Message, tx: Transaction) -> None:
        await tx.execute("update totals set total = total + 1")
        await gate.wait()
        await tx.execute("insert into effects values ($1)", order)

    async with running(app):
        await publish(database, [1])
        await gate.until(1)
        proxy.forget()
        gate.open()
        async with asyncio.timeout(SOON):
            await eventually(lambda: database.fetchval("select true from effects"))
            await app.idle()
    assert await database.fetchval("select count(*) from effects") == 1
    assert await database.fetchval("select total from totals") == 1


@pytest.mark.asyncio
@pytest.mark.long
async def test_a_listening_connection_that_died_in_silence_is_replaced(database: store.Database, proxy: Proxy) -> None:
    through = store.Database(proxy.url())
    await through.open()
    try:
        for _ in range(2):
            heard, ready = anyio.Event(), anyio.Event()
            async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
                listening = store.listen(through, lambda _, heard=heard: heard.set(), ready.set)  # type: ignore[misc]
                tasks.create_task(broken(listening))
                await ready.wait()
                await database.fetch("select pg_notify('headrace_7', '7')")
                await heard.wait()
                proxy.forget()
    finally:
        await through.close()


async def broken(listening: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StoreUnavailable):
        await listening
