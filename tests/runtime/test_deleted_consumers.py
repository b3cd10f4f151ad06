"""A consumer that is deleted while it runs: it stops, and everything else in its process continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from headrace import App, ConsumersDeleted, LeaseLost, Message, Transaction, store
from headrace.model.errors import UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.runtime.leasing.subscriptions import Subscriptions
from tests.conftest import Connect
from tests.runtime.running import WITHIN, Gate, Seen, eventually, running
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

Delete = Callable[[App], Awaitable[None]]


async def by_admin(app: App) -> None:
    await app.admin.delete_consumer("orders", "ship", force=True)


async def by_plain_sql(app: App) -> None:
    await app.database.fetch("delete from headrace_internal.consumers where name = 'ship'")


def ends(caplog: pytest.LogCaptureFixture) -> int:
    return len(logged(caplog, "consumer deleted", consumer="ship", stream="orders"))


async def is_gone(app: App) -> bool:
    return bool(app.statistics()["consumers"]["orders:ship"]["deleted"])


@pytest.mark.parametrize("delete", [by_admin, by_plain_sql])
async def test_a_consumer_that_is_deleted_stops_alone_and_its_handlers_finish(
    dsn: str, delete: Delete, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate, done, billed = App(dsn), Gate(), Seen(), Seen()

    @app.consumer("orders")
    async def ship(payload: int) -> None:
        await gate.wait()
        done.note(payload)

    @app.consumer("orders")
    async def bill(payload: int) -> None:
        billed.note(payload)

    async with running(app):
        await app.publish_many("orders", [("a", 1), ("a", 2)])
        await gate.until(1)
        await delete(app)
        await eventually(lambda: is_gone(app))
        await app.publish("orders", "b", 3)
        assert sorted(await billed.until(3)) == [1, 2, 3]
        assert app.readiness().ready, "no restart of a service should follow, nor should its requests go elsewhere"
        assert app.readiness().consumers["orders:ship"].deleted
        idle = asyncio.create_task(app.idle())
        gate.open()
        await idle
        assert done.notes == [1], "the handler at work finishes, and nothing else is begun"
        again = await store.declare_consumer(app.database, ConsumerSpec(stream="orders", name="ship"))
        await app.publish("orders", "b", 4)
        await billed.until(4)
        await app.idle()
        assert (await store.lease(app.database, again.id, uuid4(), 10)).data == ["1", "2", "3", "4"]
    assert ends(caplog) == 1
    assert not any(record.exc_info for record in caplog.records)


async def test_a_process_drains_and_logs_why_when_all_its_consumers_are_deleted(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders")
    async def ship(payload: int) -> None:
        await gate.wait()

    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish("orders", "a", 1)
        async with asyncio.timeout(WITHIN):
            process = asyncio.create_task(app.run(signals=False))
            await gate.until(1)
            await by_admin(app)
            gate.open()
            with pytest.raises(ConsumersDeleted, match="Start it again"):
                await process
            again = asyncio.create_task(app.run(signals=False))  # as its supervisor does
            await eventually(lambda: works_again(app))
            app.stop()
            await again


async def works_again(app: App) -> bool:
    try:
        return (await store.consumer(app.database, "orders", "ship")).lag == 0
    except UnknownConsumer:
        return False


async def test_an_embedded_app_goes_on_when_its_every_consumer_is_deleted(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders")
    async def ship(payload: int) -> None: ...

    async with running(app):
        await app.idle()
        await by_admin(app)
        await eventually(lambda: is_gone(app))
        assert await app.publish("orders", "a", 1) == 1
        await app.idle()
        assert app.readiness().ready


async def test_no_transaction_commits_once_its_consumer_is_deleted(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", transactional=True)
    async def ship(payload: int, tx: Transaction) -> None:
        await tx.execute("insert into effects values (1)")
        await gate.wait()

    async with running(app):
        await app.database.fetch("create table effects (n int)")
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await by_admin(app)
        gate.open()
        await eventually(lambda: is_gone(app))
        await app.idle()
        assert await app.database.fetchval("select count(*) from effects") == 0
    assert ends(caplog) == 1


async def test_a_handler_gets_lease_lost_once_its_consumer_is_deleted(dsn: str) -> None:
    app, gate, told = App(dsn), Gate(), Seen()

    @app.consumer("orders")
    async def ship(payload: int, message: Message) -> None:
        await gate.wait()
        for act in (message.extend, message.ack):
            try:
                await act()
            except LeaseLost:
                told.note(act.__name__)

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await by_admin(app)
        await eventually(lambda: is_gone(app))
        gate.open()
        assert await told.until(2) == ["extend", "ack"]


async def test_a_consumer_that_is_deleted_while_its_worker_subscribes_stops_alone(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    ship = (await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))).id
    other = await connect()
    deleting = other.transaction()
    await deleting.start()
    await other.execute("delete from headrace_internal.consumers")
    waiting = asyncio.create_task(store.wait(database, ship, 10.0))

    await eventually(lambda: is_blocked(other))
    await deleting.commit()
    with pytest.raises(UnknownConsumer):
        await waiting


async def test_consumers_that_subscribe_together_stop_alone_if_one_of_them_is_deleted_meanwhile(
    database: store.Database, connect: Connect
) -> None:
    """The statement of both fails, whoever of them makes it."""
    await store.create_stream(database, "orders")
    specs = [ConsumerSpec(stream="orders", name=name) for name in ("ship", "bill")]
    ship, bill = [(await store.declare_consumer(database, spec)).id for spec in specs]
    idle = Subscriptions(database, 10)
    other = await connect()
    deleting = other.transaction()
    await deleting.start()
    await other.execute("delete from headrace_internal.consumers where name = 'ship'")
    for consumer in (ship, bill):
        idle.enter(consumer)
    subscribing = asyncio.create_task(idle._subscribe({ship, bill}))
    await eventually(lambda: is_blocked(other))
    await deleting.commit()
    await subscribing
    assert idle.is_subscribed(bill)
    assert await database.fetch("select consumer_id from headrace_internal.waiting") == [(bill,)]
    with pytest.raises(UnknownConsumer):
        await store.lease(database, ship, uuid4(), 10)


async def is_blocked(connection: Any) -> bool:
    return bool(
        await connection.fetchval("""
            select count(*) from pg_locks join pg_stat_activity using (pid) where datname = current_database() and not granted
        """)
    )
