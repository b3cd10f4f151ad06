"""The server's clock is set back, and forth again: what was remembered before counts as now, so nothing waits or lasts for
as long as the clock was ahead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.errors import InUse
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from headrace.runtime.leasing.timings import LEASE_TIMINGS
from headrace.sources.postgres.capture.capture_lease import LEASE_DURATION
from tests.conftest import Declare
from tests.support.readers import Clock, live_revision, publish
from tests.support.retained import HOUR, Stream

BACK = 90.0

MOMENTS_AFTER_30 = pytest.approx(30.5, abs=0.5)
"""Seconds: ack_wait, from a moment within the call."""

LEFT_AS_IT_IS = {
    "scheduled.deliver_at": "the user's time",
    "unique_keys.deliver_at": "of the scheduled message",
    "consumers.start_time": "the user's time",
    "consumers.paused_until": "the user's time",
    "tokens.expires_at": "the user's time",
    "sessions.expires_at": "that of its token at most",
    "tokens.revoked_at": "only whether",
    "features.switched_on_at": "only whether",
    "captures.paused_at": "only whether",
    "schedules.paused_at": "only whether",
    "jobs.worked_at": "an order only",
    "streams.full_until": "the janitor clears or renews it",
    "cursors.due_floor": "lowered with the retries",
    "leases.since": "no decision but due_floor",
    "commits.at": "a witness is kept longer",
    "history.since": "features are switched on later",
    "owners.since": "an owner that has died is removed later",
    "capture_failures.failed_at": "compared with times of messages",
    "schedules.next_at": "the processes begin again, see tests/app/test_periodic.py",
    "schedules.requested_at": "only whether",
    "deliveries.at": "kept by number",
    "push_answers.at": "kept by number",
    "completions.at": "kept longer",
    "cancellations.ended_at": "an order only",
    "samples.at": "kept by number, too",
}
"""Times of tables on which nothing is decided that would last as long as the clock was ahead."""

SHOWN = {
    "streams.created_at", "streams.updated_at", "segments.created_at", "consumers.created_at", "consumers.updated_at",
    "dead_letters.created_at", "gaps.happened_at", "sources.created_at", "sources.updated_at", "captures.since", "captures.told_at",
    "backfills.created_at", "backfills.started_at", "backfills.updated_at", "backfills.finished_at", "writes.begun_at",
    "migrations.applied_at", "secrets.created_at", "tokens.created_at", "grants.granted_at", "schedules.last_due_at",
    "schedules.last_run_at", "schedules.created_at", "schedules.updated_at", "sessions.created_at", "managed.applied_at",
    "databases.created_at", "erasures.erased_at", "cancellations.requested_at",
}  # fmt: skip
"""Times that are only shown, or only compared with themselves."""

BOUNDED = {
    "cursors.tokens_at", "cursors.suspects_at", "leases.expires_at", "parked.due_at", "leaders.until",
    "workers.seen_at", "schedules.seen_at", "writes.touched_at", "places.placed_at", "jobs.finished_at", "jobs.claimed_until",
    "captures.held_until", "waiting.until", "waits.until", "message_ids.published_at", "dead_letters.died_at", "jobs.created_at",
}  # fmt: skip
"""Times that are bounded, by `headrace_internal.follow_clock` or where they are read. The tests below say how."""


@pytest.mark.asyncio
async def test_each_time_of_a_table_is_bounded_or_left_for_a_reason(database: store.Database) -> None:
    rows = await database.fetch(
        """select c.relname || '.' || a.attname from pg_attribute as a join pg_class as c on c.oid = a.attrelid
           where c.relnamespace = 'headrace_internal'::regnamespace and c.relkind = 'r' and a.atttypid = 'timestamptz'::regtype"""
    )
    assert {row[0] for row in rows} == BOUNDED | SHOWN | set(LEFT_AS_IT_IS)


# --- consumers


@pytest.mark.parametrize("seconds", [BACK, 0.5, 86_400 * 365])
@pytest.mark.asyncio
async def test_a_rate_limit_neither_stops_nor_fills(database: store.Database, declare: Declare, seconds: float) -> None:
    reader = await declare(rate_limit=10, rate_burst=3, ack_wait=3600)
    await publish(database, *"abcdefghijkl")
    assert (await reader.lease()).seqs == [1, 2, 3]
    reader.clock.advance(-seconds)
    batch = await reader.lease()
    assert (batch.seqs, batch.more) == ([], False)
    assert batch.due_in is not None
    assert batch.due_in <= 0.6, "the next call finds a token"
    reader.clock.advance(batch.due_in)
    assert (await reader.lease()).seqs == [4]
    reader.clock.advance(seconds)
    assert len((await reader.lease()).seqs) <= 3


@pytest.mark.parametrize("settings", [{}, {"rate_limit": 100}, {"ordered": False}])
@pytest.mark.asyncio
async def test_a_dead_workers_lease_ends_after_ack_wait(
    database: store.Database, declare: Declare, settings: dict[str, Any]
) -> None:
    reader = await declare(ack_wait=30, **settings)
    await publish(database, *"abc")
    assert (await reader.lease("ann")).seqs == [1, 2, 3]
    reader.clock.advance(-BACK)
    batch = await reader.lease("bob")
    assert (batch.seqs, batch.due_in) == ([], MOMENTS_AFTER_30)
    reader.clock.advance(30)
    assert (await reader.lease("bob")).seqs == []
    reader.clock.advance(1)
    assert (await reader.lease("bob")).seqs == [1, 2, 3]


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.asyncio
async def test_a_shorter_ack_wait_takes_no_lease_for_one_of_a_clock_that_was_set_back(
    database: store.Database, declare: Declare, limit: int
) -> None:
    """A lease keeps its end until it is extended. Its owner may not know of the edit."""
    reader = await declare(ack_wait=60)
    await publish(database, *"abc")
    batch = await reader.lease("ann", limit)
    reader = await declare(ack_wait=5)
    await publish(database, "d")
    await reader.lease("bob")
    reader.clock.advance(59)
    assert not set((await reader.lease("cid")).seqs) & set(batch.seqs)
    assert await reader.extend("ann") == [batch.lease_id]
    reader.clock.advance(6)
    assert set((await reader.lease("cid")).seqs) >= set(batch.seqs)


@pytest.mark.asyncio
async def test_an_extension_after_an_edit_to_a_shorter_ack_wait_cuts_no_lease(
    database: store.Database, declare: Declare
) -> None:
    """Its owner may extend it next after half of the ack_wait that it knows."""
    reader = await declare(ack_wait=60)
    await publish(database, "a")
    batch = await reader.lease("ann")
    reader = await declare(ack_wait=5)
    assert await reader.extend("ann") == [batch.lease_id]
    reader.clock.advance(30)
    assert (await reader.lease("bob")).seqs == []


@pytest.mark.asyncio
async def test_a_living_worker_keeps_its_lease(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    batch = await reader.lease("ann")
    reader.clock.advance(-BACK)
    for _ in range(4):
        assert (await reader.lease("bob")).seqs == []
        reader.clock.advance(15)
        assert await reader.extend("ann") == [batch.lease_id]
    assert await reader.ack_all(batch) == []


@pytest.mark.asyncio
async def test_a_lease_that_a_settle_has_locked_is_bounded_later(
    database: store.Database, declare: Declare, connect: Any
) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    await reader.lease("ann")
    reader.clock.advance(-BACK)
    settling = await connect()
    async with settling.transaction():
        await settling.execute("select from headrace_internal.leases for update")
        assert (await reader.lease("bob")).seqs == []
    assert (await reader.lease("bob")).due_in == MOMENTS_AFTER_30


@pytest.mark.asyncio
async def test_retries_wait_for_their_delay_from_now(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=3600)
    await publish(database, *"abcd")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=10)
    await reader.nack(batch, 2, delay=600)
    await reader.nack(batch, 3)
    reader.clock.advance(-BACK)
    await reader.nack(batch, 4, delay=20)  # was leased before the clock was set back
    batch = await reader.lease()
    assert (batch.seqs, batch.due_in) == ([3], 10)
    await reader.ack_all(batch)
    for wait, seq in ((10, 1), (10, 4), (580, 2)):
        reader.clock.advance(wait - 0.5)
        assert (await reader.lease()).seqs == []
        reader.clock.advance(0.5)
        assert (await reader.lease()).seqs == [seq]


@pytest.mark.asyncio
async def test_no_retry_is_lost_if_nothing_was_leased_while_the_clock_was_behind(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=3600)
    await publish(database, *"ab")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=10)
    reader.clock.advance(-BACK)
    await reader.nack(batch, 2, delay=10)
    reader.clock.advance(BACK + 10)
    assert (await reader.lease()).seqs == [1, 2]


@pytest.mark.asyncio
async def test_a_consumer_is_no_longer_in_use_after_ack_wait(database: store.Database, declare: Declare) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, *"abc")
    await reader.lease()
    await lead(database, reader.clock)
    reader.clock.advance(-BACK)
    await lead(database, reader.clock)
    with pytest.raises(InUse):
        await store.delete_consumer(database, reader.id, force=False, now=reader.clock.now)
    reader.clock.advance(31)
    await store.delete_consumer(database, reader.id, force=False, now=reader.clock.now)


# --- terms and heartbeats


async def lead(database: store.Database, clock: Clock, candidate: Any = None) -> bool:
    return (await store.lead(database, candidate or uuid4(), 4.0, now=clock.now))[0]


@pytest.mark.asyncio
async def test_a_dead_leader_leads_no_longer(database: store.Database, clock: Clock) -> None:
    assert await lead(database, clock)
    clock.advance(-BACK)
    assert await lead(database, clock)
    clock.advance(BACK)
    assert await lead(database, clock)


@pytest.mark.asyncio
async def test_two_calls_at_nearly_the_same_time_make_one_leader(database: store.Database, clock: Clock) -> None:
    assert await lead(database, clock)
    clock.advance(-0.5)
    assert not await lead(database, clock)


@pytest.mark.asyncio
async def test_a_capture_lease_ends_by_its_duration(database: store.Database, clock: Clock) -> None:
    await store.create_stream(database, "orders")
    await store.create_source(database, "shop", "postgres", "orders", {"tables": ["public.orders"]})
    (todo,) = await store.captures_to_do(database)
    leader = uuid4()
    await lead(database, clock, leader)
    assert await store.take_capture(database, todo.number, uuid4(), 6.0, now=clock.now) == 1
    clock.advance(-BACK)
    await lead(database, clock, leader)
    assert await store.take_capture(database, todo.number, uuid4(), 6.0, now=clock.now) is None
    clock.advance(6)
    (todo,) = await store.captures_to_do(database, now=clock.now)
    assert todo.free
    assert await store.take_capture(database, todo.number, uuid4(), 6.0, now=clock.now) == 2


@pytest.mark.asyncio
async def test_a_job_is_claimed_again_and_takes_what_died_before(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await lead(database, reader.clock)
    await publish(database, *"abc")
    await reader.reject(await reader.lease())
    job = DeadLetterCriteria()
    await store.create_job(
        database,
        "orders",
        "ship",
        store.NewJob("redrive", job, by="ann"),
        now=reader.clock.now - timedelta(seconds=BACK),
    )
    assert await store.claim_job(database, 20.0, now=reader.clock.now) is not None  # by a server that dies
    reader.clock.advance(-BACK)
    await lead(database, reader.clock)
    assert await store.claim_job(database, 20.0, now=reader.clock.now) is None
    reader.clock.advance(20)
    claimed = await store.claim_job(database, 20.0, now=reader.clock.now)
    assert claimed is not None
    await store.work_job(database, claimed, chunk=10, examine=10, seconds=20.0, now=reader.clock.now)
    assert await reader.dead_letters() == []


@pytest.mark.asyncio
async def test_a_dead_process_is_gone_and_a_living_one_is_not(database: store.Database, clock: Clock) -> None:
    dead, living = uuid4(), uuid4()
    await store.record_heartbeat(database, dead, {"revision": 1}, now=clock.now)
    await store.record_heartbeat(database, living, {"revision": 2}, now=clock.now)
    await lead(database, clock)
    clock.advance(-BACK)
    assert await live_revision(database, clock.now) == 1
    await lead(database, clock)
    clock.advance(30)
    await store.record_heartbeat(database, living, {"revision": 2}, now=clock.now)
    clock.advance(31)
    assert await live_revision(database, clock.now) == 2
    assert await store.forget_workers(database, now=clock.now) == 1


@pytest.mark.asyncio
async def test_what_else_is_remembered_counts_as_now(database: store.Database, declare: Declare, clock: Clock) -> None:
    reader = await declare()
    await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="one"))
    await store.wait(database, reader.id, 10.0)
    await database.fetch("select headrace_internal.stage_write('orders', 'w', 0, false)")
    await database.fetch("insert into headrace_internal.databases (name, url_from) values ('eu', 'env:EU')")
    await database.fetch("select headrace_internal.place_name('stream', 'elsewhere', 'eu')")
    now = datetime.now(UTC) - timedelta(days=365)
    await store.lead(database, uuid4(), 4.0, now=now)
    for time, longest in (
        ("waiting.until", 60), ("waits.until", 60), ("writes.touched_at", 0), ("places.placed_at", 0),
        ("message_ids.published_at", 0),
    ):  # fmt: skip
        table, column = time.split(".")
        ((found,),) = await database.fetch(f"select {column} from headrace_internal.{table}")
        assert found == now + timedelta(seconds=longest), time


@pytest.mark.asyncio
async def test_ids_of_timed_webhooks_stay_longer_than_their_window(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", dedupe_window=60))
    await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="headrace:timed-webhook:1"))
    before = await database.fetchval("select published_at from headrace_internal.message_ids")
    await store.lead(database, uuid4(), 4.0)
    assert await database.fetchval("select published_at from headrace_internal.message_ids") == before


# --- retention


@pytest.mark.parametrize("count", [8, 55])
@pytest.mark.asyncio
async def test_messages_from_a_clock_that_was_ahead_go_with_those_behind_them(stream: Stream, count: int) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(count)
    await stream.age(-365 * 24 * HOUR, below=count // 2)
    await stream.sweep()
    assert await stream.seqs() == list(range(1, count + 1))
    await stream.sweep(2 * HOUR)
    assert await stream.seqs() == []


@pytest.mark.asyncio
async def test_messages_from_a_clock_that_was_ahead_are_kept_as_long_as_those_behind_them(stream: Stream) -> None:
    await stream.create(retain_up_to=10 * HOUR, retain_at_least=HOUR, max_storage=1_000_000)
    await stream.fill(105, size=20_000)
    await stream.age(-365 * 24 * HOUR, below=15)
    await stream.sweep()
    assert len(await stream.seqs()) == 105
    await stream.sweep(2 * HOUR)
    assert len(await stream.seqs()) < 105


@pytest.mark.asyncio
async def test_old_messages_at_the_end_do_not_age_those_before_them(stream: Stream) -> None:
    """A user may insert messages with any times."""
    await stream.create(retain_up_to=HOUR)
    await stream.fill(8)
    await stream.database.fetch("update headrace_streams.orders set created_at = '2020-01-01' where seq > 6")
    await stream.sweep()
    assert len(await stream.seqs()) == 8


@pytest.mark.asyncio
async def test_the_longest_terms_are_those_of_the_processes(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.create_source(database, "shop", "postgres", "orders", {"tables": ["public.orders"]})
    (todo,) = await store.captures_to_do(database)
    now = datetime.now(UTC)
    await store.wait(database, reader.id, LEASE_TIMINGS.longest_term)
    assert await store.take_capture(database, todo.number, uuid4(), LEASE_DURATION, now=now) is not None
    reading = "select until from headrace_internal.waiting union all select held_until from headrace_internal.captures"
    before = await database.fetch(reading)
    await store.lead(database, uuid4(), 4.0, now=now)
    assert await database.fetch(reading) == before
    await store.lead(database, uuid4(), 4.0, now=now - timedelta(days=1))
    assert [row[0] - now + timedelta(days=1) for row in await database.fetch(reading)] == [
        timedelta(seconds=LEASE_TIMINGS.longest_term), timedelta(seconds=LEASE_DURATION),
    ]  # fmt: skip
