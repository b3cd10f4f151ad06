"""Transactional handlers through a pooler that gives each transaction another connection."""

from __future__ import annotations

import pytest

from headrace import App, Transaction
from tests.runtime.running import consumer, numbered, running


@pytest.mark.asyncio
async def test_transactions_of_handlers_and_services_meet_one_server_each(pooled_dsn: str) -> None:
    app = App(pooled_dsn, streams=["orders", "invoices"])

    @app.consumer("orders", transactional=True)
    async def ship(number: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1)", number)
        async with tx.transaction():
            await tx.publish("invoices", "k", number)

    async with running(app):
        assert app.database.pooled
        await app.database.fetch("create table effects (id bigint)")
        async with app.transaction() as tx:
            await app.publish_many("orders", numbered(f"k{n % 7}" for n in range(50)), tx=tx)
        await app.idle()
        assert [row[0] for row in await app.database.fetch("select id from effects order by id")] == list(range(1, 51))
        assert await app.database.fetchval("select count(*) from headrace_streams.invoices") == 50
    async with app:
        info = await consumer(app, "ship")
        assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)


@pytest.mark.asyncio
async def test_a_transaction_gets_no_id_at_its_beginning_behind_a_pooler(pooled_dsn: str) -> None:
    """Statements can't be prepared there."""
    app = App(pooled_dsn)
    async with app:
        hold = await app.database.begin(30, assign=True)
        assert hold.xid is None
        await hold.connection.execute("create table effects (id bigint)")
        await hold.commit()
        await app.database.end(hold)
        assert await app.database.fetchval("select count(*) from effects") == 0
