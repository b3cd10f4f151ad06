"""Retention blocks no call for long, and loses nothing while others publish, lease and read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from tests.conftest import Connect
from tests.support.readers import begun, publish
from tests.support.retained import HOUR, Stream
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def test_a_publisher_that_is_left_open_is_neither_failed_nor_waited_for_and_removing_resumes(
    stream: Stream, connect: Connect
) -> None:
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "late")
    swept = await stream.sweep(2 * HOUR)
    assert (swept.segments_dropped, swept.missed, swept.busy) == (0, 0, ["orders"])
    assert await stream.gap(reader) is None
    await publish(late, "late")
    await stream.fill(1)
    await transaction.commit()
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3
    assert await reader.drain() == []
    assert (await stream.gap(reader) or ())[0] == 38


async def test_no_lock_is_requested_while_a_transaction_has_used_the_table_for_more_than_a_second(
    stream: Stream, connect: Connect
) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    late = await connect()
    await late.execute("begin; select headrace.publish('orders', 'late', '1'); select pg_sleep(1.1)")
    asked = await stream.database.fetchval(
        "select headrace_internal.is_locked_for_long(array['headrace_streams.orders'])"
    )
    assert asked is True
    # Without a limit to its patience, the sweep would wait for ever.
    row = await stream.database.fetchrow(
        "select * from headrace_internal.drop_segments(1, 0, $1)", stream.now + timedelta(hours=2)
    )
    assert row["busy"]
    await late.execute("commit")
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3


async def test_an_old_snapshot_neither_stops_removing_nor_fails(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    await old.fetchval("select pg_current_xact_id()")
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3
    assert [row[0] for row in await old.fetch("select seq from headrace_streams.orders order by seq")] == [
        31, 32, 33, 34, 35,
    ]  # fmt: skip
    await transaction.rollback()


async def test_a_reader_with_an_open_transaction_is_not_disturbed(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(35)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    assert await old.fetchval("select count(*) from headrace_streams.orders") == 35
    assert (await stream.sweep(2 * HOUR)).busy == ["orders"]
    assert await old.fetchval("select count(*) from headrace_streams.orders") == 35
    await transaction.rollback()
    assert (await stream.sweep(2 * HOUR)).segments_dropped == 3


async def test_patience_grows_while_a_lock_is_held_up_to_a_second(
    stream: Stream, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.create(retain_up_to=HOUR)
    asked: list[int] = []
    fetchrow = database.fetchrow

    async def spy(query: str, *args: Any) -> Any:
        if "plan_segments" in query:
            asked.append(args[1])
            return (0, True, None) if len(asked) < 8 else (1, False, None)
        return await fetchrow(query, *args)

    monkeypatch.setattr(database, "fetchrow", spy)
    sweeper = Sweeper(database)
    for _ in range(10):
        await sweeper.sweep(stream.now)
    assert asked == [50, 100, 200, 400, 800, 1000, 1000, 1000, 50, 50]


async def test_sweeps_at_the_same_time_remove_and_count_everything_once(stream: Stream, connect: Connect) -> None:
    await stream.create(retain_up_to=HOUR)
    readers = [await stream.consumer(name) for name in ("one", "two", "three")]
    await stream.fill(155)
    swept = await asyncio.gather(*(stream.sweep(2 * HOUR) for _ in range(6)))
    again = await stream.sweep(2 * HOUR)
    assert sum(one.segments_dropped for one in (*swept, again)) == 15
    assert sum(one.missed for one in (*swept, again)) == 3 * 155
    assert [(await stream.gap(reader) or ())[0] for reader in readers] == [155] * 3


async def test_retention_during_leasing_loses_and_doubles_nothing(stream: Stream, connect: Connect) -> None:
    """Four lease loops, a publisher, and a janitor that removes closed segments immediately. Each
    message is either delivered or counted."""
    await stream.create(width=40, count=60, retain_up_to=HOUR)
    reader = await stream.consumer(max_ack_pending=10_000)
    await stream.fill(90)
    missed_before = (await stream.sweep(2 * HOUR)).missed
    delivered: list[int] = []
    publishing = True

    async def lease(name: str) -> None:
        empty = 0
        while empty < 3:
            over = not publishing
            batch = await reader.lease(name, limit=7)
            delivered.extend(batch.seqs)
            await reader.ack_all(batch)
            empty = empty + 1 if over and not batch.seqs and not batch.more else 0

    async def publish_them() -> None:
        nonlocal publishing
        for _ in range(60):
            await stream.fill(30)
        publishing = False

    async def remove() -> int:
        missed = missed_before
        while publishing:
            missed += (await stream.sweep(2 * HOUR)).missed
        return missed

    *_, missed = await asyncio.gather(*(lease(name) for name in "abcd"), publish_them(), remove())
    await stream.fill(30)
    delivered += await reader.drain()
    assert len(delivered) == len(set(delivered))
    assert len(delivered) + missed == 90 + 60 * 30 + 30
    assert (await stream.gap(reader) or (0,))[0] == missed
    assert delivered
    assert missed


async def test_an_edit_of_the_policy_while_the_size_is_checked_ends_the_refusal_of_publishing(
    stream: Stream, connect: Connect
) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await stream.fill(105, size=20_000)
    async with begun(connect) as (other, transaction):
        await store.edit_stream(other, StreamSpec(name="orders"))
        checking = await start(store.check_full(stream.database, 1))
        await until_blocked(stream.database, other)
        await transaction.commit()
        await checking
    await stream.fill(1)


async def test_an_edit_that_keeps_messages_is_not_overtaken_by_a_removal_that_has_read_the_policy(
    stream: Stream, connect: Connect
) -> None:
    """The removal waits for a consumer's lock before it removes anything."""
    await stream.create(retain_up_to=HOUR)
    reader = await stream.consumer()
    await stream.fill(35)
    async with begun(connect) as (other, transaction):
        await other.execute("select pg_advisory_xact_lock(1212498508, $1)", reader.id)
        removal = await start(
            stream.database.fetchrow(
                "select * from headrace_internal.drop_segments(1, 20000, $1)", stream.now + timedelta(hours=2)
            )
        )
        await until_blocked(stream.database, other)
        await stream.edit()
        await transaction.commit()
        assert (await removal)["removed"] == 0
    assert len(await reader.drain()) == 35
