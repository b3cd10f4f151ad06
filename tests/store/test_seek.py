"""seek: move a consumer to any place, forward or back, whatever is in flight."""

from __future__ import annotations

import pytest

from headrace import store
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


async def test_back_to_a_position_delivers_what_is_above_it(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    assert len(await reader.drain()) == 5
    assert await reader.seek(3) == 3
    assert await reader.drain() == [4, 5]


async def test_forward_passes_over_what_lies_between(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    assert (await reader.lease(limit=1)).seqs == [1]
    await reader.seek(4)
    assert await reader.drain() == [5]


async def test_at_the_end_only_what_is_published_from_now_on_comes(database: store.Database, declare: Declare) -> None:
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


async def test_a_seek_ends_what_is_in_flight_and_its_acks_are_lost(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    stale = await reader.lease(limit=2)
    assert stale.lease_id
    await reader.seek(0)
    assert await reader.extend() == []
    assert await reader.ack_all(stale) == [Lost(stale.lease_id, None)]
    assert await reader.nack(stale, 1) == [Lost(stale.lease_id, 1)]
    # The keys are free: nobody waits for the dead lease.
    assert (await reader.lease("bob")).seqs == [1, 2, 3]


async def test_a_seek_forgets_what_was_parked_and_blocked_but_no_dead_letter(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aabbc")
    batch = await reader.lease(limit=3)
    await reader.nack(batch, 1)
    await reader.release(batch, 2, 3)
    assert await reader.drain() == [3, 4, 5]
    await reader.seek(1)
    info = await reader.info()
    assert (info.parked, info.blocked, info.dead_letters) == (0, 0, 1)
    assert await reader.drain() == [2, 3, 4, 5]
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
async def test_a_publisher_that_commits_after_the_seek_to_the_end_is_wanted(
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


async def test_a_publisher_that_commits_above_the_sought_position_is_wanted(
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
    assert await reader.drain(limit=1) == [2, 3, 4]
    await reader.seek(3)
    await transaction.commit()
    assert await reader.drain() == [4]


async def test_a_settle_in_progress_is_finished_before_the_seek(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Or what it parks would be delivered twice: once parked, and once because the cursor passes it."""
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
