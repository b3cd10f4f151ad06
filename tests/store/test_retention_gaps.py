"""Retention counts the removed messages that a consumer has not got."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import store, sweep
from tests.conftest import Connect
from tests.support.readers import publish
from tests.support.retained import HOUR, Stream

pytestmark = pytest.mark.asyncio


async def test_a_consumer_continues_after_removed_messages_and_the_gap_is_counted(
    stream: Stream,
) -> None:
    await stream.create(retain_up_to=HOUR)
    behind, done, fresh = [await stream.consumer(name) for name in ("behind", "done", "fresh")]
    await stream.fill(55)
    await behind.drain(limit=7, calls=1)
    await done.drain()
    await stream.age(2 * HOUR, below=31)
    swept = await stream.sweep()
    assert (swept.segments_dropped, swept.missed) == (3, 23 + 30)
    assert await stream.gap(behind) == (23, 8, 31)
    assert await stream.gap(fresh) == (30, 1, 31)
    assert await stream.gap(done) is None
    assert await behind.drain() == list(range(31, 56))
    assert await fresh.drain() == list(range(31, 56))
    await stream.sweep(2 * HOUR)
    assert await stream.gap(behind) == (23, 8, 31)


async def test_trimmed_messages_are_counted_too(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(8)
    await reader.drain(limit=3, calls=1)
    await stream.age(2 * HOUR, below=7)
    assert (await stream.sweep()).missed == 3
    assert await stream.gap(reader) == (3, 4, 7)
    assert await reader.drain() == [7, 8]


async def test_the_gap_counts_only_messages_that_the_consumer_wanted(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    keyed = await stream.consumer("keyed", filters=("k.1", "k.3"))
    await stream.fill(55)
    await stream.age(2 * HOUR, below=31)
    await stream.sweep()
    assert await stream.gap(keyed) == (12, 2, 30)
    await stream.sweep(2 * HOUR)
    assert (await stream.gap(keyed) or ())[0] == 22


async def test_the_gap_counts_messages_parked_replayed_or_behind_a_block(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=2, on_exhausted="block")
    await stream.fill(40)
    batch = await reader.lease(limit=10)
    await reader.nack(batch, 3, delay=10 * HOUR)
    await reader.nack(batch, 4)
    await reader.ack_all(batch)
    retried = await reader.lease(limit=1)
    assert retried.seqs == [4]
    await reader.nack(retried)  # this blocks k.3 and all later messages of that key
    rest = await reader.drain()
    assert set(rest) == {n for n in range(11, 41) if n % 5 not in (3, 4)}
    await stream.database.fetch(
        "insert into headrace_internal.replays values ($1, 7, hashtextextended('k.1', 0))", reader.id
    )
    await stream.age(2 * HOUR, below=31)
    await stream.sweep()
    parked, blocked = [3, 13, 18, 23, 28, 8], [14, 19, 24, 29, 9]
    lost = [n for n in (*parked, *blocked, 7) if n > 10 or n in (3, 7)]
    assert await stream.gap(reader) == (len(lost), 3, 30)
    assert await reader.count("replays") == 0
    (letter,) = await reader.dead_letters()
    assert letter.seq == 4
    assert letter.blocks
    await stream.fill(5)
    assert set(await reader.drain()) & {44} == set(), "its key still waits for a person"
    assert await reader.discard() == 1
    assert [seq for seq in await reader.drain() if seq % 5 == 4] == [34, 39, 44]


async def test_a_late_arrival_that_goes_unseen_is_counted(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late", "late")
    await stream.fill(33)
    assert len(await reader.drain()) == 33
    await transaction.commit()
    assert (await stream.sweep(2 * HOUR)).missed == 2
    assert await stream.gap(reader) == (2, 1, 3)
    await stream.fill(1)
    assert await reader.drain() == [36]


async def test_acks_of_removed_messages_have_no_effect_and_failures_are_counted(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    batch = await reader.lease(limit=10)
    assert (await stream.sweep(2 * HOUR)).missed == 25
    assert await reader.ack(batch, *range(1, 6)) == []
    await reader.nack(batch, *range(6, 11))
    assert await reader.drain() == []
    assert (await stream.gap(reader) or ())[0] == 30
    info = await reader.info()
    assert (info.in_flight, info.parked) == (0, 0)


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
async def test_a_message_removed_in_flight_that_then_fails_for_good_is_counted(
    stream: Stream, on_exhausted: Any
) -> None:
    """Rejected, exhausted, or exhausted because the worker died. There is no dead letter, so the
    count must include it."""
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted=on_exhausted, ack_wait=30.0)
    await stream.fill(35, keys=35)
    batch = await reader.lease(limit=8)
    dying = await reader.lease("bob", limit=2)
    assert dying.seqs == [9, 10]
    assert (await stream.sweep(2 * HOUR)).missed == 25
    await reader.reject(batch, 1, 2)
    assert await stream.gap(reader) == (27, 1, 3)
    await reader.nack(batch, 3)
    assert await stream.gap(reader) == (28, 3, 4)
    await reader.ack(batch, 4, 5, 6, 7, 8)
    reader.clock.advance(60)
    assert await reader.drain() == []
    assert await stream.gap(reader) == (30, 9, 11)
    info = await reader.info()
    assert (info.missed, info.dead_letters, info.blocked, info.in_flight) == (30, 0, 0, 0)
    await stream.fill(5, keys=35)
    assert len(await reader.drain()) == 5, "no key waits for what is gone"


async def test_dropped_messages_are_not_counted_as_a_gap(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted="drop")
    await stream.fill(10)
    batch = await reader.lease()
    assert (await stream.sweep(2 * HOUR)).missed == 0
    await reader.nack(batch, *range(1, 9))
    assert await stream.gap(reader) is None
    await reader.reject(batch, 9, 10)
    assert await stream.gap(reader) == (2, 9, 11)


async def test_a_blocked_key_is_freed_and_counted_when_its_messages_are_removed(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer(max_deliver=1, on_exhausted="block")
    await stream.fill(10, keys=1)
    await reader.nack(await reader.lease(limit=1))
    assert await reader.drain() == []
    assert (await stream.sweep(2 * HOUR)).missed == 9
    assert await reader.redrive() == 0, "its dead letter is all that is left"
    assert await reader.discard() == 1
    await stream.fill(1, keys=1)
    assert await reader.drain() == [11]
    assert (await stream.gap(reader) or ())[0] == 9


@pytest.mark.parametrize("policy", [{"retain_up_to": HOUR}, {"retention": "interest"}], ids=["age", "interest"])
async def test_messages_that_a_consumer_has_just_moved_back_to_are_not_removed_uncounted(
    stream: Stream, connect: Connect, policy: dict[str, Any]
) -> None:
    await stream.create(**policy)
    await stream.fill(15)
    reader = await stream.consumer()
    await reader.drain()
    mover = await connect()
    transaction = mover.transaction()
    await transaction.start()
    await store.seek(mover, reader.id, 0)
    early = await stream.sweep(after=2 * HOUR)
    await transaction.commit()
    late = await stream.sweep(after=2 * HOUR)
    left = await reader.drain()
    assert early.missed + late.missed + len(left) == 15


async def test_a_consumer_that_is_far_behind_is_moved_over_it_in_steps(stream: Stream) -> None:
    await stream.create(width=30_000, count=3, retain_up_to=HOUR)
    reader = await stream.consumer(filters=("k.1",))
    await stream.fill(65_000)
    sweeps = [await sweep(stream.database, now=stream.now + timedelta(hours=2))]
    while sweeps[-1].busy:  # autovacuum may hold the lock of a segment that was just filled
        sweeps.append(await sweep(stream.database, now=stream.now + timedelta(hours=2)))
    assert sum(one.segments_dropped for one in sweeps) == 2
    assert sum(one.missed for one in sweeps) == 13_000
    assert (await reader.cursor())["position"] == 60_000
    assert len(await stream.seqs()) == 0
    assert (await stream.gap(reader) or ())[0] == 13_000


async def test_a_consumer_that_was_moved_over_rolled_back_numbers_has_no_holes_left(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    for _ in range(20):
        await stream.fill(1)
        await stream.database.fetch("select nextval('headrace_streams.\"orders.seq\"')")
    await reader.lease(limit=1)
    assert (await stream.sweep(2 * HOUR)).missed == 19
    cursor = await reader.cursor()
    assert cursor["position"] == 40
    assert list(cursor["holes"]) == []


async def test_messages_that_have_expired_are_not_missed(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await store.publish_many(stream.database, "orders", ["k"] * 12, ["1"] * 12, ['{"headrace-expires-in": 60}'] * 12)
    await stream.fill(3)
    assert (await stream.sweep(2 * HOUR)).missed == 3
    assert await stream.gap(reader) == (3, 13, 16)
