"""Deleting a stream while other calls use it. The stream is deleted, each call reports it, and none
ends with a deadlock error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import ConsumerSpec
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.store.database.errors import translated
from tests.conftest import Connect
from tests.runtime.running import WITHIN, eventually

pytestmark = pytest.mark.asyncio

LATER = datetime.now(UTC) + timedelta(days=1)
Use = Callable[[store.Database, int], Awaitable[Any]]


async def publish(database: store.Database, _: int) -> None:
    await store.publish(database, "orders", "k", "1")


async def publish_once(database: store.Database, _: int) -> None:
    await store.publish(database, "orders", "k", "1", options=PublishOptions(message_id="m"))


async def publish_for_later(database: store.Database, _: int) -> None:
    await store.publish(database, "orders", "k", "1", options=PublishOptions(deliver_at=LATER))


async def publish_in_a_transaction(database: store.Database, _: int) -> None:
    """Publish in a transaction of the caller, as `app.transaction()` opens it."""
    hold = await database.begin(30.0)
    try:
        with translated(database.dsn):
            await store.publish(hold.connection, "orders", "k", "1")
            await hold.commit()
    finally:
        await database.end(hold)


async def lease(database: store.Database, ship: int) -> None:
    await store.lease(database, ship, uuid4(), 10)


async def wait(database: store.Database, ship: int) -> None:
    await store.wait(database, ship, 10.0)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (publish, UnknownStream),
        (publish_once, UnknownStream),
        (publish_for_later, UnknownStream),
        (publish_in_a_transaction, UnknownStream),
        (lease, UnknownConsumer),
        (wait, UnknownConsumer),
    ],
)
async def test_a_call_that_uses_a_stream_while_it_is_deleted_reports_that_it_is_gone(
    database: store.Database, connect: Connect, use: Use, told: type[Exception]
) -> None:
    ship = await a_stream(database)
    deleting, go_on = await begin_to_delete(database, connect)
    using = asyncio.create_task(use(database, ship))
    await until_it_waits_too(database, using)
    await go_on()
    async with asyncio.timeout(WITHIN):
        await deleting
        with pytest.raises(told):
            await using
    assert await store.create_stream(database, "orders")
    assert await store.publish(database, "orders", "k", "1") == 1, "a new stream of the name begins anew"


async def test_a_scheduled_message_that_falls_due_during_a_deletion_blocks_nothing(
    database: store.Database, connect: Connect
) -> None:
    await a_stream(database)
    await store.publish(database, "orders", "k", "1", options=PublishOptions(deliver_at=LATER))
    deleting, go_on = await begin_to_delete(database, connect)
    schedule = Scheduler(database)
    delivering = asyncio.create_task(schedule.deliver(LATER + timedelta(seconds=1)))
    await until_it_waits_too(database, delivering)
    await go_on()
    async with asyncio.timeout(WITHIN):
        await deleting
        assert (await delivering)[0] == 0
    await a_stream(database)
    assert await schedule.deliver(LATER + timedelta(seconds=1)) == (0, None)


async def a_stream(database: store.Database) -> int:
    """Create a stream and a consumer. Return the consumer's number."""
    await store.create_stream(database, "orders")
    return (await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))).id


async def begin_to_delete(
    database: store.Database, connect: Connect
) -> tuple[asyncio.Task[None], Callable[[], Awaitable[None]]]:
    """Start to delete `orders` while a reader locks it. Return the task and the function that ends the reader."""
    reader = await connect()
    reading = reader.transaction()
    await reading.start()
    await reader.execute("lock table headrace_streams.orders in access share mode")
    deleting = asyncio.create_task(store.delete_stream(database, "orders", force=True))
    await eventually(lambda: waiting(database))
    return deleting, reading.commit


async def until_it_waits_too(database: store.Database, task: asyncio.Task[Any]) -> None:
    async def does() -> bool:
        return task.done() or await waiting(database) > 1

    await eventually(does)


async def waiting(database: store.Database) -> int:
    """Count the sessions of this database that wait for a lock."""
    count: int = await database.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    return count
