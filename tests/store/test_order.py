"""Order per key: whatever fails, a message never overtakes an earlier message of its key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.model.records import Batch
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, by_key, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_a_key_that_one_owner_holds_is_busy_to_others(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aabab")
    ann = await reader.lease("ann", 1)
    bob = await reader.lease("bob")
    assert (ann.seqs, bob.seqs) == ([1], [3, 5])
    assert (await reader.info()).parked == 2
    await reader.ack_all(ann)
    assert (await reader.lease("bob")).seqs == [2, 4]


async def test_an_owners_own_keys_are_not_busy_for_that_owner(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ababab")
    runs = [await reader.lease("ann", 2) for _ in range(3)]
    assert [run.seqs for run in runs] == [[1, 2], [3, 4], [5, 6]]


async def test_a_message_parked_for_a_busy_key_goes_to_the_owner_of_the_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"aaa")
    await reader.lease("ann", 1)
    assert (await reader.lease("bob")).seqs == []
    assert (await reader.lease("ann")).seqs == [2, 3]


async def test_a_key_stays_with_its_owner_while_the_owner_holds_any_message_of_it(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"aaaa")
    first, second = await reader.lease("ann", 1), await reader.lease("ann", 2)
    await reader.ack_all(first)
    assert (await reader.lease("bob")).seqs == []
    await reader.ack(second, 2)
    assert (await reader.lease("bob")).seqs == []
    await reader.ack(second, 3)
    assert (await reader.lease("bob")).seqs == [4]


async def test_a_message_that_waits_for_its_retry_holds_up_its_key_and_no_other(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"abab")
    batch = await reader.lease("ann", 1)
    await reader.nack(batch, delay=10)
    assert await reader.drain("bob") == [2, 4]
    assert await reader.drain("ann") == []
    await publish(database, *"ab")
    assert await reader.drain("ann") == [6]
    reader.clock.advance(10)
    assert await reader.drain("bob") == [1, 3, 5]


async def test_the_released_rest_of_a_run_comes_after_the_message_that_failed(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"aaaa")
    batch = await reader.lease(limit=3)
    await reader.nack(batch, 1, delay=10)
    await reader.release(batch, 2, 3)
    assert await reader.drain("bob") == []
    reader.clock.advance(10)
    again = await reader.lease("bob")
    assert (again.seqs, again.attempts) == ([1, 2, 3, 4], [2, 1, 1, 1])


async def test_of_two_retries_of_a_key_the_later_one_waits_for_the_earlier(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"aa")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=10)
    await reader.nack(batch, 2, delay=1)
    reader.clock.advance(5)
    assert (await reader.lease()).seqs == []
    reader.clock.advance(5)
    assert (await reader.lease()).seqs == [1, 2]


async def test_a_due_retry_comes_before_fresh_messages(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aba")
    await reader.nack(await reader.lease(limit=1))
    assert (await reader.lease("bob")).seqs == [1, 2, 3]


async def test_a_message_that_does_not_fit_a_batch_holds_up_the_rest_of_its_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"aaabab")
    await reader.nack(await reader.lease(limit=3))
    assert [(await reader.lease(limit=2)).seqs for _ in range(4)] == [[1, 2], [3, 4], [5, 6], []]


async def test_an_unordered_consumer_leases_the_same_key_to_several_owners(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ordered=False)
    await publish(database, *"aaaa")
    ann, bob = await reader.lease("ann", 2), await reader.lease("bob", 1)
    assert (ann.seqs, bob.seqs) == ([1, 2], [3])
    await reader.nack(ann, 1, delay=10)
    assert (await reader.lease("cid")).seqs == [4]
    reader.clock.advance(10)
    assert (await reader.lease("cid")).seqs == [1]


async def test_a_late_message_waits_for_a_later_one_of_its_key_that_is_in_flight(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """It commits after the later message was leased. It may be delivered after that message, but
    not at the same time."""
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, "a", "b")
    ann = await reader.lease("ann", 1)
    assert ann.seqs == [2]
    await transaction.commit()
    assert await reader.drain("bob") == [3]
    await reader.nack(ann, delay=10)
    reader.clock.advance(1)
    assert await reader.drain("bob") == [1]
    reader.clock.advance(10)
    assert await reader.drain("bob") == [2]


async def test_a_late_message_comes_before_a_later_one_of_its_key_that_comes_again(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    for limit in (1, 10):
        reader = await declare(f"ship {limit}")
        await reader.seek(None)
        late = await connect()
        transaction = late.transaction()
        await transaction.start()
        earlier = await store.publish(late, "orders", "a", "1")
        later = await store.publish(database, "orders", "a", "2")
        batch = await reader.lease()
        assert batch.seqs == [later]
        await transaction.commit()
        await reader.release(batch)
        assert await reader.drain(limit=limit) == [earlier, later]


async def test_a_late_message_does_not_open_the_way_for_fresh_ones_past_a_retry(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Three messages of a key: the first commits late, the second waits for its retry, the third is fresh."""
    reader = await declare()
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, "a")
    await reader.nack(await reader.lease(), delay=10)
    await transaction.commit()
    await publish(database, "a")
    assert await reader.drain() == [1]
    reader.clock.advance(10)
    assert await reader.drain() == [2, 3]


@pytest.mark.parametrize("again", [True, False], ids=["retry", "fresh"])
async def test_late_messages_in_any_number_come_before_later_ones_of_their_keys(
    database: store.Database, declare: Declare, connect: Connect, again: bool
) -> None:
    """There are more of them than one call may read."""
    reader = await declare(filters=("a", "b"))
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, *["unwanted"] * 25, "a")
    await publish(database, "b" if not again else "a")
    batch = await reader.lease(look=10)
    await transaction.commit()
    if again:
        await reader.release(batch)
    else:
        await reader.ack_all(batch)
        await publish(database, "a")
    assert await reader.drain(look=10) == [26, 27 if again else 28]


def keys(count: int) -> list[str]:
    return [f"k.{number}" for number in range(count)]


@pytest.mark.long
async def test_late_messages_are_leased_when_the_window_is_full(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Otherwise the parked messages, which wait for them, would keep the window full for ever."""
    reader = await declare(max_ack_pending=100_000)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, *["cold"] * 25, "k.0")
    await publish(database, *keys(12_000), *keys(12_000))
    ann = await reader.lease("ann", 12_000, look=12_000)
    while (await reader.lease("bob", 10_000)).more:
        pass
    await transaction.commit()
    await reader.release(ann)
    seqs = await reader.drain("bob", 5, look=10, calls=10)
    assert seqs
    seqs += await reader.drain("bob", 10_000, look=10_000)
    assert sorted(seqs) == list(range(1, 24_027))
    assert [seq for seq in seqs if seq <= 25] == list(range(1, 26))
    assert [seq for seq in seqs if seq in (26, 27, 12_027)] == [26, 27, 12_027]
    place = {seq: place for place, seq in enumerate(seqs)}
    assert all(place[27 + key] < place[12_027 + key] for key in range(12_000))


async def test_keys_that_wait_stop_the_reading_ahead_until_they_drain(
    database: store.Database, declare: Declare
) -> None:
    """This bounds the number of messages that lease calls read again and again."""
    reader = await declare(max_ack_pending=100_000)
    await publish(database, *keys(12_000), *keys(12_000), "cold")
    ann = await reader.lease("ann", 12_000, look=12_000)
    while (await reader.lease("bob", 10_000)).more:
        pass
    stopped = (await reader.info()).position
    assert 22_000 <= stopped < 24_000
    assert (await reader.lease("bob", 10_000)).looked_at == 0
    assert (await reader.info()).position == stopped
    await reader.ack_all(ann)
    assert await reader.drain("bob", 10_000, look=10_000) == list(range(12_001, 24_002))


async def test_a_hot_key_does_not_stop_the_reading_ahead(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_ack_pending=100_000)
    await publish(database, *["hot"] * 12_000, "cold")
    ann = await reader.lease("ann", 1)
    assert await reader.drain("bob", 10_000) == [12_001]
    await reader.ack_all(ann)
    assert await reader.drain("bob", 10_000, look=10_000) == list(range(2, 12_001))


@pytest.mark.parametrize("table", ["headrace_internal.dead_letters", "headrace_streams.orders"])
@pytest.mark.parametrize("outcome", ["nack", "release"])
async def test_a_failure_that_commits_between_two_reads_of_a_lease_call_breaks_no_order(
    database: store.Database, declare: Declare, connect: Connect, table: str, outcome: str
) -> None:
    """Bob's call has seen that ann holds the key. Before the call reads the parked messages, ann releases one."""
    reader = await declare()
    await publish(database, *"aa")
    ann = await reader.lease("ann", 1)
    brake = await connect()
    transaction = brake.transaction()
    await transaction.start()
    await brake.execute(f"lock table {table} in access exclusive mode")
    bob = await start(reader.lease("bob"))
    await until_blocked(database, brake)
    if outcome == "nack":
        assert await reader.nack(ann, delay=10) == []
    else:
        assert await reader.release(ann) == []
    await transaction.rollback()
    seqs = (await bob).seqs
    assert 2 not in seqs or seqs == [1, 2]
    reader.clock.advance(10)
    assert seqs + await reader.drain("bob") == [1, 2]


@pytest.mark.parametrize("settings", [{}, {"rate_limit": 1_000.0}])
async def test_an_ack_that_commits_between_two_reads_of_a_lease_call_loses_nothing(
    database: store.Database, declare: Declare, connect: Connect, settings: dict[str, Any]
) -> None:
    """The short way gives up at a busy key, and then all is read again. With a rate limit there is no short way."""
    reader = await declare(**settings)
    await publish(database, "a", "a", "b")
    ann = await reader.lease("ann", 1)
    brake = await connect()
    transaction = brake.transaction()
    await transaction.start()
    await brake.execute("lock table headrace_streams.orders in access exclusive mode")
    bob = await start(reader.lease("bob"))
    await until_blocked(database, brake)
    assert await reader.ack_all(ann) == []
    await transaction.rollback()
    seqs = (await bob).seqs
    assert 2 not in seqs or not settings  # otherwise the key was busy when the call checked it
    assert sorted(seqs + (await reader.lease("cid")).seqs) == [2, 3]


async def test_each_key_stays_in_order_through_failures_and_changing_owners(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *[f"k.{n * n % 11}" for n in range(300)])
    done: dict[str, list[int]] = {}
    while batches := [b for name in ("ann", "bob", "cid") if (b := await reader.lease(name, 7)).seqs]:
        for batch in batches:
            await settle_with_failures(reader, batch, done)
    assert sum(len(seqs) for seqs in done.values()) == 300
    assert all(seqs == sorted(seqs) for seqs in done.values())


async def settle_with_failures(reader: Reader, batch: Batch, done: dict[str, list[int]]) -> None:
    """Every fifth message fails at its first attempt, and the rest of its run is released."""
    attempts = batch.attempts or [1] * len(batch.seqs)
    for key, seqs in by_key(batch).items():
        failed = next((n for n, s in enumerate(seqs) if s % 5 == 0 and attempts[batch.seqs.index(s)] == 1), len(seqs))
        if acked := seqs[:failed]:
            assert await reader.ack(batch, *acked) == []
            done.setdefault(key, []).extend(acked)
        if rest := seqs[failed:]:
            assert await reader.nack(batch, rest[0]) == []
            if rest[1:]:
                assert await reader.release(batch, *rest[1:]) == []
