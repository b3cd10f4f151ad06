"""Settings that are changed while messages wait: messages that wait for a condition that the settings no longer have are free immediately."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def change(reader: Reader, executor: Any = None, **settings: Any) -> None:
    reader.spec = msgspec.structs.replace(reader.spec, **settings)
    await store.declare_consumer(executor or reader.executor, reader.spec)


async def blocked(declare: Declare, database: store.Database, followers: int = 19) -> Reader:
    """A consumer with a blocked key and messages behind it."""
    reader = await declare(max_deliver=1, on_exhausted="block", max_ack_pending=100_000)
    await publish(database, *["a"] * (followers + 1))
    await reader.nack(await reader.lease(limit=1))
    assert await reader.drain(limit=10_000, look=10_000) == []
    return reader


@pytest.mark.parametrize("followers", [19, 25_000])
async def test_the_followers_of_a_blocked_key_are_free_when_a_consumer_is_no_longer_ordered(
    declare: Declare, database: store.Database, followers: int
) -> None:
    reader = await blocked(declare, database, followers)
    await change(reader, ordered=False)
    first = await reader.lease(limit=19)
    assert first.seqs == list(range(2, 21))
    await reader.ack_all(first)
    assert await reader.drain(limit=1_000) == list(range(21, followers + 2))
    assert await reader.count("tails") == 0
    assert await reader.redrive() == 1
    assert await reader.drain() == [1]


async def test_the_followers_of_a_retry_and_of_a_message_in_flight_are_free_as_well(
    declare: Declare, database: store.Database
) -> None:
    reader = await declare()
    await publish(database, *"aaabbb")
    batch = await reader.lease(limit=1)
    await reader.nack(batch, delay=60)
    ann = await reader.lease("ann", 1)
    assert ann.seqs == [4]
    assert await reader.drain("bob") == []
    await change(reader, ordered=False)
    assert await reader.drain("bob") == [2, 3, 5, 6]
    assert await reader.ack_all(ann) == []
    reader.clock.advance(60)
    assert await reader.drain("bob") == [1]


async def test_what_is_in_flight_and_would_come_again_in_its_order_does_not_once_there_is_no_order(
    declare: Declare, database: store.Database
) -> None:
    reader = await declare()
    await publish(database, *"aa")
    await reader.ack(await reader.lease("ann"), 1)
    await store.replay(database, reader.id, store.Selection())
    assert (await reader.lease("bob")).seqs == []
    await change(reader, ordered=False)
    assert await reader.drain("bob") == [1]
    assert (await reader.info()).in_flight == 1


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "drop"])
async def test_blocked_keys_continue_when_a_consumer_no_longer_blocks_and_their_dead_letters_stay(
    declare: Declare, database: store.Database, on_exhausted: str
) -> None:
    reader = await blocked(declare, database)
    await change(reader, on_exhausted=on_exhausted)
    info = await reader.info()
    assert (info.blocked, info.dead_letters) == (0, 1)
    assert await reader.drain() == list(range(2, 21))


async def test_a_failure_that_is_being_settled_when_a_consumer_stops_blocking_blocks_no_key(
    declare: Declare, database: store.Database, connect: Connect
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aa")
    batch = await reader.lease(limit=1)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    reader.executor = slow
    await reader.nack(batch)
    changing = await start(change(reader, database, on_exhausted="dead_letter"))
    await until_blocked(database, slow)
    await transaction.commit()
    await changing
    reader.executor = database
    assert await reader.drain() == [2]


async def test_other_settings_leave_what_waits_as_it_is(declare: Declare, database: store.Database) -> None:
    """A retry keeps its time, and a message that no longer matches but was read before is still delivered."""
    reader = await declare(max_deliver=3)
    await publish(database, *"ab")
    await reader.nack(await reader.lease(), delay=60)
    await change(reader, filters=("b",), max_deliver=2, ack_wait=10.0, rate_limit=1_000.0, max_ack_pending=7)
    assert await reader.drain() == []
    reader.clock.advance(60)
    again = await reader.lease()
    assert (again.seqs, again.attempts) == ([1, 2], [2, 2])
    await reader.nack(again)
    assert [letter.attempts for letter in await reader.dead_letters()] == [2, 2]
