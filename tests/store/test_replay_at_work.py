"""Replay while messages are in flight: each key keeps its order, and ends with its latest message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.store.test_replay import ALL, replay
from tests.support.readers import Reader, begun, by_key, owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def at_work(reader: Reader, keys: int = 30) -> Any:
    """Three messages of each key: two are done, and ann is at the third. Returns its lease."""
    await publish(reader.executor, *[f"k{n}" for n in range(keys)] * 3)
    for _ in range(2):
        await reader.ack_all(await reader.lease("ann", keys))
    return await reader.lease("ann", keys)


async def by_keys(reader: Reader, who: str = "bob", limit: int = 100) -> dict[str, list[int]]:
    """Lease and ack all that there is."""
    handled: dict[str, list[int]] = {}
    while (batch := await reader.lease(who, limit)).lease_id is not None:
        for key, seqs in by_key(batch).items():
            handled.setdefault(key, []).extend(seqs)
        assert await reader.ack_all(batch) == []
    return handled


@pytest.mark.parametrize("limit", [2, 100])
@pytest.mark.parametrize("outcome", ["ack", "nack", "release", "expire"])
async def test_a_key_at_work_ends_with_its_latest_message_after_a_replay(
    database: store.Database, declare: Declare, outcome: str, limit: int
) -> None:
    """The replayed messages wait for the one in flight, which is delivered again after them."""
    reader = await declare()
    ann = await at_work(reader)
    assert await replay(reader) == 90
    assert await replay(reader) == 0
    for who in ("bob", "ann"):
        assert (await reader.lease(who)).seqs == []
    if outcome == "expire":
        reader.clock.advance(31)
    else:
        assert await {"ack": reader.ack, "nack": reader.nack, "release": reader.release}[outcome](ann) == []
    assert await by_keys(reader, limit=limit) == {f"k{n}": [n + 1, n + 31, n + 61] for n in range(30)}
    assert [await reader.count(table) for table in ("parked", "tails", "replays", "leases")] == [0] * 4


async def test_only_keys_of_which_something_earlier_is_replayed_repeat_what_is_in_flight(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.drain()
    await publish(database, *"abc")
    ann = await reader.lease("ann")
    assert await replay(reader, filters=("a",)) == 2
    assert await reader.ack_all(ann) == []
    assert await reader.drain("bob") == [1, 3]


async def test_an_unordered_consumer_is_not_given_again_what_is_in_flight(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ordered=False)
    ann = await at_work(reader, 1)
    assert await replay(reader) == 2
    assert await reader.drain("bob") == [1, 2]
    assert await reader.ack_all(ann) == []
    assert await reader.drain("bob") == []


async def test_a_message_in_flight_that_comes_again_is_retried_with_its_attempts_and_delay(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    ann = await at_work(reader, 1)
    await replay(reader)
    await reader.nack(ann, delay=10)
    assert await reader.drain("bob") == [1, 2]
    reader.clock.advance(10)
    again = await reader.lease("bob")
    assert (again.seqs, again.attempts) == ([3], [2])


async def test_a_message_that_comes_again_and_failed_waits_no_longer_after_the_clock_was_set_back(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    ann = await at_work(reader, 1)
    await replay(reader)
    assert (await reader.lease("bob")).seqs == []
    await store.cancel(database, reader.id, [1, 2])  # so that it is the first of its key that waits
    await reader.nack(ann, delay=10)
    reader.clock.advance(-3600)
    assert (await reader.lease("bob")).seqs == []
    reader.clock.advance(10)
    assert (await reader.lease("bob")).seqs == [3]


async def test_a_process_keeps_its_leases_while_messages_of_theirs_are_to_be_repeated_twice(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.drain()
    await publish(database, *"ab")
    ann = await reader.lease("ann")
    assert ann.lease_id is not None
    for key in "ab":
        await replay(reader, filters=(key,))
    messages = [(ann.lease_id, seq, key) for seq, key in zip(ann.seqs, ann.keys, strict=True)]
    process = store.Owner(reader.id, owner("ann"), "orders", "ship")
    answer = await store.check_in(database, process, messages, now=reader.clock.now)
    assert (set(answer.leases), answer.holds) == ({ann.lease_id}, {})
    assert await store.reclaim(database, reader.id, owner("ann"), []) == len(messages)
    assert await by_keys(reader) == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("gone", ["erased", "removed"])
async def test_what_is_in_flight_comes_again_even_if_the_replayed_messages_are_gone(
    database: store.Database, declare: Declare, gone: str
) -> None:
    """Nothing of the key is left standing."""
    reader = await declare()
    ann = await at_work(reader, 1)
    await replay(reader)
    if gone == "erased":
        await store.erase(database, "orders", [1, 2])
    else:
        await database.fetchval(
            "select headrace_internal.drop_undelivered(s, $1, 4, array[1, 2]::bigint[], now()) from headrace_internal.streams as s",
            reader.id,
        )
        await database.fetch("delete from headrace_streams.orders where seq <= 2")
    assert await reader.ack_all(ann) == []
    await publish(database, "k0")
    assert await reader.drain("bob") == [3, 4]


async def test_messages_that_are_handled_while_a_replay_searches_are_replayed(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """The search takes as long as the stream is. A key must not end with a message from before it."""
    reader = await declare()
    await publish(database, *"ab")
    await reader.drain()
    await publish(database, *"ab")
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    reader.executor = slow
    batch = await reader.lease()
    assert batch.seqs == [3, 4]
    assert await reader.ack_all(batch) == []
    replaying = await start(store.replay(database, reader.id, ALL))
    await until_blocked(database, slow)
    await transaction.commit()
    assert await replaying == 4
    reader.executor = database
    assert await reader.drain() == [1, 2, 3, 4]


async def test_a_consumer_that_stops_ordering_while_a_replay_searches_is_not_given_again_what_is_in_flight(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    ann = await at_work(reader, 1)
    async with begun(connect) as (slow, transaction):
        await store.declare_consumer(slow, msgspec.structs.replace(reader.spec, ordered=False))
        replaying = await start(store.replay(database, reader.id, ALL))
        await until_blocked(database, slow)
        await transaction.commit()
        assert await replaying == 2
    assert await reader.count("tails") == 0
    assert await reader.drain("bob") == [1, 2]
    assert await reader.ack_all(ann) == []
    assert await reader.drain("bob") == []


async def test_a_filter_that_is_edited_while_a_replay_searches_is_kept_for_what_is_examined_afterwards(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.drain()
    await publish(database, *"ab")
    async with begun(connect) as (slow, transaction):
        await slow.execute("select pg_advisory_xact_lock(1212498508, $1)", reader.id)
        replaying = await start(store.replay(database, reader.id, ALL))
        await until_blocked(database, slow)
        await store.declare_consumer(database, msgspec.structs.replace(reader.spec, filters=("a",)))
        reader.executor = slow
        assert await reader.drain(calls=1) == [3]
        await transaction.commit()
        assert await replaying == 3
    reader.executor = database
    assert await reader.drain() == [1, 2, 3]
