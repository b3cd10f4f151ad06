"""Deleting a stream or a consumer while another call publishes to it, waits for it or replays it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.messages.publish_options import PublishOptions
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, begun, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_a_publish_with_a_message_id_and_a_deletion_do_not_deadlock(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Each used to lock what the other needed next: the stream's row, and the stream's table."""
    await declare()
    async with begun(connect) as (reader, _), begun(connect) as (deleter, deletion):
        await reader.fetch("select from headrace_streams.orders")
        deleting = await start(deleter.fetchval("select headrace_internal.delete_stream('orders', true)"))
        await until_blocked(database, reader)  # it waits for the table, before the publisher does
        publishing = await start(store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="once")))
        await until_blocked(database, deleter)
        await reader.execute("rollback")
        await deleting
        await deletion.commit()
        with pytest.raises(UnknownStream):
            await publishing


@pytest.mark.parametrize(
    "call",
    [
        lambda database, reader: store.wait(database, reader.id, 10),
        lambda database, reader: store.replay(database, reader.id, store.Selection()),
    ],
    ids=["wait", "replay"],
)
async def test_a_consumer_that_is_deleted_during_the_call_is_reported_as_unknown(
    database: store.Database,
    declare: Declare,
    connect: Connect,
    call: Callable[[store.Database, Reader], Awaitable[object]],
) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.drain()
    async with begun(connect) as (deleter, deletion):
        await deleter.fetchval("select headrace_internal.delete_consumer($1, true)", reader.id)
        calling = await start(call(database, reader))  # type: ignore[arg-type]
        await until_blocked(database, deleter)
        await deletion.commit()
        with pytest.raises(UnknownConsumer):
            await calling


async def test_a_stream_that_is_deleted_during_the_call_is_reported_as_unknown(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    async with begun(connect) as (deleter, deletion):
        await deleter.fetchval("select headrace_internal.delete_stream('orders', true)")
        later = datetime.now(UTC) + timedelta(hours=1)
        calling = await start(store.publish(database, "orders", "a", "1", options=PublishOptions(deliver_at=later)))
        await until_blocked(database, deleter)
        await deletion.commit()
        with pytest.raises(UnknownStream):
            await calling


async def test_a_deletion_locks_leases_in_the_order_of_their_ids_as_settles_do(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    first, second = await reader.lease(limit=1), await reader.lease(limit=1)
    # An extended row is behind the others in the table, so a scan reads the leases in another order
    # than that of their ids.
    await store.extend_leases(database, reader.id, [first.lease_id or 0], now=reader.clock.now)
    await database.fetch("analyze headrace_internal.leases")
    async with begun(connect) as (settler, settlement), begun(connect) as (deleter, deletion):
        settling = Reader(settler, reader.spec, reader.id, reader.clock)
        assert await settling.ack_all(first) == []
        deleting = await start(deleter.fetchval("select headrace_internal.delete_consumer($1, true)", reader.id))
        await until_blocked(database, settler)
        assert await settling.ack_all(second) == []
        await settlement.commit()
        await deleting
        await deletion.commit()


@pytest.mark.parametrize("look", ["seek_preview($1, 1, null)", "peek_page($1, 10)"])
async def test_a_look_at_a_consumer_that_is_deleted_meanwhile_ends(
    database: store.Database, declare: Declare, connect: Connect, look: str
) -> None:
    """Each statement sees what is committed, and a position that is missing has no messages up to it."""
    reader = await declare()
    await publish(database, "a")
    async with begun(connect) as (deleter, deletion):
        await deleter.execute("lock table headrace_internal.streams in access exclusive mode")
        looking = await start(database.fetch(f"select * from headrace_internal.{look}", reader.id))
        await until_blocked(database, deleter)  # it has read the consumer
        await deleter.fetchval("select headrace_internal.delete_consumer($1, true)", reader.id)
        await deletion.commit()
        with pytest.raises(UnknownConsumer):
            await looking


async def test_a_consumer_that_is_deleted_meanwhile_is_in_no_list(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "a")
    async with begun(connect) as (deleter, deletion):
        await deleter.execute("lock table headrace_internal.cursors in access exclusive mode")
        looks = [
            await start(database.fetch(f"select * from headrace_internal.{look}"))
            for look in ("key_states('orders', 1, 'a')", "journey('orders', 1, 'a', 10)", "consumer_info('orders')")
        ]
        await until_blocked(database, deleter)
        await deleter.fetchval("select headrace_internal.delete_consumer($1, true)", reader.id)
        await deletion.commit()
        states, places, infos = [await look for look in looks]
        assert (states, places, infos) == ([], [], [])
