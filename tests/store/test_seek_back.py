"""Seek back: nothing is lost of what is not done below the new position."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.records import Lost
from headrace.store import Selection
from tests.conftest import Connect, Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def test_a_seek_back_loses_nothing_that_is_not_done_below_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """At 30, the first message waits for its retry, the second is in flight, and the third belongs to an open transaction."""
    reader = await declare()
    await publish(database, *"ab")
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "c")
    await publish(database, *(f"k{n}" for n in range(4, 31)))
    await reader.nack(await reader.lease("ann", 1), delay=60)
    second = await reader.lease("ann", 1)
    assert await reader.drain("bob") == list(range(4, 31))
    found = await store.seek_preview(database, reader.id, seq=20, now=reader.clock.now)
    assert (found.again, found.skipped, found.in_flight) == (11, 0, 0)
    assert await reader.seek(19) == 19
    assert await reader.drain("bob") == list(range(20, 31))
    assert await reader.extend() == [second.lease_id]
    assert await reader.ack_all(second) == []
    await transaction.commit()
    reader.clock.advance(60)
    again = await reader.lease("bob")
    assert (again.seqs, again.attempts) == ([1, 3], [2, 1])
    assert (await reader.info()).missed == 0


async def test_a_lease_that_holds_a_message_above_the_new_position_ends_and_its_others_come_again(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease()
    await reader.ack_within(database, batch, 1)
    assert batch.lease_id
    found = await store.seek_preview(database, reader.id, seq=4, now=reader.clock.now)
    assert (found.again, found.skipped, found.in_flight) == (3, 0, 3)
    await reader.seek(3)
    assert await reader.ack_all(batch) == [Lost(batch.lease_id, None)]
    again = await reader.lease("bob")
    assert (again.seqs, again.attempts) == ([2, 3, 4], [1, 1, 1])


async def test_a_seek_back_keeps_followers_replays_and_blocked_keys(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aaabbcddaz")
    batch = await reader.lease("ann", 1)
    await reader.nack(batch)  # blocks a
    await reader.ack_all(await reader.lease("ann", 2))
    held = await reader.lease("ann", 2)
    assert held.seqs == [6, 7]
    assert await reader.drain("bob") == [10]
    assert await store.replay(database, reader.id, Selection(end_seq=4)) == 1
    await reader.seek(8)
    info = await reader.info()
    assert (info.blocked, info.replaying, info.in_flight) == (3, 1, 2)  # and the two behind it
    assert await reader.drain("bob") == [4, 10]
    assert await reader.ack(held, 6, 7) == []
    assert await reader.drain("bob") == [8]
    assert await reader.redrive() == 1
    assert await reader.drain("bob") == [1, 2, 3, 9]


async def test_a_key_that_is_blocked_above_the_new_position_continues_below_it(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, *"ba")
    batch = await reader.lease()
    await reader.ack(batch, 2)
    await reader.nack(batch, 3)
    await transaction.commit()
    assert await reader.drain("bob") == []  # 1 waits for the blocked key
    await reader.seek(2)
    assert await reader.drain("bob") == [1, 3]


async def test_a_seek_back_keeps_the_holes_that_are_frozen(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await database.fetch(
        "create or replace function headrace_internal.max_hole_bytes() returns int language sql immutable as 'select 0'"
    )
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    for number in range(20):
        await publish(late, f"late{number}")
        await publish(database, f"early{number}")
        await reader.drain()
    assert await reader.count("frozen_holes") > 0
    await reader.seek(21)
    early = [seq for seq in range(22, 41) if seq % 2 == 0]
    assert await reader.drain() == early
    await transaction.commit()
    assert await reader.drain() == list(range(1, 41, 2))
    assert await reader.count("frozen_holes") == 0


async def test_a_seek_to_the_position_itself_changes_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=10)
    before = await reader.info()
    assert await reader.seek(3) == 3
    after = await reader.info()
    assert (after.in_flight, after.parked) == (before.in_flight, before.parked) == (2, 1)
    assert await reader.ack(batch, 2, 3) == []


async def test_a_seek_to_a_time_since_which_nothing_was_published_passes_over_nothing(
    database: store.Database, declare: Declare
) -> None:
    """The consumer has read all there is. A message waits for its retry."""
    reader = await declare()
    await publish(database, *"ab")
    await reader.nack(await reader.lease(), 1, delay=60)
    now = await database.fetchval("select clock_timestamp()")
    found = await store.seek_preview(database, reader.id, time=now)
    assert (found.after, found.again, found.skipped, found.in_flight) == (2, 0, 0, 0)
    assert await store.seek_to(database, reader.id, time=now) == 2
    info = await reader.info()
    assert (info.parked, info.in_flight) == (1, 1)


async def test_a_seek_back_reads_nothing_of_what_it_keeps(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """However many messages are parked, wait behind another one, or may fill holes below the new position."""
    reader = await declare(max_ack_pending=100_000)
    counts = []
    for many in (10, 3_000):
        await reader.seek(None)
        first = (await reader.cursor())["position"]
        await publish(database, *(f"k{n}" for n in range(many)), *["hot"] * many, "z")
        await reader.nack(await reader.lease(limit=many + 1), delay=3600)
        await reader.drain(limit=10_000, look=10_000)
        reader.executor = connection = await connect()
        async with connection.transaction():
            before = await connection.fetchval(TOUCHED)
            await reader.seek(first + 2 * many)
            counts.append(await connection.fetchval(TOUCHED) - before)
        reader.executor = database
        assert await reader.count("parked") == many + 1
        assert await reader.count("tails") == many - 1
    assert counts[1] <= counts[0] + 30, counts


TOUCHED = """
select coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid)), 0)::int
from pg_class as c where c.relnamespace = 'headrace_internal'::regnamespace and c.relkind in ('r', 'i')"""
