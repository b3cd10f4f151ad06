"""Cancelling messages of a consumer: those are not handled, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.outcomes import CANCEL
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.store.messages.cancel import Cancelled
from headrace.store.messages.replay import Selection
from tests.conftest import Connect, Declare
from tests.support.readers import Clock, Reader, begun, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def cancel(reader: Reader, *seqs: int) -> Cancelled:
    return await store.cancel(reader.executor, reader.id, seqs, by="ops")


async def replay(reader: Reader, **criteria: Any) -> int:
    return await store.replay(reader.executor, reader.id, Selection(**criteria))


async def pending(reader: Reader) -> int:
    found: int = await reader.executor.fetchval(
        "select count(*) from headrace_internal.cancellations where consumer_id = $1 and ended_at is null", reader.id
    )
    return found


async def outcome(reader: Reader, seq: int) -> str | None:
    found: str | None = await reader.executor.fetchval(
        "select outcome from headrace_internal.cancellations where consumer_id = $1 and seq = $2", reader.id, seq
    )
    return found


# Waiting messages


async def test_a_message_that_was_not_read_is_not_handled(database: store.Database, declare: Declare) -> None:
    ship, other = await declare("ship"), await declare("bill")
    await publish(database, *"abcab")
    assert await cancel(ship, 2, 4) == ([2, 4], [], [])
    assert (await ship.info()).num_pending == 3
    assert await ship.drain(limit=1) == [1, 3, 5]
    assert await other.drain() == [1, 2, 3, 4, 5]
    assert (await outcome(ship, 2), await pending(ship)) == ("cancelled", 0)


async def test_a_parked_message_is_not_handled_and_its_key_continues_at_once(
    database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    await publish(database, *"aab")
    await ship.nack(await ship.lease(limit=1), delay=3600)
    assert await ship.drain() == [3]
    assert await cancel(ship, 1) == ([1], [], [])
    assert await ship.drain() == [2]
    assert (await outcome(ship, 1), await pending(ship)) == ("cancelled", 0)


async def test_a_message_behind_its_key_is_not_handled(database: store.Database, declare: Declare) -> None:
    ship = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aaaab")
    await ship.nack(await ship.lease(limit=1))
    assert await ship.drain() == [5]
    assert await cancel(ship, 3) == ([3], [], [])
    await ship.redrive()
    assert await ship.drain() == [1, 2, 4]


async def test_a_message_of_a_replay_is_not_handled(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    await publish(database, *"abc")
    assert await ship.drain() == [1, 2, 3]
    assert await replay(ship) == 3
    assert await cancel(ship, 2) == ([2], [], [])
    assert await ship.drain() == [1, 3]


async def test_a_late_arrival_is_not_handled(connect: Connect, database: store.Database, declare: Declare) -> None:
    ship = await declare()
    async with begun(connect) as (late, transaction):
        await publish(late, "a")
        await publish(database, "b")
        assert await ship.drain() == [2]
        assert await cancel(ship, 1) == ([], [], [1])  # it can't be seen yet
        await publish(late, "a")
        await transaction.commit()
    assert await cancel(ship, 1) == ([1], [], [])
    assert await ship.drain() == [3]
    assert await outcome(ship, 1) == "cancelled"


async def test_messages_that_do_not_wait_are_left(database: store.Database, declare: Declare) -> None:
    ship = await declare(filters=("a", "b"))
    await publish(database, *"abc")
    await ship.reject(await ship.lease(limit=1))
    assert await ship.drain() == [2]
    assert await cancel(ship, 1, 2, 3, 99) == ([], [], [1, 2, 3, 99])
    assert [letter.seq for letter in await ship.dead_letters()] == [1]
    assert await ship.count("cancellations") == 0


async def test_cancelling_one_message_loses_no_other(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    await publish(database, *(f"k{n % 30}" for n in range(100)))
    held = await ship.lease("ann", limit=10)
    await ship.nack(await ship.lease("bob", limit=10), delay=1)
    for seq in range(5, 101, 9):
        await cancel(ship, seq)
    ship.clock.advance(2)
    await ship.nack(held)
    assert sorted(await ship.drain(limit=7)) == [seq for seq in range(1, 101) if seq not in range(5, 101, 9)]
    assert await pending(ship) == 0


async def test_a_cancelled_message_holds_no_unique_key(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    options = PublishOptions(unique_key="one")
    assert await store.publish(database, "orders", "a", "1", options=options) == 1
    cancelled = await store.cancel_unique(database, ship.id, "one")
    assert cancelled == ([1], [], [])
    assert await store.publish(database, "orders", "a", "1", options=options) == 2
    assert await ship.drain() == [2]
    assert await store.cancel_unique(database, ship.id, "one") == ([], [], [2])
    assert await store.cancel_unique(database, ship.id, "other") == ([], [], [])


async def test_a_scheduled_message_can_not_be_cancelled_yet(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    ship = await declare()
    options = PublishOptions(unique_key="one", deliver_at=clock.now)
    assert await store.publish(database, "orders", "a", "1", options=options) is None
    assert await store.cancel_unique(database, ship.id, "one") is None


# The messages of a key


async def cancel_key(reader: Reader, key: str, scan: int = 10_000) -> list[int]:
    cancelled: list[int] = []
    above, until = 0, None
    while until is None or above < until:
        row = await reader.executor.fetchrow(
            "select * from headrace_internal.cancel_key($1, $2, $3, $4, 'ops', $5)", reader.id, key, above, until, scan
        )
        cancelled += row["cancelled"]
        above, until = row["reached"], row["until"]
    return cancelled


@pytest.mark.parametrize("scan", [1, 2, 3, 10_000])
async def test_the_waiting_messages_of_a_key_are_cancelled_wherever_they_wait(
    connect: Connect, database: store.Database, declare: Declare, scan: int
) -> None:
    ship = await declare()
    await publish(database, *"abab")
    await ship.drain()
    await replay(ship, end_seq=2)
    async with begun(connect) as (late, transaction):
        await publish(late, "a", "b")
        await publish(database, *"aba")
        assert sorted((await ship.lease("ann", limit=2)).seqs) == [1, 2]
        await ship.lease("bob")
        await transaction.commit()
    await publish(database, *"ab" * 3)
    cancelled = sorted(await cancel_key(ship, "a", scan))
    await publish(database, "a")
    ship.clock.advance(3600)
    keys = {row["seq"]: row["key"] for row in await database.fetch("select seq, key from headrace_streams.orders")}
    assert cancelled == [seq for seq in range(5, 16) if keys[seq] == "a"]
    assert sorted(await ship.drain()) == [1, 2, *(seq for seq in range(5, 16) if keys[seq] == "b"), 16]


async def test_a_message_at_work_is_left_when_its_key_is_cancelled(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    await publish(database, *"aab")
    held = await ship.lease(limit=1)
    assert await cancel_key(ship, "a") == [2]
    await ship.nack(held)
    assert await ship.drain() == [1, 3]


async def test_a_late_commit_is_not_hit_by_a_cancel_of_its_key_before(
    connect: Connect, database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    async with begun(connect) as (late, transaction):
        await publish(late, "a")
        await publish(database, "a", "b")
        assert await cancel_key(ship, "a") == [2]
        await transaction.commit()
    assert await ship.drain() == [1, 3]


async def test_pending_cancellations_are_bounded(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    await publish(database, *"a" * 10_001)
    await cancel(ship, *range(1, 10_001))
    with pytest.raises(InvalidInput, match="10000 messages are pending"):
        await cancel(ship, 10_001)
    assert await ship.drain(limit=1000) == [10_001]
    await publish(database, "a")
    await cancel(ship, 10_002)
    assert await ship.count("cancellations") == 10_000


# Messages at work


async def test_an_ack_of_a_cancelled_message_counts(database: store.Database, declare: Declare) -> None:
    ship = await declare()
    await publish(database, *"aa")
    held = await ship.lease(limit=1)
    assert await cancel(ship, 1) == ([], [1], [])
    assert await ship.ack_all(held) == []
    assert await ship.drain() == [2]
    assert (await outcome(ship, 1), await pending(ship)) == ("finished", 0)


@pytest.mark.parametrize("failure", ["nack", "later", "release", "reject", "cancel"])
async def test_a_message_at_work_that_is_cancelled_is_not_delivered_again(
    database: store.Database, declare: Declare, failure: str
) -> None:
    ship = await declare()
    await publish(database, *"aab")
    held = await ship.lease(limit=1)
    await cancel(ship, 1)
    match failure:
        case "nack":
            await ship.nack(held)
        case "later":
            await ship.nack(held, delay=3600)
        case "release":
            await ship.release(held)
        case "reject":
            await ship.reject(held)
        case "cancel":
            await ship.fail(held, CANCEL)
    assert await ship.drain() == [2, 3]
    assert await ship.dead_letters() == []
    assert (await outcome(ship, 1), await pending(ship)) == ("cancelled", 0)


async def test_a_cancelled_message_is_not_handled_even_if_its_process_dies(
    database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    await publish(database, *"aab")
    await ship.lease("ann", limit=1)
    await cancel(ship, 1)
    ship.clock.advance(3600)
    assert await ship.drain("bob") == [2, 3]
    assert await outcome(ship, 1) == "cancelled"


async def test_the_next_message_of_a_key_waits_for_the_settle_of_a_cancelled_one(
    database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    await publish(database, *"aab")
    held = await ship.lease("ann", limit=1)
    await cancel(ship, 1)
    assert await ship.drain("bob") == [3]
    await ship.fail(held, CANCEL)
    assert await ship.drain("bob") == [2]


async def test_a_request_holds_for_a_message_whose_lease_a_move_back_ends(
    database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    await publish(database, *"aab")
    held = await ship.lease()
    await cancel(ship, 2)
    await ship.seek(0)
    assert len(await ship.ack(held, 2)) == 1
    assert await ship.drain() == [1, 3]
    assert await outcome(ship, 2) == "cancelled"


@pytest.mark.parametrize("back", ["seek", "replay"])
async def test_a_consumer_that_is_moved_back_gets_what_was_cancelled_before(
    database: store.Database, declare: Declare, back: str
) -> None:
    ship = await declare()
    await publish(database, *"abab")
    await cancel(ship, 1)
    held = await ship.lease(limit=1)
    assert held.seqs == [2]
    await cancel(ship, 2)
    await ship.ack_all(held)
    if back == "seek":
        await ship.seek(0)
    else:
        assert await replay(ship) == 2
    assert sorted(await ship.drain()) == [1, 2, 3, 4]
    assert await ship.count("cancellations") == 0


async def test_a_settle_and_a_cancellation_wait_for_each_other(
    connect: Connect, database: store.Database, declare: Declare
) -> None:
    """Otherwise the message would be put back between the look of the cancellation and its request."""
    ship = await declare()
    await publish(database, "a")
    held = await ship.lease()
    async with begun(connect) as (settling, transaction):
        await Reader(settling, ship.spec, ship.id, ship.clock).nack(held, delay=3600)
        cancelling = await start(cancel(ship, 1))
        await until_blocked(database, settling)
        await transaction.commit()
    assert await cancelling == ([1], [], [])
    assert await ship.count("parked") == 0


async def test_a_process_is_told_of_cancelled_messages_by_their_leases(
    database: store.Database, declare: Declare
) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, *"abc")
    held, others = await ship.lease(), await bill.lease()
    assert held.lease_id is not None
    await cancel(ship, 1, 3)
    await cancel(bill, 2)
    found = await store.watched(database, [ship.id])
    assert {lease: sorted(seqs) for lease, seqs in found.cancelled.items()} == {held.lease_id: [1, 3]}
    assert found.history == held.history
    await ship.ack(held, 1)
    await ship.fail(held, CANCEL, 3)
    await ship.lease()
    assert (await store.watched(database, [ship.id])).cancelled == {}
    assert list((await store.watched(database, [ship.id, bill.id])).cancelled) == [others.lease_id]


async def test_a_transaction_that_has_acked_before_counts(
    connect: Connect, database: store.Database, declare: Declare
) -> None:
    ship = await declare()
    await publish(database, *"ab")
    held = await ship.lease(limit=1)
    async with begun(connect) as (acking, transaction):
        await ship.ack_within(acking, held)
        assert await cancel(ship, 1) == ([], [1], [])
        await transaction.commit()
    assert len(await ship.fail(held, CANCEL)) == 1
    assert await ship.drain() == [2]
    assert await outcome(ship, 1) == "finished"


async def test_cancelling_works_without_order_and_with_one_message_per_key(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    spec = ConsumerSpec(stream="latest", name="last")
    latest = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    await publish(database, *"abc", stream="latest")
    held = await latest.lease(limit=1)
    await cancel(latest, 1, 2)
    await latest.nack(held)
    assert await latest.drain() == [3]
    free = await declare("free", ordered=False)
    await publish(database, *"aaa")
    assert await cancel_key(free, "a") == [1, 2, 3]
    assert await free.drain() == []


async def test_a_cursor_is_marked_only_while_a_cancellation_is_pending(
    database: store.Database, declare: Declare
) -> None:
    """Lease calls look at the cancellations only then."""
    ship = await declare()
    await publish(database, *"abc")
    await ship.nack(await ship.lease(limit=1), delay=60)
    await cancel(ship, 1)
    assert not (await ship.cursor())["cancelling"]
    await cancel(ship, 3)
    assert (await ship.cursor())["cancelling"]
    assert await ship.drain() == [2]
    await publish(database, "d")
    assert await ship.drain() == [4]
    assert not (await ship.cursor())["cancelling"]
