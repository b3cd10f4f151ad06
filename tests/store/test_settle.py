"""Settle: outcomes of leased messages, the fence that protects leases, and the expiry of leases."""

from __future__ import annotations

import asyncpg
import pytest

from headrace import store
from headrace.model.outcomes import RELEASE, Failure, Settlement
from headrace.model.records import Lost
from tests.conftest import Connect, Declare
from tests.support.readers import owner, publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_a_batch_acked_as_a_whole_leaves_no_row(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    batch = await reader.lease()
    assert await reader.ack_all(batch) == []
    assert [await reader.count(table) for table in ("leases", "parked", "tails", "dead_letters")] == [0] * 4
    assert await reader.count("cursors") == 1


async def test_a_lease_partly_done_holds_the_rest(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease()
    assert await reader.ack(batch, 2, 4) == []
    assert (await reader.info()).in_flight == 2
    reader.clock.advance(60)
    assert await reader.drain("bob") == [1, 3]


async def test_many_leases_and_all_outcomes_settle_in_one_call(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh")
    one, two, three = [(await reader.lease(limit=2)).lease_id for _ in range(3)]
    rest = await reader.lease()
    assert one
    assert two
    assert three
    settlement = Settlement(
        whole=[one, rest.lease_id or 0],
        leases=[two, two, three, three],
        seqs=[3, 4, 5, 6],
        failures=[None, Failure("retry", 10), RELEASE, Failure("reject", None, "bad", "tb")],
    )
    assert await store.settle(database, reader.id, settlement, now=reader.clock.now) == []
    info = await reader.info()
    assert (info.in_flight, info.parked, info.dead_letters) == (0, 2, 1)
    assert await reader.drain() == [5]
    reader.clock.advance(10)
    assert await reader.drain() == [4]


async def test_nothing_to_settle_settles_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    assert await store.settle(database, reader.id, Settlement()) == []
    assert not Settlement()


async def test_a_stale_ack_changes_nothing_and_is_returned_as_lost(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    stale = await reader.lease("ann")
    reader.clock.advance(30)
    fresh = await reader.lease("bob")
    assert (fresh.seqs, fresh.attempts) == ([1, 2, 3], [2, 2, 2])
    assert stale.lease_id
    assert await reader.ack_all(stale) == [Lost(stale.lease_id, None)]
    lost = await reader.ack(stale, 1, 2)
    assert sorted(lost, key=lambda one: one.seq or 0) == [Lost(stale.lease_id, 1), Lost(stale.lease_id, 2)]
    assert await reader.nack(stale, 3) == [Lost(stale.lease_id, 3)]
    assert await reader.reject(stale, 3) == [Lost(stale.lease_id, 3)]
    info = await reader.info()
    assert (info.in_flight, info.parked, info.dead_letters) == (3, 0, 0)
    assert await reader.ack_all(fresh) == []


async def test_a_second_ack_is_lost(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    assert await reader.ack(batch, 1) == []
    assert await reader.ack(batch, 1) == [Lost(batch.lease_id, 1, gone=False)]
    assert await reader.ack_all(batch) == []
    assert await reader.ack_all(batch) == [Lost(batch.lease_id, None)]


async def test_an_ack_counts_until_the_lease_is_taken_away(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    batch = await reader.lease()
    reader.clock.advance(1_000)
    assert await reader.ack_all(batch) == []
    assert await reader.drain() == []


async def test_the_ack_of_one_consumer_does_not_touch_the_leases_of_another(
    database: store.Database, declare: Declare
) -> None:
    ship, bill = await declare("ship"), await declare("bill")
    await publish(database, "a")
    batch = await ship.lease()
    assert batch.lease_id
    assert await bill.ack_all(batch) == [Lost(batch.lease_id, None)]
    assert await bill.ack(batch) == [Lost(batch.lease_id, 1)]
    assert await ship.ack_all(batch) == []


async def test_a_message_that_the_lease_never_held_is_lost(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    ann, bob = await reader.lease("ann", 1), await reader.lease("bob", 1)
    assert ann.lease_id
    assert await reader.ack(ann, 2) == [Lost(ann.lease_id, 2, gone=False)]
    assert await reader.ack_all(ann, bob) == []


async def test_a_lease_id_that_a_crash_lost_is_not_handed_out_again(database: store.Database, declare: Declare) -> None:
    """Leases commit without waiting for the disk, so a crash may undo both the lease and the
    sequence of its id. An ack from before the crash must not apply to a lease from after it."""
    reader = await declare()
    await publish(database, *"abcd")
    before = await database.fetchrow("select last_value, is_called from headrace_internal.lease_ids")
    found = []
    for _ in range(4):
        found.append((await reader.lease(limit=1)).lease_id)
        await database.fetchval("select setval('headrace_internal.lease_ids', $1, $2)", *before)
        await database.fetch("delete from headrace_internal.leases")
        await database.fetch("update headrace_internal.cursors set lease_floor = 0")
    assert None not in found
    assert len(set(found)) > 1


async def test_attempts_are_counted_by_failure_and_expiry_and_not_by_release(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    assert (await reader.lease()).attempts is None
    reader.clock.advance(30)
    second = await reader.lease()
    assert second.attempts == [2]
    await reader.release(second)
    again = await reader.lease()
    assert again.attempts == [2]
    await reader.nack(again)
    third = await reader.lease()
    assert third.attempts == [3]
    await reader.ack(third)


async def test_a_release_of_a_first_attempt_counts_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aa")
    await reader.release(await reader.lease(limit=1))
    assert (await reader.lease()).attempts == [1, 1]


async def test_a_retry_comes_after_its_delay_and_not_before(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=12.5)
    await reader.nack(batch, 2)
    assert (await reader.lease()).seqs == [2]
    reader.clock.advance(12.499)
    assert (await reader.lease()).seqs == []
    reader.clock.advance(0.001)
    assert (await reader.lease()).seqs == [1]


async def test_a_lease_ends_when_its_time_is_up(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    await reader.lease("ann")
    reader.clock.advance(29.999)
    assert (await reader.lease("bob")).seqs == []
    reader.clock.advance(0.001)
    assert (await reader.lease("bob")).seqs == [1, 2]


async def test_all_leases_of_an_owner_end_together(database: store.Database, declare: Declare) -> None:
    """An owner may hold a run of one key across several leases. Another owner must not get parts of
    the run while the first one handles the rest."""
    reader = await declare(ack_wait=30)
    await publish(database, *"aab")
    await reader.lease("ann", 1)
    other = await reader.lease("cid", 2)
    reader.clock.advance(20)
    second = await reader.lease("ann", 1)
    assert (other.seqs, second.seqs) == ([3], [2])
    await reader.extend("cid")
    reader.clock.advance(10)
    bob = await reader.lease("bob")
    assert (bob.seqs, bob.attempts) == ([1, 2], [2, 2])
    assert second.lease_id
    assert await reader.ack_all(second) == [Lost(second.lease_id, None)]
    assert await reader.ack_all(other) == []


async def test_an_owner_leases_the_messages_of_its_expired_leases_again_in_order(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"aaab")
    await reader.lease("ann", 2)
    reader.clock.advance(30)
    again = await reader.lease("ann")
    assert (again.seqs, again.attempts) == ([1, 2, 3, 4], [2, 2, 1, 1])


async def test_expiry_leaves_a_lease_to_a_settle_that_is_in_progress(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"aab")
    ann, cid = await reader.lease("ann", 2), await reader.lease("cid")
    assert ann.lease_id
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await store.settle(slow, reader.id, Settlement(leases=[ann.lease_id], seqs=[1], failures=[None]))
    reader.clock.advance(30)
    # No call waits. The messages that are being settled stay leased, and their key stays busy.
    assert (await reader.lease("bob")).seqs == cid.seqs
    await transaction.commit()
    assert (await reader.lease("bob")).seqs == [2]


async def test_an_ack_in_progress_that_rolls_back_loses_nothing(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    ann = await reader.lease("ann")
    assert ann.lease_id
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    assert await store.settle(slow, reader.id, Settlement(whole=[ann.lease_id])) == []
    reader.clock.advance(30)
    assert (await reader.lease("bob")).seqs == []
    await transaction.rollback()
    assert (await reader.lease("bob")).seqs == [1]


async def test_two_settles_of_one_lease_at_once_both_count(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"abcd")
    batch = await reader.lease()
    assert batch.lease_id
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    first = Settlement(leases=[batch.lease_id], seqs=[1], failures=[None])
    assert await store.settle(slow, reader.id, first) == []
    second = await start(reader.nack(batch, 2, 1, delay=10))
    await until_blocked(database, slow)
    await transaction.commit()
    assert await second == [Lost(batch.lease_id, 1, gone=False)]
    assert await reader.ack(batch, 3) == []
    info = await reader.info()
    assert (info.in_flight, info.parked) == (1, 1)
    reader.clock.advance(60)
    assert await reader.drain("bob") == [2, 4]


async def test_a_settle_that_waited_for_the_end_of_its_lease_is_lost(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    stale = await reader.lease("ann")
    assert stale.lease_id
    reader.clock.advance(30)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    taken = await store.lease(slow, reader.id, owner("bob"), 10, now=reader.clock.now)
    assert taken.seqs == [1, 2]
    late = await start(reader.ack(stale, 1))
    await until_blocked(database, slow)
    await transaction.commit()
    assert await late == [Lost(stale.lease_id, 1)]
    assert await reader.ack_all(taken) == []


async def test_a_settle_inside_the_callers_transaction_counts_when_it_commits(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    async with database.transaction() as connection:
        await database.fetchval("select 1")
        assert await store.settle(connection, reader.id, Settlement(whole=[batch.lease_id])) == []
        await publish(connection, "done")
    assert await reader.drain() == [3]


async def test_settles_and_extensions_that_name_the_same_leases_take_turns(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """All lock the leases in one order, whatever they do with each, so there is no deadlock."""
    reader = await declare()
    await publish(database, *"abcd")
    first, second = await reader.lease("ann", 2), await reader.lease("ann", 2)
    assert first.lease_id
    assert second.lease_id
    holder, extending = await connect(), await connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.fetch("select from headrace_internal.leases where lease_id = $1 for update", first.lease_id)
    extension = await start(store.extend_leases(extending, reader.id, [second.lease_id, first.lease_id]))
    await until_blocked(database, holder)
    settlement = Settlement(whole=[second.lease_id], leases=[first.lease_id], seqs=[1], failures=[None])
    settle = await start(store.settle(database, reader.id, settlement))
    await until_blocked(database, extending)
    await transaction.rollback()
    assert await extension == [first.lease_id, second.lease_id]
    assert await settle == []
    assert await reader.count("leases") == 1


async def test_a_settle_that_could_not_see_the_newest_acks_is_refused(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Under repeatable read, the settle would release a message that another transaction has just acked."""
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    assert batch.lease_id
    connection = await connect()
    async with connection.transaction(isolation="repeatable_read"):
        with pytest.raises(asyncpg.PostgresError, match="must run under read committed"):
            await store.settle(connection, reader.id, Settlement(whole=[batch.lease_id]))
