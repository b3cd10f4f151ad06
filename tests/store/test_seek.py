"""Seek: move a consumer to any position, forward or back, whatever is in flight."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.records import Lost
from tests.conftest import Connect, Declare
from tests.support.readers import publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_back_to_the_start_delivers_everything_again(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    assert await reader.drain() == [1, 2, 3]
    assert await reader.seek(0) == 0
    again = await reader.lease()
    assert (again.seqs, again.attempts) == ([1, 2, 3], None)


async def test_a_seek_back_delivers_the_messages_above_the_position(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    assert len(await reader.drain()) == 5
    assert await reader.seek(3) == 3
    assert await reader.drain() == [4, 5]


async def test_a_seek_forward_skips_the_messages_in_between(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    assert (await reader.lease(limit=1)).seqs == [1]
    await reader.seek(4)
    assert await reader.drain() == [5]


async def test_a_seek_to_the_end_delivers_only_messages_published_afterwards(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc")
    assert await reader.seek(None) == 3
    assert await reader.drain() == []
    await publish(database, "d")
    assert await reader.drain() == [4]


async def test_the_end_of_an_empty_stream_is_its_start(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    assert await reader.seek(None) == 0
    await publish(database, "a")
    assert await reader.drain() == [1]


async def test_a_seek_ends_leases_in_flight_and_their_acks_are_lost(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    stale = await reader.lease(limit=2)
    assert stale.lease_id
    await reader.seek(0)
    assert await reader.extend() == []
    assert await reader.ack_all(stale) == [Lost(stale.lease_id, None)]
    assert await reader.nack(stale, 1) == [Lost(stale.lease_id, 1)]
    # The keys are free. No message waits for the ended lease.
    assert (await reader.lease("bob")).seqs == [1, 2, 3]


async def test_a_seek_forward_removes_parked_messages_and_blocks_but_no_dead_letter(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aabbcab")
    batch = await reader.lease(limit=3)
    await reader.nack(batch, 1)
    await reader.release(batch, 2, 3)
    assert await reader.drain(limit=3) == [3, 4, 5, 7]
    await publish(database, *"ab")
    await reader.seek(8)
    info = await reader.info()
    assert (info.parked, info.blocked, info.dead_letters) == (0, 0, 1)
    assert await reader.drain() == [9]
    assert [dead.blocks for dead in await reader.dead_letters()] == [False]
    assert await reader.redrive() == 1
    assert await reader.drain() == [1]


async def test_a_seek_leaves_other_consumers_alone(database: store.Database, declare: Declare) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, *"ab")
    batch = await bill.lease(limit=1)
    await bill.nack(batch)
    held = await bill.lease(limit=1)
    await ship.seek(None)
    assert await bill.ack_all(held) == []
    assert await bill.drain() == [2]


@pytest.mark.parametrize("published_before", [0, 3])
async def test_a_message_that_commits_after_the_seek_to_the_end_is_delivered(
    database: store.Database, declare: Declare, connect: Connect, published_before: int
) -> None:
    reader = await declare()
    await publish(database, *["old"] * published_before)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late", "late")
    await publish(database, "early")
    assert await reader.seek(None) == published_before + 3
    assert await reader.drain() == []
    await publish(database, "new")
    assert await reader.drain() == [published_before + 4]
    await transaction.commit()
    assert await reader.drain() == [published_before + 1, published_before + 2]
    assert await reader.drain() == []


async def test_a_message_that_commits_above_the_sought_position_is_delivered(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await publish(database, *"ab")
    assert await reader.drain() == [2, 3]
    await reader.seek(0)
    assert await reader.drain() == [2, 3]
    await transaction.commit()
    assert await reader.drain() == [1]


async def test_a_hole_that_was_open_before_a_seek_forward_is_not_delivered(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await publish(database, *"abc")
    assert (await reader.lease(limit=1)).seqs == [2]
    await reader.seek(3)
    await transaction.commit()
    assert await reader.drain() == [4]


async def test_a_settle_in_progress_is_finished_before_the_seek(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Otherwise a message that it parks would be delivered twice: once as parked, and once because
    the cursor passes it."""
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    reader.executor = slow
    assert await reader.nack(batch, 1) == []
    reader.executor = database
    sought = await start(reader.seek(0))
    await until_blocked(database, slow)
    await transaction.commit()
    assert await sought == 0
    assert await reader.count("parked") == 0
    assert await reader.drain() == [1, 2]


async def test_a_seek_may_be_part_of_a_larger_transaction(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    assert await reader.drain() == [1, 2, 3]
    async with database.transaction() as connection:
        await publish(connection, "d")
        await store.seek(connection, reader.id, 1)
    assert await reader.drain() == [2, 3, 4]


async def test_a_rolled_back_seek_changes_nothing(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease(limit=1)
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await store.seek(connection, reader.id, 0)
    await transaction.rollback()
    assert await reader.ack_all(batch) == []
    assert await reader.drain() == [2]


# --- to the end of a stream that is large, or busy


async def test_a_seek_to_the_end_of_a_large_stream_searches_only_recent_messages_for_holes(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Holes that no transaction can fill are not recorded, even while other transactions publish."""
    reader = await declare()
    await insert(database, 1, 300_000, step=2, age="3 hours")
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 300001)")
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    (first, second) = [await store.publish(late, "orders", key, "1") for key in "ab"]
    await publish(database, "c")
    assert await reader.seek(None) == 300_004
    # The last of the old messages is 299,999. The holes begin there, and do not include the gaps of
    # the three hours before.
    assert [(hole.lower, hole.upper) for hole in (await reader.cursor())["holes"]] == [(300_000, 300_004)]
    await transaction.commit()
    assert await reader.drain() == [first, second]


async def test_a_late_commit_at_the_start_of_a_large_stream_is_delivered_after_a_seek_to_its_end(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 300000)")
    await publish(database, "a")
    assert await reader.seek(None) == 300_001
    await transaction.commit()
    assert await reader.drain() == [1]


async def test_a_range_without_holes_for_another_consumer_is_not_searched_for_holes(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    other = await declare("other")
    for _ in range(3):
        undone = await connect()
        transaction = undone.transaction()
        await transaction.start()
        await publish(undone, "x")
        await transaction.rollback()
        await publish(database, "a")
    while (await other.cursor())["settled"] < 6:
        await other.drain()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await publish(database, "b")
    reader = await declare()
    assert await reader.seek(None) == 8
    assert [(hole.lower, hole.upper) for hole in (await reader.cursor())["holes"]] == [(7, 8)]
    await transaction.commit()
    assert await reader.drain() == [7]


async def insert(database: store.Database, first: int, last: int, *, step: int = 1, age: str = "0 s") -> None:
    """Insert messages with a time in the past and with given seqs."""
    await database.fetch(
        """insert into headrace_streams.orders (seq, created_at, key, data) overriding system value
           select seq, now() - $4::text::interval + seq * interval '1 ms', 'k', '1' from generate_series($1::bigint, $2::bigint, $3::int) as seq""",
        first, last, step, age,
    )  # fmt: skip


# --- to a seq, to a time


async def test_to_a_seq_the_next_message_is_the_first_at_or_above_it(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    await reader.drain()
    assert await store.seek_to(database, reader.id, seq=4) == 3
    assert await reader.drain() == [4, 5]
    assert await store.seek_to(database, reader.id, seq=1) == 0
    assert await reader.drain() == [1, 2, 3, 4, 5]


async def test_a_seq_past_the_end_is_refused_with_the_last_one(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    with pytest.raises(InvalidInput, match="whose last one is 0"):
        await store.seek_to(database, reader.id, seq=1)
    await publish(database, *"abc")
    batch = await reader.lease(limit=1)
    with pytest.raises(InvalidInput, match=r'seq 4 lies past the end .* whose last one is 3: .* or "end"'):
        await store.seek_to(database, reader.id, seq=4)
    assert await reader.ack_all(batch) == []


async def test_a_seq_below_the_first_remaining_message_continues_there(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    await reader.drain()
    await database.fetch("delete from headrace_streams.orders where seq <= 3")
    await store.seek_to(database, reader.id, seq=2)
    assert await reader.drain() == [4, 5]


async def test_to_a_time_the_next_message_is_the_first_of_that_time_or_later(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await database.fetch("select pg_sleep(0.001)")
    await publish(database, *"def")
    times = [
        row["created_at"] for row in await database.fetch("select created_at from headrace_streams.orders order by seq")
    ]
    for place, time in enumerate(times):
        await store.seek_to(database, reader.id, time=time)
        assert await reader.drain() == list(range(place + 1, 7))
        await store.seek_to(database, reader.id, time=time + timedelta(microseconds=1))
        assert await reader.drain() == [seq for seq in range(1, 7) if times[seq - 1] > time]


async def test_before_all_times_is_the_start_and_after_them_the_end(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    assert await store.seek_to(database, reader.id, time=datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert await reader.drain() == [1, 2, 3]
    now = await database.fetchval("select clock_timestamp()")
    assert await store.seek_to(database, reader.id, time=now) == 3
    assert await reader.drain() == []


async def test_a_time_in_the_future_is_refused(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    with pytest.raises(InvalidInput, match="lies in the future"):
        await store.seek_to(database, reader.id, time=datetime(2999, 1, 1, tzinfo=UTC))


async def test_a_time_is_found_in_a_large_stream_with_gaps_and_some_disorder(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await insert(database, 1, 200_000, step=7, age="1 day")
    await insert(database, 200_007, 250_000, step=3, age="2 hours")
    # One message was delayed by half a minute between drawing its seq and reading the clock.
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at + interval '30 s' where seq = 150375"
    )
    await database.fetchval("select setval('headrace_streams.\"orders.seq\"', 250000)")
    for seq in (1, 8, 150_375, 150_382, 199_998, 200_007, 200_010, 249_999):
        time = await database.fetchval("select created_at from headrace_streams.orders where seq = $1", seq)
        expected = await database.fetchval("select min(seq) from headrace_streams.orders where created_at >= $1", time)
        assert await database.fetchval("select headrace_internal.seq_at('orders', $1)", time) == expected
        await store.seek_to(database, reader.id, time=time)
        assert (await reader.lease(limit=1)).seqs == [expected]


async def test_a_message_that_commits_late_at_the_sought_time_is_delivered(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "before")
    time = await database.fetchval("select clock_timestamp()")
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await publish(database, "after")
    assert await store.seek_to(database, reader.id, time=time) == 1
    assert await reader.drain() == [3]
    await transaction.commit()
    assert await reader.drain() == [2]


# --- while workers run


async def test_a_seek_under_four_workers_keeps_the_order_of_each_key_and_old_acks_change_nothing(
    database: store.Database, declare: Declare
) -> None:
    """Each seek begins an epoch. Within one, every worker's deliveries of a key are in order. An
    ack from before it is lost."""
    reader = await declare(max_ack_pending=60)
    await publish(database, *["a", "b", "c", "d", "e"] * 80)
    epoch = 0
    delivered: dict[tuple[int, str], list[int]] = {}
    ended = asyncio.Event()

    async def work(who: str, chance: random.Random) -> None:
        while True:
            before = epoch
            batch = await reader.lease(who, 10)
            if batch.lease_id is None:
                if ended.is_set() and not batch.more:
                    return
                await asyncio.sleep(0)
                continue
            if before != epoch or before >= 50:
                await reader.release(batch)  # leased during the seek, so its epoch is unknown
                continue
            for seq, key in zip(batch.seqs, batch.keys, strict=True):
                delivered.setdefault((before, key), []).append(seq)
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if await reader.ack_all(batch):
                assert before != epoch

    async def seek_about() -> None:
        nonlocal epoch
        for position in (0, 200, 17, 0):
            async with asyncio.timeout(30):
                await under_way(epoch)
            epoch += 50  # between the epochs, because the epoch of a lease made now is unknown
            await reader.seek(position)
            epoch -= 49
        ended.set()

    async def under_way(number: int) -> None:
        while sum(one == number for one, _ in delivered) < 5:
            await reader.info()

    owners = [work(who, random.Random(who)) for who in ("ann", "bob", "cid", "dan")]
    async with asyncio.timeout(60):
        await asyncio.gather(seek_about(), *owners)
    assert [seqs for seqs in delivered.values() if seqs != sorted(set(seqs))] == []
    assert await reader.drain("eve") == []
    last = [seq for (number, _), seqs in delivered.items() if number == 4 for seq in seqs]
    assert sorted(last) == list(range(1, 401))
