"""Acks in a transaction when their lease ends. An acked message is never parked again, and the end
of a lease removes its acks."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Lost
from headrace.store.messages.replay import Selection
from tests.conftest import Connect, Declare
from tests.support.readers import begun, owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("failure", [Failure("retry"), Failure("release"), Failure("reject")], ids=lambda f: f.kind)
async def test_an_acked_message_can_not_be_released(
    database: store.Database, declare: Declare, failure: Failure
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    assert await reader.fail(batch, failure, 1) == [Lost(batch.lease_id, 1, gone=False)]
    reader.clock.advance(30)
    assert await reader.drain("bob") == [2]
    assert (await reader.info()).dead_letters == 0


async def test_a_release_waits_for_an_ack_in_flight(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, batch, 1)
        nack = await start(reader.nack(batch))
        await until_blocked(database, connection)
        await transaction.commit()
        assert await nack == [Lost(batch.lease_id, 1, gone=False)]
    assert await reader.count("acks") == 0
    assert await reader.drain() == [2]


async def test_an_ack_of_a_message_that_is_being_released_waits_and_is_refused(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    async with begun(connect) as (slow, transaction):
        given_back = Settlement(leases=[batch.lease_id], seqs=[1], failures=[Failure("retry")])
        assert await store.settle(slow, reader.id, given_back) == []
        async with database.transaction() as connection:
            late = await start(reader.ack_within(connection, batch, 1))
            await until_blocked(database, slow)
            await transaction.commit()
            with pytest.raises(LeaseLost, match="message 1"):
                await late
    assert await reader.drain() == [1]


async def test_an_acked_message_stays_in_its_lease_until_its_worker_settles_it(
    database: store.Database, declare: Declare
) -> None:
    """Otherwise a worker that settles another message of the lease in between would get this one
    reported as lost."""
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1, 2)
    assert await reader.nack(batch, 3, delay=10) == []
    assert [await reader.count(table) for table in ("leases", "acks", "parked")] == [1, 2, 1]
    assert await reader.ack(batch, 1) == []
    assert await reader.ack(batch, 2) == []
    assert [await reader.count(table) for table in ("leases", "acks", "parked")] == [0, 0, 1]


async def test_a_whole_lease_is_settled_after_its_acks(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    for seq in batch.seqs:
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, seq)
    assert await reader.count("acks") == 2
    assert await reader.ack_all(batch) == []
    assert [await reader.count(table) for table in ("leases", "acks")] == [0, 0]


async def test_an_acked_message_may_be_acked_again_by_a_settle(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    assert await reader.ack(batch) == []
    assert [await reader.count(table) for table in ("leases", "acks")] == [0, 0]


async def test_a_batch_settled_in_a_transaction_of_its_own_needs_no_ack(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch)
        assert await store.settle(connection, reader.id, Settlement(whole=[batch.lease_id or 0])) == []
    assert [await reader.count(table) for table in ("leases", "acks")] == [0, 0]


async def test_reclaim_and_seek_remove_acks_and_release_no_acked_message(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 2)
    assert await store.reclaim(database, reader.id, owner("ann"), []) == 2
    assert await reader.count("acks") == 0
    batch = await reader.lease()
    assert batch.seqs == [1, 3]
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    await reader.seek(0)
    assert await reader.count("acks") == 0
    with pytest.raises(LeaseLost):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, 3)
    assert await reader.drain() == [1, 2, 3]


async def test_deleting_a_consumer_or_a_stream_deletes_its_acks(database: store.Database, declare: Declare) -> None:
    for name in ("ship", "bill"):
        reader = await declare(name)
        await publish(database, "a")
        batch = await reader.lease()
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch)
        assert await reader.count("acks") == len(batch.seqs)
        if name == "ship":
            await store.delete_consumer(database, reader.id, force=True)
        else:
            await store.delete_stream(database, "orders", force=True)
        assert await reader.count("acks") == 0


async def test_an_acked_message_is_replayed_though_its_lease_still_holds_it(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    assert await store.replay(database, reader.id, Selection(), dry_run=True) == 1
    assert await store.replay(database, reader.id, Selection()) == 1
    again = await reader.lease()
    assert again.seqs == [1]
    assert await reader.ack_all(batch, again) == []
    assert await reader.drain() == []
