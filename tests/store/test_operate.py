"""Operations: pause and resume consumers, list blocked keys, delete consumers and streams."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import InUse, UnknownConsumer, UnknownStream
from headrace.model.records import Lost
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.readers import Reader, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


# --- pause, resume


async def test_a_paused_consumer_leases_nothing_until_it_is_resumed(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease(limit=1)
    await store.pause(database, reader.id)
    assert await reader.drain("bob") == []
    assert await reader.ack_all(batch) == []  # messages in flight can still be settled
    info = await reader.info()
    assert info.paused_until == datetime.max.replace(tzinfo=UTC)
    await store.resume(database, reader.id)
    assert await reader.drain("bob") == [2, 3]
    assert (await reader.info()).paused_until is None


async def test_a_pause_until_a_time_ends_automatically(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    await store.pause(database, reader.id, reader.clock.now + timedelta(seconds=60))
    assert (await reader.info()).paused_until == reader.clock.now + timedelta(seconds=60)
    batch = await reader.lease()
    assert (batch.seqs, batch.due_in) == ([], 60)
    reader.clock.advance(60)
    assert await reader.drain() == [1]


async def test_a_pause_leaves_other_consumers_alone(database: store.Database, declare: Declare) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, "a")
    await store.pause(database, ship.id)
    assert await bill.drain() == [1]


async def test_a_resume_notifies_the_workers(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare()
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await connect()
    await notifications.listen(listener, lambda *call: heard.put_nowait(call[3]))
    await store.resume(database, reader.id)
    async with asyncio.timeout(10):
        assert int(await heard.get()) == await database.fetchval("select id from headrace_internal.streams")


async def test_a_deleted_consumer_can_be_neither_paused_nor_resumed(database: store.Database) -> None:
    with pytest.raises(UnknownConsumer):
        await store.pause(database, 999)
    with pytest.raises(UnknownConsumer):
        await store.resume(database, 999)


# --- blocked keys


async def block(reader: Reader, *seqs: int) -> None:
    """Exhaust these messages (`max_deliver` is 1), and ack the rest."""
    batch = await reader.lease("blocker", 1_000)
    for seq in seqs:
        await reader.nack(batch, seq, error=f"boom {seq}")
    if rest := [seq for seq in batch.seqs if seq not in seqs]:
        await reader.ack(batch, *rest)


async def test_blocked_keys_say_since_when_why_and_how_many_wait(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"zab")
    await block(reader, 1, 3)
    await publish(database, *"zzab")
    assert await reader.drain() == [6]
    found = await store.blocked_keys(database, reader.id)
    assert [(one.key, one.seq, one.waiting, one.error, one.since) for one in found] == [
        ("z", 1, 2, "boom 1", reader.clock.now),
        ("b", 3, 1, "boom 3", reader.clock.now),
    ]
    assert [one.key for one in await store.blocked_keys(database, reader.id, limit=1)] == ["z"]
    await reader.redrive(1)
    assert [one.key for one in await store.blocked_keys(database, reader.id)] == ["b"]


async def test_a_key_that_several_dead_letters_block_is_listed_once_with_the_first(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aaa")
    await block(reader, 1, 2)
    (found,) = await store.blocked_keys(database, reader.id)
    assert (found.key, found.seq, found.waiting) == ("a", 1, 1)


async def test_without_blocked_keys_the_list_is_empty(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    assert await store.blocked_keys(database, reader.id) == []


# --- delete a consumer


async def everything_of(database: store.Database, consumer: int) -> list[str]:
    """The tables that still have rows of the consumer."""
    tables = await database.fetch(
        """select table_name from information_schema.columns
           where table_schema = 'headrace_internal' and column_name = 'consumer_id'"""
    )
    return [
        table
        for (table,) in tables
        if await database.fetchval(
            f"select true from headrace_internal.{table} where consumer_id = $1 limit 1", consumer
        )
    ]


async def test_a_consumer_is_deleted_with_all_its_rows(database: store.Database, declare: Declare) -> None:
    reader, other = await declare(max_deliver=1, on_exhausted="block"), await declare("other")
    await publish(database, *"aab")
    await block(reader, 1)
    await publish(database, *"cc")
    await reader.release(await reader.lease("bob"))
    await reader.lease("bob", limit=1)
    reader.clock.advance(31)
    await store.delete_consumer(database, reader.id, now=reader.clock.now)
    assert await everything_of(database, reader.id) == []
    with pytest.raises(UnknownConsumer):
        await reader.info()
    with pytest.raises(UnknownConsumer):
        await reader.lease()
    assert await other.drain() == [1, 2, 3, 4, 5]


async def test_a_consumer_that_has_workers_is_deleted_only_with_force(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc")
    ann, bob = await reader.lease("ann", 1), await reader.lease("bob", 2)
    assert bob.seqs
    with pytest.raises(InUse, match="'ship' of the stream 'orders' is in use: 2 workers at work on 3 messages"):
        await store.delete_consumer(database, reader.id, now=reader.clock.now)
    assert await reader.ack_all(bob) == []
    await store.delete_consumer(database, reader.id, force=True, now=reader.clock.now)
    assert await reader.ack_all(ann) == [Lost(ann.lease_id or 0, None)]
    assert await everything_of(database, reader.id) == []


async def test_a_consumer_that_a_worker_waits_for_is_in_use(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.wait(database, reader.id, 60)
    with pytest.raises(InUse, match="a worker waits for its next message"):
        await store.delete_consumer(database, reader.id)
    await store.delete_consumer(database, reader.id, now=datetime.now(UTC) + timedelta(seconds=61))


async def test_expired_leases_do_not_prevent_a_deletion(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.lease()
    reader.clock.advance(31)
    await store.delete_consumer(database, reader.id, now=reader.clock.now)


async def test_a_settle_in_progress_is_finished_before_the_deletion(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """The settle has locked its lease and then checks that the consumer exists. Neither call may
    wait for the other."""
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    reader.executor = slow
    assert await reader.ack(batch, 1) == []
    deletion = await start(store.delete_consumer(database, reader.id, force=True))
    await until_blocked(database, slow)
    assert await reader.nack(batch, 2) == []
    await transaction.commit()
    await deletion
    assert await everything_of(database, reader.id) == []


@pytest.mark.long
async def test_a_transaction_that_locks_a_consumer_delays_its_deletion_for_a_few_seconds_only(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    holder = await connect()
    transaction = holder.transaction()
    await transaction.start()
    await store.seek(holder, reader.id, 0)
    with pytest.raises(InUse, match="kept hold of the consumer for 5 seconds"):
        await store.delete_consumer(database, reader.id)
    await transaction.rollback()
    assert (await reader.info()).position == 0


async def test_a_consumer_can_be_deleted_only_once(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.delete_consumer(database, reader.id)
    with pytest.raises(UnknownConsumer):
        await store.delete_consumer(database, reader.id)


# --- delete a stream


async def tables(database: store.Database) -> list[Any]:
    return await database.fetch(
        "select relname from pg_class where relnamespace = 'headrace_streams'::regnamespace and relkind in ('r', 'p', 'S')"
    )


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_stream_is_deleted_with_its_messages_and_consumers(
    database: store.Database, declare: Declare, compacted: bool
) -> None:
    kept = {tuple(row) for row in await tables(database)}
    await store.create_stream(database, StreamSpec(name="gone", one_message_per_key=compacted))
    reader = await declare()
    await database.fetch(
        "update headrace_internal.consumers set stream_id = (select id from headrace_internal.streams where name = 'gone')"
    )
    await publish(database, *"ab", stream="gone")
    await publish(database, *"ab")
    await store.delete_stream(database, "gone")
    assert {tuple(row) for row in await tables(database)} == kept
    assert await everything_of(database, reader.id) == []
    assert (
        await database.fetchval(
            "select count(*) from headrace_internal.segments g left join headrace_internal.streams s on s.id = g.stream_id where s.id is null"
        )
        == 0
    )
    with pytest.raises(UnknownStream):
        await publish(database, "a", stream="gone")
    await store.create_stream(database, "gone")
    await publish(database, "a", stream="gone")
    assert (await store.stream(database, "gone")).last_seq == 1


async def test_a_stream_with_a_consumer_in_use_is_deleted_only_with_force(
    database: store.Database, declare: Declare
) -> None:
    await declare("idle")
    reader = await declare()
    await publish(database, "a")
    batch = await reader.lease()
    with pytest.raises(InUse, match="'ship' of the stream 'orders' is in use: 1 worker at work on 1 message"):
        await store.delete_stream(database, "orders", now=reader.clock.now)
    await store.delete_stream(database, "orders", force=True, now=reader.clock.now)
    assert await reader.ack_all(batch) == [Lost(batch.lease_id or 0, None)]
    assert await store.streams(database) == []


async def test_an_open_publishing_transaction_delays_the_deletion_of_a_stream_for_a_few_seconds_only(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    publisher = await connect()
    transaction = publisher.transaction()
    await transaction.start()
    await publish(publisher, "a")
    with pytest.raises(InUse, match="kept hold of the stream 'orders' for 5 seconds"):
        await store.delete_stream(database, "orders", force=True)
    await transaction.commit()
    assert (await store.stream(database, "orders")).messages == 1
    await store.delete_stream(database, "orders")


async def test_a_stream_with_workers_and_publishers_is_deleted_with_force(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc" * 50)
    begun = asyncio.Event()

    async def work(who: str) -> None:
        while True:
            batch = await reader.lease(who, 3)
            begun.set()
            await reader.ack_all(batch)

    async def publish_on() -> None:
        while True:
            await publish(database, *"abc")

    async def delete() -> None:
        await begun.wait()
        await store.delete_stream(database, "orders", force=True)

    async with asyncio.timeout(60):
        ann, bob, publisher, deleted = await asyncio.gather(
            work("ann"), work("bob"), publish_on(), delete(), return_exceptions=True
        )
    assert deleted is None
    assert isinstance(ann, UnknownConsumer)
    assert isinstance(bob, UnknownConsumer)
    assert "orders" in str(publisher)
    assert await store.streams(database) == []


async def test_an_unknown_stream_can_not_be_deleted(database: store.Database) -> None:
    with pytest.raises(UnknownStream, match="nowhere"):
        await store.delete_stream(database, "nowhere")
