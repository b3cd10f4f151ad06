"""The lease call: it leases a batch of messages for a time. Bounds of one call, filters, and which
calls are refused."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, UnknownConsumer
from headrace.store.database.errors import translated
from tests.conftest import Connect, Declare
from tests.support.readers import owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_an_empty_stream_leases_nothing(declare: Declare) -> None:
    reader = await declare()
    batch = await reader.lease()
    assert (batch.lease_id, batch.seqs, batch.looked_at, batch.more, batch.due_in) == (None, [], 0, False, None)


async def test_messages_come_in_the_order_of_their_seq_and_each_once(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcabcabc")
    first = await reader.lease(limit=4)
    second = await reader.lease(limit=100)
    assert (first.seqs, second.seqs) == ([1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert (await reader.lease()).seqs == []


async def test_more_says_whether_another_call_may_find_more(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    assert (await reader.lease(limit=4)).more
    assert not (await reader.lease(limit=4)).more


async def test_consumers_of_a_stream_are_independent(database: store.Database, declare: Declare) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, *"abc")
    assert (await ship.lease()).seqs == [1, 2, 3]
    assert await bill.drain() == [1, 2, 3]
    assert (await ship.info()).in_flight == 3


async def test_max_ack_pending_bounds_the_messages_in_flight_over_all_owners(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_ack_pending=5, ack_wait=30)
    await publish(database, *"abcdefgh")
    ann = await reader.lease("ann", 3)
    bob = await reader.lease("bob", 100)
    assert (len(ann.seqs), len(bob.seqs)) == (3, 2)
    full = await reader.lease("cid", 100)
    assert (full.lease_id, full.due_in) == (None, 30)
    await reader.ack(ann, ann.seqs[0])
    assert (await reader.lease("cid", 100)).seqs == [6]
    await reader.ack_all(bob)
    assert (await reader.lease("cid", 100)).seqs == [7, 8]


async def test_a_batch_stops_once_it_has_passed_its_bytes(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh", filler="x" * 1_000)
    batch = await reader.lease(max_bytes=2_500)
    assert batch.seqs == [1, 2, 3]
    assert batch.more, "the rest is there: nobody should wait for it"
    assert await reader.drain(max_bytes=2_500) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("column", ["data", "headers"])
async def test_compressed_messages_count_as_they_are_delivered(
    database: store.Database, declare: Declare, column: str
) -> None:
    """Of 100 small messages and 20 that are stored in a few hundred bytes, and delivered as 100 kB."""
    await database.fetch(
        """do $$ declare v text; begin
               for v in select relation from headrace_internal.segments loop
                   execute format('alter table %s alter column data set storage extended, alter column data set compression pglz', v);
               end loop; end $$"""
    )
    reader = await declare()
    long = f'{{"a": "{"x" * 100_000}"}}'
    data, headers = (long, None) if column == "data" else ("1", long)
    await store.publish_many(database, "orders", ["k"] * 100, ["1"] * 100)
    await store.publish_many(database, "orders", ["k"] * 20, [data] * 20, [headers] * 20)
    toast = """select sum(pg_relation_size(reltoastrelid)) from pg_class
               where oid in (select relation::regclass from headrace_internal.segments)"""
    assert await database.fetchval(toast) == 0
    batch = await reader.lease(limit=115, max_bytes=1_000_000)
    assert batch.seqs == list(range(1, 111))
    batch = await reader.lease(limit=115, max_bytes=1_000_000)
    assert batch.seqs == list(range(111, 121))
    assert getattr(batch, column) == [long] * 10


async def test_a_message_larger_than_the_bytes_of_a_batch_comes_alone(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc", filler="x" * 5_000)
    assert [(await reader.lease(max_bytes=1)).seqs for _ in range(4)] == [[1], [2], [3], []]


async def test_bytes_are_counted_over_retries_and_fresh_messages_together(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh", filler="x" * 1_000)
    await reader.nack(await reader.lease(limit=4))
    batch = await reader.lease(max_bytes=2_500)
    assert batch.seqs == [1, 2, 3]
    assert batch.more
    batch = await reader.lease(max_bytes=2_500)
    assert batch.seqs == [4, 5, 6]
    assert batch.more
    assert (await reader.lease(max_bytes=2_500)).seqs == [7, 8]


async def test_a_filter_takes_what_it_matches(database: store.Database, declare: Declare) -> None:
    reader = await declare(filters=("orders.us.>", "*.eu"))
    await publish(database, "orders.us.1", "orders.us", "orders.eu", "bills.eu", "bills.us.1", "orders.us.1.2")
    assert await reader.drain() == [1, 3, 4, 6]


async def test_a_selective_filter_reads_a_bounded_number_of_messages_in_each_call(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(filters=("wanted.*",))
    await publish(database, *["other"] * 1_200, "wanted.1")
    for position in (500, 1_000):
        batch = await reader.lease(look=500)
        assert (batch.lease_id, batch.looked_at, batch.more) == (None, 500, True)
        assert (await reader.info()).position == position
    batch = await reader.lease(look=500)
    assert (batch.keys, batch.more) == (["wanted.1"], False)


async def test_a_late_message_does_not_make_a_selective_filter_read_more(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(filters=("wanted",))
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, *["other"] * 300, "wanted")
    await publish(database, "wanted")
    assert (await reader.lease()).seqs == [302]
    await transaction.commit()
    looked = []
    for _ in range(5):
        batch = await reader.lease(look=100)
        looked.append(batch.looked_at)
        if batch.lease_id:
            break
    assert batch.seqs == [301]
    assert max(looked) <= 200  # the number in the holes equals the number above the cursor


async def test_due_in_is_the_time_until_the_next_call(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    batch = await reader.lease()
    assert batch.due_in is None
    await reader.nack(batch, 1, delay=7)
    await reader.nack(batch, 2, delay=70)
    reader.clock.advance(2)
    assert (await reader.lease("bob")).due_in == 5
    await reader.drain("bob")
    reader.clock.advance(20)
    assert await reader.drain("bob") == [1]
    assert (await reader.lease("bob")).due_in == 8  # when ann's lease expires
    await reader.ack_all(batch)
    assert (await reader.lease("bob")).due_in == 48


async def test_an_extended_lease_does_not_expire(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abcd")
    first, second = await reader.lease(limit=2), await reader.lease(limit=2)
    reader.clock.advance(29)
    assert sorted(await reader.extend()) == [first.lease_id, second.lease_id]
    reader.clock.advance(29)
    assert (await reader.lease("bob")).seqs == []
    assert await reader.ack_all(first, second) == []


async def test_a_lost_lease_is_not_extended(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    await reader.lease(limit=1)
    kept = await reader.lease("bob", limit=1)
    reader.clock.advance(15)
    assert await reader.extend("bob") == [kept.lease_id]
    reader.clock.advance(15)
    assert (await reader.lease("cid")).seqs == [1]
    assert await reader.extend("ann") == []
    assert await reader.extend("bob") == [kept.lease_id]
    assert await reader.extend("nobody") == []


async def test_reclaim_releases_leases_that_the_owner_does_not_know(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, *"abcdef")
    known = await reader.lease(limit=2)
    await reader.lease(limit=2)  # the answer to this call was lost
    others = await reader.lease("bob", limit=1)
    assert known.lease_id is not None
    assert await store.reclaim(database, reader.id, owner("ann"), [known.lease_id]) == 2
    again = await reader.lease("cid")
    assert (again.seqs, again.attempts) == ([3, 4, 6], [1, 1, 1])
    assert await reader.ack_all(known, others) == []
    assert await store.reclaim(database, reader.id, owner("ann"), []) == 0


async def test_a_parked_message_that_was_removed_is_skipped(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.nack(await reader.lease())
    await database.fetch("delete from headrace_streams.orders where seq in (1, 2)")
    assert await reader.drain() == [3]
    assert await reader.count("parked") == 0


async def test_a_lease_call_of_a_deleted_consumer_names_the_consumer(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await database.fetch("delete from headrace_internal.consumers")
    with pytest.raises(UnknownConsumer, match=r"[Dd]eclare it again"):
        await reader.lease()
    with pytest.raises(UnknownConsumer, match=r"[Dd]eclare it again"):
        await reader.seek(0)
    with pytest.raises(UnknownConsumer, match="The consumer 'ship' of the stream 'orders' does not exist"):
        await reader.info()
    with pytest.raises(UnknownConsumer, match="The consumer 'ship'"):
        await store.consumer_id(database, "orders", "ship")


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_lease_under_a_fixed_snapshot_is_refused(connect: Connect, declare: Declare, isolation: str) -> None:
    reader = await declare()
    connection = await connect()
    for verb in (lambda: reader.lease(), lambda: reader.seek(0)):
        reader.executor = connection
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        with pytest.raises(Exception, match="under read committed") as caught:
            await verb()
        assert caught.value.sqlstate == "HR003"  # type: ignore[attr-defined]
        await transaction.rollback()


async def test_a_refused_snapshot_is_a_configuration_error(database: store.Database, declare: Declare) -> None:
    reader = await declare()

    async def in_a_snapshot() -> None:
        with translated(database.dsn):
            async with (
                database.connections.connection() as connection,
                connection.transaction(isolation="repeatable_read"),
            ):
                await store.lease(connection, reader.id, owner("ann"), 1)

    with pytest.raises(ConfigurationError, match="transaction of its own, under read committed"):
        await in_a_snapshot()


async def test_a_lease_in_a_transaction_that_has_written_is_refused(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")

    async def in_a_transaction() -> None:
        async with database.transaction() as connection:
            await publish(connection, "b")
            await store.lease(connection, reader.id, owner("ann"), 1)

    with pytest.raises(ConfigurationError, match="must be a transaction of its own"):
        await in_a_transaction()


async def test_lease_calls_of_one_consumer_take_turns_and_others_do_not_wait(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, *"abcd")
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    first = await store.lease(slow, ship.id, owner("ann"), 2, now=ship.clock.now)
    second = await start(ship.lease("bob"))
    await until_blocked(database, slow)
    assert await bill.drain() == [1, 2, 3, 4]
    await transaction.commit()
    assert (first.seqs, (await second).seqs) == ([1, 2], [3, 4])


async def test_settling_does_not_wait_for_a_lease_call(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease(limit=2)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await store.lease(slow, reader.id, owner("bob"), 1, now=reader.clock.now)
    assert await reader.ack(batch, 1) == []
    assert await reader.nack(batch, 2) == []
    await transaction.commit()
    assert await reader.drain("cid") == [2, 4]


async def test_messages_behind_a_blocked_key_have_no_due_time(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=2, on_exhausted="block")
    await publish(database, "a")
    await reader.nack(await reader.lease())
    await publish(database, "a")
    await reader.nack(await reader.lease(), delay=10)
    assert (await reader.lease()).due_in is None
