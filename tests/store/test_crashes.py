"""Crash counts: a message that kills its worker is isolated, because crashes count only for the
messages that were started."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.outcomes import Failure
from headrace.model.records import Batch
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio

ALONE = 2  # the number of crashes from which a worker runs a message alone


async def crash(reader: Reader, batch: Batch, *started: int) -> None:
    """The worker starts these messages and dies. Its leases expire."""
    if started:
        assert await reader.mark_started(batch, *started) == []
    reader.clock.advance(30)


async def work(reader: Reader, batch: Batch, poison: int) -> list[int]:
    """Run one life of a worker that handles its messages in order and suspects one at a time.
    Return what it acked before it died."""
    done: list[int] = []
    crashes = batch.crashes or [0] * len(batch.seqs)
    for seq, count in sorted(zip(batch.seqs, crashes, strict=True), key=lambda one: one[1] >= ALONE):
        if count:
            assert await reader.mark_started(batch, seq) == []
        if seq == poison:
            reader.clock.advance(30)
            return done
        assert await reader.ack(batch, seq) == []
        done.append(seq)
    return done


async def test_a_poison_message_is_dead_lettered_alone_and_all_others_are_delivered(
    database: store.Database, declare: Declare
) -> None:
    """Its 100 companions are leased together with it again and again, by workers that it kills."""
    reader = await declare(ack_wait=30, max_deliver=5)
    await publish(database, *[f"k.{n}" for n in range(101)])
    poison, done, lives = 51, [], 0
    while (batch := await reader.lease(f"worker {lives}", 200)).lease_id is not None:
        done += await work(reader, batch, poison)
        lives += 1
    (letter,) = await reader.dead_letters()
    assert (letter.seq, letter.attempts, letter.reason) == (poison, 5, "exhausted")
    assert letter.error is not None
    assert "died, froze, or lost its connection, 5 times in a row" in letter.error
    assert sorted(done) == [seq for seq in range(1, 102) if seq != poison]
    assert lives == 5


async def test_a_crash_counts_for_all_that_never_crashed_before(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    batch = await reader.lease()
    assert (batch.attempts, batch.crashes) == (None, None)
    await crash(reader, batch)
    again = await reader.lease()
    assert (again.seqs, again.attempts, again.crashes) == ([1, 2, 3], [2, 2, 2], [1, 1, 1])


async def test_among_suspects_a_crash_counts_only_for_those_that_were_started(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    await crash(reader, await reader.lease())
    await publish(database, "d")
    await crash(reader, await reader.lease(), 2)
    again = await reader.lease()
    assert (again.seqs, again.attempts, again.crashes) == ([1, 2, 3, 4], [2, 3, 2, 2], [1, 2, 1, 1])


async def test_fresh_messages_beside_suspects_have_no_crashes(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"ab")
    await crash(reader, await reader.lease())
    await publish(database, *"cd")
    assert (await reader.lease()).crashes == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("outcome", "attempts", "crashes"),
    [(Failure("retry"), [3], None), (Failure("release"), [2], [1])],
    ids=["a failure clears it", "a release does not whitewash"],
)
async def test_the_outcome_decides_whether_the_crash_count_is_kept(
    database: store.Database, declare: Declare, outcome: Failure, attempts: list[int], crashes: list[int] | None
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    await crash(reader, await reader.lease())
    batch = await reader.lease()
    assert await reader.fail(batch, outcome) == []
    again = await reader.lease()
    assert (again.attempts, again.crashes) == (attempts, crashes)


async def test_a_partly_settled_lease_keeps_the_crash_counts_of_the_rest(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abcd")
    await crash(reader, await reader.lease())
    batch = await reader.lease()
    assert await reader.mark_started(batch, 2, 3) == []
    assert await reader.ack(batch, 1, 3) == []
    await crash(reader, batch)
    again = await reader.lease()
    assert (again.seqs, again.attempts, again.crashes) == ([2, 4], [3, 2], [2, 1])


async def test_reclaim_and_a_redrive_keep_and_forget_crashes(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30, max_deliver=2)
    await publish(database, "a")
    await crash(reader, await reader.lease())
    await reader.lease()
    assert await store.reclaim(database, reader.id, owner("ann"), []) == 1
    again = await reader.lease()
    assert (again.attempts, again.crashes) == ([2], [1])
    await crash(reader, again, 1)
    assert (await reader.lease()).lease_id is None
    assert await reader.redrive() == 1
    again = await reader.lease()
    assert (again.attempts, again.crashes) == ([1], None)


async def test_messages_started_under_a_lost_lease_are_reported(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    stale = await reader.lease("ann", 2)
    reader.clock.advance(30)
    fresh = await reader.lease("bob")
    assert stale.lease_id
    assert fresh.lease_id
    asked = [stale.lease_id, fresh.lease_id, stale.lease_id]
    assert await store.mark_started(database, reader.id, asked, [1, 1, 2]) == [stale.lease_id]
    await crash(reader, fresh)
    assert (await reader.lease("cid")).crashes == [2, 1, 1]


async def test_a_message_that_exceeds_max_deliver_by_crashes_is_exhausted(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30, max_deliver=2, on_exhausted="block")
    await publish(database, *"aab")
    for _ in range(2):
        await crash(reader, await reader.lease(), 1)
    batch = await reader.lease()
    assert (batch.seqs, batch.attempts) == ([3], [2])
    info = await reader.info()
    assert (info.dead_letters, info.blocked) == (1, 2)


async def test_marking_messages_as_started_does_not_wait_for_the_disk(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, "a")
    batch = await reader.lease()
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    reader.executor = connection
    await reader.mark_started(batch, 1)
    assert await connection.fetchval("show synchronous_commit") == "off"
    await transaction.rollback()
