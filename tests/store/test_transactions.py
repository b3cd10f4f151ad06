"""Acks in a transaction: they commit together with a handler's effects or not at all, whatever else
ends the lease."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Settlement
from headrace.store.database.errors import sqlstate
from tests.conftest import Connect, Declare
from tests.support.readers import begun, owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_effects_and_ack_commit_together(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await publish(connection, "effect")
        await reader.ack_within(connection, batch, 1)
    reader.clock.advance(30)
    assert await reader.drain("bob") == [2, 3]
    assert await reader.count("acks") == 0


async def test_an_ack_that_rolls_back_acks_nothing(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    batch = await reader.lease()
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, batch)
        await transaction.rollback()
    assert await reader.count("acks") == 0
    reader.clock.advance(30)
    assert await reader.drain("bob") == [1, 2]


async def test_the_ack_of_a_zombie_is_refused_and_its_effects_with_it(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    stale = await reader.lease("ann")
    reader.clock.advance(30)
    fresh = await reader.lease("bob")

    async def handle() -> None:
        async with database.transaction() as connection:
            await publish(connection, "effect")
            await reader.ack_within(connection, stale)

    with pytest.raises(LeaseLost, match="lease of the message 1 was lost: it expired"):
        await handle()
    assert await reader.count("acks") == 0
    assert (await reader.info()).last_seq == 2
    assert await reader.ack_all(fresh) == []


async def test_an_ack_of_an_expired_lease_is_refused_even_if_no_call_has_ended_the_lease(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    batch = await reader.lease()
    reader.clock.advance(30)
    with pytest.raises(LeaseLost):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch)
    assert await reader.extend() == [batch.lease_id]
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch)
    assert await reader.ack_all(batch) == []


async def test_one_lost_message_refuses_the_acks_of_all(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    await reader.ack(batch, 2)
    with pytest.raises(LeaseLost, match="message 2 was lost"):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch)
    assert await reader.count("acks") == 0


@pytest.mark.parametrize("seq", [3, 99], ids=["somebody else's", "nobody's"])
async def test_only_messages_of_the_lease_can_be_acked(database: store.Database, declare: Declare, seq: int) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease("ann", 2)
    await reader.lease("bob")
    with pytest.raises(LeaseLost, match=f"message {seq} was lost"):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, seq)


async def test_an_acked_message_is_not_acked_again(database: store.Database, declare: Declare) -> None:
    """A handler that runs again because the answer to its COMMIT was lost must not have its effects twice."""
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 1)
    with pytest.raises(LeaseLost, match="message 1"):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, 1)
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 2)


@pytest.mark.parametrize(("first", "then", "named"), [([1, 3, 4], [3], 3), ([3], [1, 3], 3), ([1, 3], [3, 4], 3)])
async def test_an_acked_message_among_others_is_not_acked_again(
    database: store.Database, declare: Declare, first: list[int], then: list[int], named: int
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease()
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, *first)
    with pytest.raises(LeaseLost, match=f"message {named}"):
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, *then)
    async with database.transaction() as connection:
        await reader.ack_within(connection, batch, 2)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    ("first", "then"),
    [([1], [1]), ([1, 2], [1, 2]), ([1], [2, 1]), ([1, 2], [1]), ([1, 2], [2]), ([1, 2], [2, 3]), ([1, 2, 3], [3, 2])],
    ids=str,
)
async def test_of_two_transactions_that_ack_a_message_at_once_one_commits(
    database: store.Database, declare: Declare, connect: Connect, first: list[int], then: list[int], end: str
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease()
    async with begun(connect) as (connection, transaction), begun(connect) as (second, transaction_of_second):
        await reader.ack_within(connection, batch, *first)
        late = await start(reader.ack_within(second, batch, *then))
        await until_blocked(database, connection)
        await getattr(transaction, end)()
        if end == "commit":
            with pytest.raises(LeaseLost):
                await late
        else:
            await late
            await transaction_of_second.commit()
    await reader.ack_all(batch)
    assert await reader.count("acks") == 0


async def test_a_lost_lease_is_named_whatever_the_driver(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "a")
    batch = await reader.lease()
    await reader.ack_all(batch)
    async with begun(connect) as (connection, _):
        with pytest.raises(LeaseLost) as caught:
            await reader.ack_within(connection, batch)
    error = caught.value.__cause__
    assert isinstance(error, asyncpg.PostgresError)
    wrapped = RuntimeError("as Django does")
    wrapped.__cause__ = error
    also = RuntimeError("as SQLAlchemy does")
    also.orig = error  # type: ignore[attr-defined]
    assert [sqlstate(one) for one in (error, wrapped, also, RuntimeError())] == ["HR007", "HR007", "HR007", None]


# --- expiry, and two connections at the same time


async def test_an_expiry_leaves_a_lease_that_is_being_acked_to_the_ack(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    batch = await reader.lease("ann")
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, batch, 2)
        reader.clock.advance(30)
        nothing = await reader.lease("bob")
        assert (nothing.lease_id, nothing.due_in) == (None, 0.1)
        await transaction.commit()
    assert await reader.drain("bob") == [1, 3]


async def test_an_ack_waits_for_an_expiry_and_is_refused(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    stale = await reader.lease("ann")
    now = reader.clock.now
    reader.clock.advance(30)
    async with begun(connect) as (slow, transaction):
        taken = await store.lease(slow, reader.id, owner("bob"), 10, now=reader.clock.now)
        assert taken.seqs == [1, 2]
        assert stale.lease_id
        async with database.transaction() as connection:
            # Its clock is behind, so that only the lock can reveal the expiry.
            late = await start(store.ack(connection, reader.id, [stale.lease_id], [1], now=now))
            await until_blocked(database, slow)
            await transaction.commit()
            with pytest.raises(LeaseLost):
                await late
    assert await reader.count("acks") == 0
    assert await reader.ack_all(taken) == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_no_lease_of_an_owner_ends_while_one_of_them_is_being_acked(
    database: store.Database, declare: Declare, connect: Connect, end: str
) -> None:
    """The owner holds a run of a key across two leases. The second part must not be delivered while
    the effects of the first one are about to commit."""
    reader = await declare(ack_wait=30)
    await publish(database, *"aab")
    first, _ = await reader.lease("ann", 1), await reader.lease("ann", 1)
    await reader.lease("cid")
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, first)
        reader.clock.advance(30)
        assert (await reader.lease("bob")).seqs == [3]
        await getattr(transaction, end)()
    assert (await reader.lease("bob")).seqs == ([2] if end == "commit" else [1, 2])


async def test_acks_and_settles_do_not_block_each_other(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abcd")
    batch = await reader.lease()
    async with begun(connect) as (ann, anns), begun(connect) as (bob, bobs):
        await reader.ack_within(ann, batch, 1)
        await reader.ack_within(bob, batch, 2)
        assert await reader.ack(batch, 3) == []
        assert await reader.extend() == [batch.lease_id]
        await reader.mark_started(batch, 4)
        await anns.commit()
        await bobs.rollback()
    reader.clock.advance(30)
    assert await reader.drain("bob") == [2, 4]


async def test_an_ack_does_not_wait_for_a_settle_that_releases_nothing(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    async with begun(connect) as (slow, transaction):
        await store.settle(slow, reader.id, Settlement(leases=[batch.lease_id], seqs=[1], failures=[None]))
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, 2)
        await transaction.commit()
    assert await reader.ack_all(batch) == []
    assert await reader.drain() == []


# --- the transaction itself


async def test_a_frozen_handler_loses_its_lease_lock_after_seconds(declare: Declare, connect: Connect) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    batch = await reader.lease()
    async with begun(connect) as (connection, transaction):
        await reader.ack_within(connection, batch)
        assert await connection.fetchval("show idle_in_transaction_session_timeout") == "2s"
        assert await connection.fetchval("show synchronous_commit") == "on"
        await transaction.commit()
        assert await connection.fetchval("show idle_in_transaction_session_timeout") == "0"


async def test_the_status_of_a_transaction_can_be_queried(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    for seq, end, status in ((1, "commit", "committed"), (2, "rollback", "aborted")):
        async with begun(connect) as (connection, transaction):
            xid = await reader.ack_within(connection, batch, seq)
            assert await store.transaction_status(database, xid) == "in progress"
            await getattr(transaction, end)()
        assert await store.transaction_status(database, xid) == status
    assert await store.transaction_status(database, xid + 10**6) == "aborted"


async def test_a_transaction_is_not_taken_for_committed_when_its_id_was_assigned_again(
    database: store.Database, declare: Declare
) -> None:
    """A server that crashed assigns ids again that it had never written to disk."""
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    async with database.transaction() as connection:
        xid = await reader.ack_within(connection, batch, 1)
    lease = batch.lease_id
    assert lease is not None

    async def status(seq: int) -> store.Status:
        return await store.transaction_status(database, xid, acks=store.Acks(reader.id, [lease], [seq]))

    assert [await status(1), await status(2)] == ["committed", "aborted"]
    assert await store.transaction_status(database, xid) == "committed"


async def test_an_ack_can_be_written_by_hand(database: store.Database, declare: Declare, connect: Connect) -> None:
    """As the comment of the function shows it. psql has only these types."""
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    reader.clock.now = (await database.fetchval("select clock_timestamp()")).astimezone()
    batch = await reader.lease()
    connection = await connect()
    await connection.execute(
        f"begin; select headrace.ack({reader.id}::int, array[{batch.lease_id}]::bigint[], array[1]::bigint[]); commit"
    )
    assert await reader.count("acks") == 1


async def test_many_handlers_ack_messages_of_one_lease_at_once(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh" * 5)
    batch = await reader.lease()

    async def handle(seq: int) -> None:
        async with database.transaction() as connection:
            await reader.ack_within(connection, batch, seq)

    await asyncio.gather(*[handle(seq) for seq in batch.seqs])
    assert await reader.count("acks") == 40
    assert await reader.ack_all(batch) == []
    assert await reader.count("acks") == 0


async def test_a_connection_that_was_interrupted_inside_a_transaction_is_closed_without_a_warning(
    database: store.Database,
) -> None:
    """A cancelled BEGIN may have begun one. The driver would roll it back and warn of it, once for each connection."""
    warnings: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context))
    async with database.connections.connection() as connection:
        await connection.execute("begin")
        backend = await connection.fetchval("select pg_backend_pid()")
    assert warnings == []
    assert await database.fetchval("select pg_backend_pid()") != backend
