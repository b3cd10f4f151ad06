"""Leasing in shares: one call serves many receivers. Each share is a separate lease, and the
shares are independent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headrace import store
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.store.messages.replay import Selection
from tests.conftest import Connect, Declare
from tests.support.readers import Clock, Reader, begun, publish

pytestmark = pytest.mark.asyncio


async def deal(reader: Reader, *sizes: int, **bounds: Any) -> list[Batch]:
    """Lease in shares of these sizes. Returns each share as the batch of a separate lease."""
    return parts(await reader.lease("dealer", sum(sizes), shares=list(sizes), **bounds), *sizes)


def parts(batch: Batch, *sizes: int) -> list[Batch]:
    found = []
    rest = batch
    for lease_id, size in zip(batch.lease_ids or [], sizes, strict=False):
        found.append(_cut(rest, lease_id, slice(0, size)))
        rest = _cut(rest, lease_id, slice(size, None))
    assert rest.seqs == [] or not found, "every message is in a share"
    return found


def _cut(batch: Batch, lease_id: int, part: slice) -> Batch:
    return msgspec.structs.replace(
        batch, lease_id=lease_id, lease_ids=None, seqs=batch.seqs[part], keys=batch.keys[part], data=batch.data[part],
        attempts=batch.attempts and batch.attempts[part], crashes=batch.crashes and batch.crashes[part],
    )  # fmt: skip


def seqs(shares: list[Batch]) -> list[list[int]]:
    return [share.seqs for share in shares]


# Sizes


async def test_shares_are_filled_one_after_the_other_each_with_a_lease_of_its_own(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh")
    batch = await reader.lease("dealer", 6, shares=[1, 3, 2])
    assert batch.lease_ids is not None
    assert (len(set(batch.lease_ids)), batch.lease_id) == (3, batch.lease_ids[0])
    assert seqs(parts(batch, 1, 3, 2)) == [[1], [2, 3, 4], [5, 6]]
    rows = await database.fetch(
        "select lease_id, owner, seqs, held, lowest from headrace_internal.leases order by seqs"
    )
    assert [(row["lease_id"], row["seqs"], row["held"]) for row in rows] == [
        (batch.lease_ids[0], [1], 1),
        (batch.lease_ids[1], [2, 3, 4], 3),
        (batch.lease_ids[2], [5, 6], 2),
    ]
    assert all(row["lowest"] <= min(row["seqs"]) for row in rows)
    assert len({row["owner"] for row in rows}) == 3
    assert (await reader.info()).in_flight == 6


async def test_the_last_share_gets_the_rest_and_those_after_it_nothing(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    assert seqs(await deal(reader, 3, 3, 3)) == [[1, 2, 3], [4]]


async def test_without_messages_no_lease_is_made(declare: Declare) -> None:
    reader = await declare()
    batch = await reader.lease("dealer", 5, shares=[2, 3])
    assert (batch.lease_id, batch.lease_ids, batch.seqs) == (None, None, [])
    assert await reader.count("leases") == 0


async def test_a_share_has_its_own_attempts(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    await reader.nack(await reader.lease(limit=1))
    await reader.nack(await reader.lease(limit=1))
    again = await deal(reader, 2, 2)
    assert [(share.seqs, share.attempts) for share in again] == [([1, 2], [3, 1]), ([3, 4], [1, 1])]
    for share in again:
        await reader.nack(share)
    assert [share.attempts for share in await deal(reader, 3, 1)] == [[4, 2, 2], [2]]


async def test_shares_stop_at_the_bytes_of_a_call(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh", filler="x" * 1_000)
    assert seqs(await deal(reader, 2, 2, 2, max_bytes=2_500)) == [[1, 2], [3]]
    assert seqs(await deal(reader, 2, 2, 2)) == [[4, 5], [6, 7], [8]]


# Keys


async def test_no_two_messages_of_a_key_are_in_shares_of_one_call(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aabacb")
    first = await deal(reader, 2, 2, 2)
    assert seqs(first) == [[1, 3], [5]]
    assert await deal(reader, 2, 2) == [], "the next of each waits for the one before"
    await reader.ack(first[0], 1)
    assert seqs(await deal(reader, 2, 2)) == [[2]]
    await reader.ack(first[0], 3)
    assert seqs(await deal(reader, 2, 2)) == [[6]]


async def test_no_key_that_a_worker_holds_is_in_a_share(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    his = await reader.lease("ann", 1)
    await publish(database, *"abc")
    assert seqs(await deal(reader, 1, 5)) == [[2], [5]]
    await reader.ack_all(his)
    assert seqs(await deal(reader, 1, 5)) == [[3]]


async def test_a_worker_gets_no_key_that_is_in_a_share(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    [share] = await deal(reader, 1)
    await publish(database, *"ab")
    assert (await reader.lease("ann")).seqs == [2, 4]
    assert await reader.ack_all(share) == []
    assert (await reader.lease("ann")).seqs == [3]


async def test_an_unordered_consumer_fills_shares_with_any_messages(database: store.Database, declare: Declare) -> None:
    reader = await declare(ordered=False)
    await publish(database, *"aaaaab")
    assert seqs(await deal(reader, 2, 2, 2)) == [[1, 2], [3, 4], [5, 6]]


async def test_a_hot_key_does_not_keep_the_others_from_the_shares(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *["hot"] * 300, "a", "b")
    assert seqs(await deal(reader, 1, 2)) == [[1], [301, 302]]


async def test_the_messages_of_a_key_come_in_order_in_whatever_shares(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abcab" * 20)
    delivered: dict[str, list[int]] = {}
    while shares := await deal(reader, 1, 3, 2, look=7):
        for share in shares:
            for key, seq in zip(share.keys, share.seqs, strict=True):
                delivered.setdefault(key, []).append(seq)
        assert await reader.ack_all(*shares) == []
    assert sum(len(found) for found in delivered.values()) == 100
    assert all(found == sorted(found) for found in delivered.values())


async def test_one_message_per_key_leases_the_latest_once_the_one_before_is_settled(
    database: store.Database, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    spec = ConsumerSpec(stream="latest", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    await publish(database, "a", "b", stream="latest")
    first = await deal(reader, 1, 1, 1)
    assert seqs(first) == [[1], [2]]
    for _ in range(2):
        await publish(database, "a", "c", stream="latest")
    assert seqs(await deal(reader, 2, 2)) == [[6]]
    assert await reader.ack_all(*first) == []
    assert seqs(await deal(reader, 2, 2)) == [[5]]


# What waits


async def test_due_retries_are_leased_before_fresh_messages(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    for share in await deal(reader, 1, 1):
        await reader.nack(share, delay=10)
    await publish(database, *"ab")
    assert seqs(await deal(reader, 1, 1)) == [[3], [4]]
    reader.clock.advance(10)
    again = await deal(reader, 1, 4)
    assert seqs(again) == [[1], [2, 5]]
    assert [share.attempts for share in again] == [[2], [2, 1]]


async def test_a_retry_and_a_fresh_message_of_its_key_are_not_leased_together(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.nack(*await deal(reader, 1))
    await publish(database, *"ab")
    again = await deal(reader, 1, 1, 1)
    assert seqs(again) == [[1], [3]]
    await reader.ack_all(*again)
    assert seqs(await deal(reader, 1, 1)) == [[2]]


async def test_a_retry_that_is_not_due_holds_up_its_key(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    [share] = await deal(reader, 1)
    await reader.nack(share, delay=10)
    assert seqs(await deal(reader, 5)) == [[3]]
    assert (await reader.lease("dealer", 5, shares=[5])).due_in == 10


async def test_a_released_share_is_delivered_again_and_does_not_count(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, *"ab")
    one, other = await deal(reader, 1, 1)
    assert await reader.release(one) == []
    again = await deal(reader, 2)
    assert (seqs(again), again[0].attempts) == ([[1]], [1])
    assert await reader.ack_all(other, *again) == []


async def test_one_replayed_message_of_each_key_is_leased_at_a_time(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aabb")
    assert await reader.drain() == [1, 2, 3, 4]
    await store.replay(database, reader.id, Selection(start_seq=1))
    first = await deal(reader, 2, 2)
    assert seqs(first) == [[1, 3]]
    await reader.ack_all(*first)
    assert seqs(await deal(reader, 1, 1)) == [[2], [4]]


async def test_a_late_message_is_leased_before_later_messages_of_its_key(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    async with begun(connect) as (late, transaction):
        await publish(late, *"ab")
        await publish(database, *"cd")
        assert seqs(await deal(reader, 1, 1)) == [[3], [4]]
        await transaction.commit()
    await publish(database, *"ab")
    first = await deal(reader, 1, 3)
    assert seqs(first) == [[1], [2]]
    await reader.ack_all(*first)
    assert seqs(await deal(reader, 1, 1)) == [[5], [6]]


async def test_late_messages_of_a_key_are_leased_one_by_one(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    async with begun(connect) as (late, transaction):
        await publish(late, *"aa")
        await publish(database, "a", "b")
        [share] = await deal(reader, 4)
        assert share.seqs == [3, 4]
        await transaction.commit()
    assert await deal(reader, 2, 2) == []
    await reader.ack_all(share)
    for expected in (1, 2):
        [share] = await deal(reader, 2)
        assert share.seqs == [expected]
        await reader.ack_all(share)


async def test_a_blocked_key_is_not_leased(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"ab")
    bad, good = await deal(reader, 1, 1)
    await reader.nack(bad)
    await reader.ack_all(good)
    await publish(database, *"aab")
    assert seqs(await deal(reader, 2, 2)) == [[5]]
    await reader.redrive()
    assert seqs(await deal(reader, 2, 2)) == [[1]]


# Bounds


async def test_max_ack_pending_bounds_all_shares_together(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_ack_pending=4)
    await publish(database, *"abcdefgh")
    shares = await deal(reader, 3, 3, 3)
    assert seqs(shares) == [[1, 2, 3], [4]]
    assert await deal(reader, 1) == []
    await reader.ack(shares[0], 2)
    assert seqs(await deal(reader, 1, 1)) == [[5]]


async def test_a_rate_limit_bounds_all_shares_together(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=2.0, rate_burst=3)
    await publish(database, *"abcdefgh")
    assert seqs(await deal(reader, 2, 2)) == [[1, 2], [3]]
    assert await deal(reader, 2, 2) == []
    reader.clock.advance(1)
    assert seqs(await deal(reader, 1, 2)) == [[4], [5]]


async def test_a_paused_consumer_leases_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    await store.pause(database, reader.id, reader.clock.now + timedelta(seconds=5))
    assert await deal(reader, 1, 1) == []
    reader.clock.advance(5)
    assert seqs(await deal(reader, 1, 1)) == [[1]]


# Ends


async def test_each_expiry_counts_and_the_last_makes_a_dead_letter(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=3, ack_wait=30)
    await publish(database, *"ab")
    for attempt in (1, 2, 3):
        shares = await deal(reader, 1, 1)
        assert [(share.seqs, share.attempts or [1]) for share in shares] == [([1], [attempt]), ([2], [attempt])]
        reader.clock.advance(30)
    assert await deal(reader, 1, 1) == []
    letters = await reader.dead_letters()
    assert [(letter.seq, letter.attempts, letter.reason) for letter in letters] == [
        (1, 3, "exhausted"),
        (2, 3, "exhausted"),
    ]
    assert "expired" in (letters[0].error or "")


async def test_crashed_messages_in_a_share_count_attempts_without_being_marked_as_started(
    database: store.Database, declare: Declare
) -> None:
    """A worker reports which of such messages it starts. The receiver of a share reports nothing."""
    reader = await declare(max_deliver=3, ack_wait=30)
    await publish(database, *"ab")
    await reader.lease("ann")
    for expected in ([2, 2], [3, 3]):
        reader.clock.advance(30)
        [share] = await deal(reader, 2)
        assert share.attempts == expected
    reader.clock.advance(30)
    assert await deal(reader, 2) == []
    assert len(await reader.dead_letters()) == 2


async def test_only_the_share_that_was_not_settled_expires(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abcd")
    shares = await deal(reader, 1, 2, 1)
    assert await reader.ack_all(shares[0]) == []
    reader.clock.advance(15)
    assert await store.extend_leases(database, reader.id, [shares[2].lease_id or 0], now=reader.clock.now) == [
        shares[2].lease_id
    ]
    reader.clock.advance(15)
    again = await deal(reader, 4)
    assert (seqs(again), again[0].attempts) == ([[2, 3]], [2, 2])
    assert await reader.ack_all(shares[2]) == []
    assert [lost.lease_id for lost in await reader.ack_all(shares[1])] == [shares[1].lease_id]


async def test_a_stale_share_is_not_extended_nor_settled(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"a")
    [stale] = await deal(reader, 1)
    reader.clock.advance(30)
    [fresh] = await deal(reader, 1)
    ids = [stale.lease_id or 0, fresh.lease_id or 0, 12345]
    assert await store.extend_leases(database, reader.id, ids, now=reader.clock.now) == [fresh.lease_id]
    assert [lost.seq for lost in await reader.ack(stale)] == [1]
    assert [lost.seq for lost in await reader.nack(stale)] == [1]
    reader.clock.advance(29)
    assert await deal(reader, 1) == []
    assert await reader.ack(fresh) == []


async def test_an_extended_share_lasts_from_then_on(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    [share] = await deal(reader, 1)
    for _ in range(3):
        reader.clock.advance(29)
        assert await store.extend_leases(database, reader.id, [share.lease_id or 0], now=reader.clock.now)
        assert await deal(reader, 1) == []
    reader.clock.advance(30)
    assert seqs(await deal(reader, 1)) == [[1]]


async def test_the_leases_of_another_consumer_are_not_extended(database: store.Database, declare: Declare) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, "a")
    [share] = await deal(ship, 1)
    assert await store.extend_leases(database, bill.id, [share.lease_id or 0], now=bill.clock.now) == []


async def test_parts_of_a_share_are_settled_one_by_one(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    one, other = await deal(reader, 3, 2)
    assert await reader.ack(one, 2) == []
    assert await reader.nack(one, 1) == []
    assert {lost.seq for lost in await reader.ack(one, 1, 2)} == {1, 2}
    assert await reader.ack_all(one, other) == []
    assert await reader.drain() == [1]
    assert [await reader.count(table) for table in ("leases", "parked", "dead_letters")] == [0, 0, 0]


async def test_shares_reach_the_end_of_the_stream_under_a_filter(database: store.Database, declare: Declare) -> None:
    reader = await declare(filters=("wanted.*",))
    await publish(database, *["other", "wanted.a", "wanted.b"] * 50)
    found: list[int] = []
    while True:
        batch = await reader.lease("dealer", 6, shares=[3, 3], look=10)
        found += batch.seqs
        await reader.ack_all(*parts(batch, 3, 3))
        if not batch.more and batch.lease_id is None:
            break
    assert sorted(found) == [seq for seq in range(1, 151) if seq % 3 != 1]
