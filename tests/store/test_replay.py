"""Replay and republish: deliver messages again to one consumer, or publish them again into another stream."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.store import Selection
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.readers import Reader, by_key, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

ALL = Selection()


async def replay(reader: Reader, selection: Selection = ALL, **chosen: Any) -> int:
    """Replay, and check that the dry run returns the same count."""
    selection = Selection(**chosen) if chosen else selection
    counted = await store.replay(reader.executor, reader.id, selection, dry_run=True)
    count = await store.replay(reader.executor, reader.id, selection)
    assert counted == count
    return count


async def test_a_replay_delivers_settled_messages_again(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcab")
    assert len(await reader.drain()) == 5
    assert await replay(reader) == 5
    assert (await reader.info()).replaying == 5
    batch = await reader.lease()
    assert (batch.seqs, batch.attempts) == ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1])
    await reader.ack_all(batch)
    assert await reader.drain() == []
    assert (await reader.info()).replaying == 0


async def test_a_dry_run_only_counts(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.drain()
    assert await store.replay(database, reader.id, ALL, dry_run=True) == 3
    assert await reader.drain() == []


async def test_a_replay_comes_before_anything_new(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.drain()
    await publish(database, *"ab")
    assert await replay(reader) == 2
    assert await reader.drain(limit=1) == [1, 2, 3, 4]


async def test_a_range_of_seqs_is_inclusive(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdef")
    await reader.drain()
    assert await replay(reader, start_seq=2, end_seq=4) == 3
    assert await reader.drain() == [2, 3, 4]
    assert await replay(reader, start_seq=6) == 1
    assert await replay(reader, end_seq=1) == 1
    assert await reader.drain() == [1, 6]


async def test_a_range_of_times_is_inclusive(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for key in "abcde":
        await publish(database, key)
    times = [
        row["created_at"] for row in await database.fetch("select created_at from headrace_streams.orders order by seq")
    ]
    await reader.drain()
    assert await replay(reader, start_time=times[1], end_time=times[3]) == 3
    assert await reader.drain() == [2, 3, 4]
    assert await replay(reader, start_time=times[3] + timedelta(microseconds=1)) == 1
    assert await replay(reader, end_time=times[0] - timedelta(microseconds=1)) == 0
    assert await replay(reader, start_time=datetime(2999, 1, 1, tzinfo=UTC)) == 0


async def test_a_replay_keeps_to_its_filters_and_to_those_of_the_consumer(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(filters=("eu.>", "us.>"), where=conditions.parse("data.n < 3"))
    await publish(database, "eu.a", "us.a", "asia.a", "eu.b", "us.b")  # n from 0 to 4
    assert await reader.drain() == [1, 2]
    assert await replay(reader) == 2
    assert await reader.drain() == [1, 2]
    assert await replay(reader, filters=("eu.>", "asia.>")) == 1
    assert await reader.drain() == [1]
    assert await replay(reader, where=conditions.parse("data.n >= 1")) == 1
    assert await reader.drain() == [2]


async def test_messages_that_are_still_to_be_delivered_are_not_replayed(
    database: store.Database, declare: Declare
) -> None:
    """In flight, parked, blocked, and above the cursor."""
    reader = await declare(max_deliver=2, on_exhausted="block")
    await publish(database, *"abcdef")
    batch = await reader.lease(limit=4)
    await reader.nack(batch, 2, delay=100)
    await reader.ack(batch, 4)
    again = await reader.lease("bob", limit=1)  # 5
    await reader.nack(again, 5)
    await reader.nack(await reader.lease("bob", limit=1), 5)
    assert (await reader.info()).blocked == 1
    assert await replay(reader) == 1
    assert [row["seq"] for row in await database.fetch("select seq from headrace_internal.replays")] == [4]


async def test_a_replay_twice_is_a_replay_once(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.drain()
    assert await replay(reader) == 3
    assert await replay(reader) == 0
    assert await reader.drain() == [1, 2, 3]


async def test_a_hole_below_the_cursor_is_not_replayed_and_is_delivered_when_it_commits(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    await publish(database, *"ab")
    assert await reader.drain() == [2, 3]
    await transaction.commit()
    assert await replay(reader) == 2
    assert sorted(await reader.drain()) == [1, 2, 3]


async def test_a_seek_during_a_replay_removes_replayed_messages_above_the_new_cursor(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Otherwise it would be delivered twice, once by the replay and once by the cursor."""
    reader = await declare()
    await publish(database, *"abcd")
    await reader.drain()
    seeking = await connect()
    transaction = seeking.transaction()
    await transaction.start()
    await store.seek(seeking, reader.id, 2)
    replaying = await start(store.replay(database, reader.id, ALL))
    await until_blocked(database, seeking)
    await transaction.commit()
    assert await replaying == 2
    assert await reader.drain() == [1, 2, 3, 4]


async def test_replays_while_workers_lease_keep_the_order_of_each_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *["a", "b", "c", "d"] * 50)
    assert len(await reader.drain()) == 200
    await publish(database, *["a", "b", "c", "d"] * 50)
    delivered: dict[str, list[int]] = {}
    replayed = asyncio.Event()

    async def work(who: str) -> None:
        while True:
            batch = await reader.lease(who, 7)
            for key, seqs in by_key(batch).items():
                delivered.setdefault(key, []).extend(seqs)
            if batch.lease_id is not None:
                await reader.ack_all(batch)
            elif replayed.is_set() and not batch.more:
                return
            await asyncio.sleep(0)

    async def replay_some() -> None:
        for _ in range(3):
            await store.replay(database, reader.id, Selection(end_seq=200))
        replayed.set()

    await asyncio.gather(replay_some(), *(work(who) for who in ("ann", "bob", "cid", "dan")))
    for seqs in delivered.values():
        starts = [after for before, after in pairwise(seqs) if after <= before]
        # Each replay begins a key again with a replayed message. A newer message that was in flight at that moment
        # follows it once more, since the key would end with an older one otherwise.
        assert all(seq <= 200 for seq in starts)
        assert seqs[-1] == max(seqs)
        old = [seq for seq in seqs if seq <= 200]
        # At least one and at most three replays had an effect.
        assert 1 <= sum(after <= before for before, after in pairwise(old)) + 1 <= 3
        assert len(starts) <= 3
    assert {seq for seqs in delivered.values() for seq in seqs} == set(range(1, 401))


async def test_a_dead_letter_that_is_replayed_and_redriven_comes_once(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.reject(await reader.lease(), 1)
    await reader.drain()
    assert await replay(reader, end_seq=1) == 1
    assert await reader.redrive() == 1
    assert await reader.count("parked") == 0
    reader.clock.advance(31)
    assert sorted(await reader.drain()) == [1, 2]


async def test_a_replay_notifies_waiting_workers(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.drain()
    heard = asyncio.Event()
    listener = await connect()
    await notifications.listen(listener, lambda *_: heard.set())
    await store.wait(database, reader.id, 60)
    await store.replay(database, reader.id, ALL)
    async with asyncio.timeout(10):
        await heard.wait()


async def test_a_replay_for_a_deleted_consumer_is_refused(database: store.Database) -> None:
    with pytest.raises(UnknownConsumer):
        await store.replay(database, 999, ALL)


# --- republish


async def rows(database: store.Database, stream: str) -> list[tuple[str, str, str | None]]:
    found = await database.fetch(f"select key, data, headers from headrace_streams.{stream} order by seq")
    return [tuple(row) for row in found]


async def test_messages_are_published_again_in_their_order_with_data_and_headers(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await store.create_stream(database, "copy")
    await store.publish_many(
        database, "orders", list("abab"), ["1", '{"x":  2}', "null", '"é"'], ['{"h": 1}', None, None, '{"h": [2]}']
    )
    selection = Selection(filters=("a", "b"), start_seq=1)
    assert await store.republish(database, "orders", "copy", selection, dry_run=True) == 4
    assert await rows(database, "copy") == []
    assert await store.republish(database, "orders", "copy", selection) == 4
    assert await rows(database, "copy") == await rows(database, "orders")


async def test_more_than_a_chunk_is_published_again_in_order(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.create_stream(database, "copy")
    await publish(database, *[f"k{n}" for n in range(2_500)])
    assert await store.republish(database, "orders", "copy", Selection(end_seq=2_400)) == 2_400
    assert await rows(database, "copy") == (await rows(database, "orders"))[:2_400]


async def test_a_stream_can_be_published_into_itself_and_that_ends(database: store.Database, declare: Declare) -> None:
    await declare()
    await publish(database, *["a", "b"] * 1_500)
    assert await store.republish(database, "orders", "orders", Selection(filters=("b",))) == 1_500
    assert [key for key, _, _ in await rows(database, "orders")] == [*["a", "b"] * 1_500, *["b"] * 1_500]


async def test_a_republish_is_part_of_the_callers_transaction(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    await store.create_stream(database, "copy")
    await publish(database, *"abc")
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    assert await store.republish(connection, "orders", "copy", ALL) == 3
    await transaction.rollback()
    assert await rows(database, "copy") == []


@pytest.mark.parametrize(("stream", "target"), [("orders", "nowhere"), ("nowhere", "orders")])
async def test_unknown_streams_are_refused(
    database: store.Database, declare: Declare, stream: str, target: str
) -> None:
    await declare()
    for dry_run in (True, False):
        with pytest.raises(UnknownStream, match="nowhere"):
            await store.republish(database, stream, target, ALL, dry_run=dry_run)
