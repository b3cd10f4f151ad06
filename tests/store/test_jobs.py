"""Jobs redrive and purge dead letters in chunks. No dead letter is done twice by one job, whatever is killed on the way."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.errors import InUse, UnknownConsumer
from headrace.model.watching.operations import Job, JobKind
from headrace.store import ClaimedJob
from tests.conftest import Connect, Declare
from tests.store.test_bounded_cost import touched
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio


async def _dead(declare: Declare, messages: int = 10, **settings: Any) -> Reader:
    """A consumer with as many dead letters."""
    reader = await declare(**settings)
    await publish(reader.executor, *(f"k.{n}" for n in range(messages)))
    await reader.reject(await reader.lease(limit=messages))
    return reader


async def _create(reader: Reader, kind: JobKind = "redrive", **selection: Any) -> UUID:
    reader.clock.advance(1)
    chosen = DeadLetterCriteria(**selection)
    job = store.NewJob(kind, chosen, by="ann")
    return await store.create_job(reader.executor, "orders", reader.spec.name, job, now=reader.clock.now)


async def _claim(reader: Reader) -> ClaimedJob:
    found = await store.claim_job(reader.executor, 10.0, now=reader.clock.now)
    assert found is not None
    return found


async def _step(reader: Reader, job: ClaimedJob, chunk: int = 3, examine: int = 100) -> str:
    return await store.work_job(reader.executor, job, chunk=chunk, examine=examine, seconds=10.0, now=reader.clock.now)


async def _job(reader: Reader, number: int = 0) -> Job:
    return (await store.jobs(reader.executor, limit=10))[number]


async def test_a_job_goes_through_the_dead_letters_in_chunks(declare: Declare) -> None:
    reader = await _dead(declare)
    await _create(reader)
    job = await _claim(reader)
    assert [await _step(reader, job) for _ in range(3)] == ["running"] * 3
    assert ((await _job(reader)).done, (await _job(reader)).state) == (9, "running")
    assert await _step(reader, job) == "done"
    found = await _job(reader)
    assert (found.done, found.state, found.finished_at, found.created_by) == (10, "done", reader.clock.now, "ann")
    assert await reader.dead_letters() == []
    assert await reader.drain() == list(range(1, 11))


async def test_a_purge_deletes_only_what_matches_and_unblocks_keys(declare: Declare) -> None:
    reader = await declare(on_exhausted="block", max_deliver=1)
    await publish(reader.executor, "a", "b", "c", "a")
    await reader.nack(await reader.lease(limit=3))
    await reader.lease()
    await _create(reader, "purge", where=conditions.parse("data.n < 2"))
    job = await _claim(reader)
    while await _step(reader, job, chunk=1, examine=2) == "running":
        pass
    assert [letter.key for letter in await reader.dead_letters()] == ["c"]
    assert (await _job(reader)).done == 2
    assert await reader.drain() == [4]


async def test_selected_seqs_are_redriven_and_no_others(declare: Declare) -> None:
    reader = await _dead(declare)
    await _create(reader, seqs=[2, 9, 77])
    assert await _step(reader, await _claim(reader)) == "done"
    assert await reader.drain() == [2, 9]


async def test_a_message_that_dies_again_is_not_redriven_again_by_the_same_job(declare: Declare) -> None:
    reader = await _dead(declare, 6)
    await _create(reader)
    job = await _claim(reader)
    await _step(reader, job)
    reader.clock.advance(1)
    await reader.reject(await reader.lease())  # the first three
    await publish(reader.executor, "new")
    await reader.reject(await reader.lease())
    while await _step(reader, job) == "running":
        pass
    assert (await _job(reader)).done == 6
    assert [letter.seq for letter in await reader.dead_letters()] == [1, 2, 3, 7]


async def test_a_claim_expires_and_the_step_of_the_older_one_is_refused(declare: Declare) -> None:
    reader = await _dead(declare)
    await _create(reader)
    killed = await _claim(reader)
    await _step(reader, killed)
    assert await store.claim_job(reader.executor, 10.0, now=reader.clock.now) is None
    reader.clock.advance(10)
    other = await _claim(reader)
    assert (other.id, other.claim) == (killed.id, killed.claim + 1)
    assert await _step(reader, killed) == "lost"
    await store.fail_job(reader.executor, killed, "gone")
    await store.release_job(reader.executor, killed)
    assert ((await _job(reader)).done, (await _job(reader)).state) == (3, "running")
    while await _step(reader, other) == "running":
        pass
    assert (await _job(reader)).done == 10
    assert await reader.drain() == list(range(1, 11))


async def test_a_step_that_does_not_commit_leaves_nothing(declare: Declare, connect: Connect) -> None:
    reader = await _dead(declare)
    await _create(reader)
    job = await _claim(reader)
    connection: Any = await connect()
    transaction = connection.transaction()
    await transaction.start()
    await store.work_job(connection, job, chunk=5, examine=100, seconds=10.0, now=reader.clock.now)
    await transaction.rollback()
    assert ((await _job(reader)).done, len(await reader.dead_letters())) == (0, 10)
    while await _step(reader, job) == "running":
        pass
    assert await reader.drain() == list(range(1, 11))


async def test_a_cancelled_job_ends_at_its_next_step(declare: Declare) -> None:
    reader = await _dead(declare)
    created = await _create(reader)
    job = await _claim(reader)
    await _step(reader, job)
    assert not await store.cancel_job(reader.executor, "other", created)
    assert await store.cancel_job(reader.executor, "orders", created, now=reader.clock.now)
    assert await _step(reader, job) == "cancelled"
    assert not await store.cancel_job(reader.executor, "orders", created)
    assert ((await _job(reader)).done, (await _job(reader)).state) == (3, "cancelled")
    assert await store.claim_job(reader.executor, 10.0) is None


async def test_jobs_take_turns(declare: Declare) -> None:
    reader = await _dead(declare)
    for _ in range(3):
        await _create(reader)
    turns = []
    for _ in range(4):
        job = await _claim(reader)
        turns.append(job.id)
        await store.release_job(reader.executor, job)
        reader.clock.advance(1)
    assert turns == [1, 2, 3, 1]


async def test_a_job_of_a_deleted_consumer_fails_and_stays_in_the_list(declare: Declare) -> None:
    reader = await _dead(declare)
    await _create(reader)
    job = await _claim(reader)
    await store.delete_consumer(reader.executor, reader.id, force=True)
    assert await _step(reader, job) == "failed"
    found = await _job(reader)
    assert (found.state, found.error, found.consumer) == ("failed", "The consumer was deleted.", "ship")


async def test_a_dead_letter_whose_message_is_gone_stays_and_the_job_ends(declare: Declare) -> None:
    reader = await _dead(declare, 4)
    await reader.executor.fetch("delete from headrace_streams.orders where seq = 2")
    await _create(reader)
    job = await _claim(reader)
    while await _step(reader, job, chunk=1) == "running":
        pass
    assert ((await _job(reader)).done, [letter.seq for letter in await reader.dead_letters()]) == (3, [2])


async def test_the_number_of_jobs_is_bounded(declare: Declare) -> None:
    reader = await _dead(declare, 1)
    for _ in range(100):
        await _create(reader)
    with pytest.raises(InUse, match="100 jobs"):
        await _create(reader)
    with pytest.raises(UnknownConsumer):
        await store.create_job(reader.executor, "orders", "nope", store.NewJob("purge", DeadLetterCriteria(), 1))


async def test_jobs_are_listed_newest_first_and_removed_after_a_week(declare: Declare) -> None:
    reader = await _dead(declare, 1)
    ids = [str(await _create(reader)) for _ in range(3)]
    assert [job.id for job in await store.jobs(reader.executor, ["orders"], limit=2)] == ids[:0:-1]
    assert [job.id for job in await store.jobs(reader.executor, limit=2, id=UUID(ids[1]))] == [ids[1]]
    assert await store.jobs(reader.executor, ["other"], limit=2) == []
    assert await _step(reader, await _claim(reader)) == "done"
    later = reader.clock.now + timedelta(days=7)
    assert await store.delete_old_jobs(reader.executor, now=later) == 0
    assert await store.delete_old_jobs(reader.executor, now=later + timedelta(seconds=1)) == 1
    assert [job.id for job in await store.jobs(reader.executor, limit=5)] == ids[:0:-1]


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
@pytest.mark.parametrize("kind", ["redrive", "purge"])
async def test_a_step_costs_the_same_however_many_dead_letters_there_are(
    declare: Declare, connect: Connect, kind: JobKind, on_exhausted: str
) -> None:
    counts = []
    connection: Any = await connect()
    for name, messages in (("few", 50), ("many", 2000)):
        reader = await declare(
            name, max_deliver=1, on_exhausted=on_exhausted, max_ack_pending=10_000, deliver_policy="new"
        )
        await publish(reader.executor, *(f"k.{n}" for n in range(messages)))
        await reader.nack(await reader.lease(limit=messages))
        await reader.executor.fetch("analyze headrace_internal.dead_letters")
        await _create(reader, kind)
        job = await _claim(reader)
        reader.executor = connection
        counts.append(await touched(connection, partial(_step, reader, job, 10, 20)))
    assert counts[1] < counts[0] + 60, counts


async def test_a_condition_that_matches_nothing_costs_a_step_what_it_may_examine(
    declare: Declare, connect: Connect
) -> None:
    reader = await _dead(declare, 500, max_ack_pending=1000)
    await _create(reader, key="none")
    job = await _claim(reader)
    reader.executor = connection = await connect()
    assert await touched(connection, partial(_step, reader, job, 10, 20)) < 200
    assert (await _job(reader)).state == "running"
