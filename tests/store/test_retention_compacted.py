"""Retention of streams that keep one message per key: age, size, tombstones and dead rows."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from headrace import store
from headrace.model.errors import StreamFull
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance import vacuum
from headrace.runtime.maintenance.sweeper import Sweeper
from headrace.runtime.maintenance.vacuum import Vacuum
from tests.conftest import Connect
from tests.support.readers import publish
from tests.support.retained import HOUR, Stream, size

pytestmark = pytest.mark.asyncio

DEAD = "select pg_stat_get_dead_tuples('headrace_streams.orders'::regclass)"


async def test_one_message_per_key_by_age(stream: Stream) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, retain_up_to=HOUR))
    behind, done = await stream.consumer("behind"), await stream.consumer("done", filters=("k.2",))
    await stream.fill(10, keys=10)
    await done.drain()
    await stream.age(2 * HOUR, below=5)
    swept = await stream.sweep()
    assert (swept.messages_trimmed, swept.missed) == (4, 4)
    assert await stream.seqs() == [5, 6, 7, 8, 9, 10]
    assert await stream.gap(behind) == (4, 1, 5)
    assert await stream.gap(done) is None
    assert await behind.drain() == [5, 6, 7, 8, 9, 10]


async def test_one_message_per_key_by_size_counts_live_rows(stream: Stream) -> None:
    await store.create_stream(
        stream.database, StreamSpec(name="orders", one_message_per_key=True, max_storage=1_000_000)
    )
    for _ in range(10):
        await stream.fill(40, keys=40, size=10_000)
    assert (await stream.sweep()).messages_trimmed == 0, "ten times as much lies there, dead"
    await stream.fill(200, keys=200, size=10_000)
    swept = await stream.sweep()
    assert 100 < swept.messages_trimmed < 150
    left = await stream.seqs()
    assert left == list(range(left[0], 601))
    assert await size(stream) <= 1_000_000


async def test_one_message_per_key_refuses_publishing_when_no_message_may_be_removed(stream: Stream) -> None:
    spec = StreamSpec(name="orders", one_message_per_key=True, max_storage=1_000_000, retain_at_least=HOUR)
    await store.create_stream(stream.database, spec)
    await stream.fill(200, keys=200, size=10_000)
    swept = await stream.sweep()
    assert (swept.messages_trimmed, swept.full) == (0, ["orders"])
    with pytest.raises(StreamFull):
        await stream.fill(1)
    swept = await stream.sweep(2 * HOUR)
    assert swept.messages_trimmed > 0
    assert swept.full == []


async def test_tombstones_are_removed_once_every_consumer_has_settled_them(stream: Stream) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, tombstones=True))
    reader = await stream.consumer()
    await publish(stream.database, "a", "b", "c")
    await store.publish_many(stream.database, "orders", ["a", "b"], ["null", " null"])
    assert (await stream.sweep()).tombstones_removed == 0
    batch = await reader.lease()
    assert batch.seqs == [3, 4, 5]
    assert (await stream.sweep()).tombstones_removed == 0
    await reader.ack_all(batch)
    await reader.drain()  # this lease call finds that the missing messages are gone for good
    assert (await stream.sweep()).tombstones_removed == 2
    assert await stream.seqs() == [3]
    await publish(stream.database, "a")
    assert await reader.drain() == [6]


async def test_tombstones_without_consumers_are_removed_at_once(stream: Stream, connect: Connect) -> None:
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True, tombstones=True))
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await store.publish(late, "orders", "late", "null")
    await store.publish(stream.database, "orders", "a", "null")
    sweeper = Sweeper(stream.database)
    await sweeper.sweep(stream.now)
    await transaction.commit()
    await sweeper.sweep(stream.now)
    assert await stream.seqs() == []


@pytest.mark.long
async def test_a_table_that_is_rewritten_all_the_time_keeps_the_size_of_its_keys(
    stream: Stream, connect: Connect
) -> None:
    """The server also prunes pages between two vacuums, unless a snapshot in any database of the
    cluster prevents it. This test always holds such a snapshot, so each round needs the same space,
    and only a vacuum frees it."""
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True))
    await stream.database.fetch("alter table headrace_streams.orders set (autovacuum_enabled = off)")
    reader, sizes = await connect(), []
    for _ in range(8):
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetch(DEAD)  # the snapshot is taken at the first statement
            for _ in range(8):
                await stream.fill(2000, keys=2000)
        await until_dead(stream, 10_000)
        await until_vacuumed(stream)
        sizes.append(await stream.database.fetchval("select pg_relation_size('headrace_streams.orders')"))
    assert len(await stream.seqs()) == 2000
    # Without a vacuum the table grows in each round. A snapshot of another database may keep single
    # vacuums from freeing everything.
    grew = [later > 1.05 * earlier for earlier, later in pairwise(sizes[1:])]
    assert sum(grew) <= len(grew) / 2, sizes


async def test_vacuums_that_free_rows_stay_frequent(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics that are not yet current, as up to PostgreSQL 14, must not make a vacuum seem useless."""
    await store.create_stream(stream.database, StreamSpec(name="orders", one_message_per_key=True))
    await stream.database.fetch("alter table headrace_streams.orders set (autovacuum_enabled = off)")
    sweeper, now = Vacuum(stream.database), 0.0
    monkeypatch.setattr(vacuum, "monotonic", lambda: now)
    for _ in range(3):
        for _ in range(8):
            await stream.fill(2000, keys=2000)
        await until_dead(stream, 10_000)
        assert await sweeper.run() == ["headrace_streams.orders"]
        now += vacuum.MIN_PAUSE


async def until_dead(stream: Stream, rows: int) -> None:
    """Wait until the server's statistics count more dead rows. They are updated with a delay."""
    async with asyncio.timeout(30):
        while True:
            if await stream.database.fetchval(DEAD) > rows:
                return
            await asyncio.sleep(0)


async def until_vacuumed(stream: Stream) -> None:
    """Sweep until the dead rows are gone. A snapshot that the server takes for its statistics may
    prevent a vacuum."""
    async with asyncio.timeout(30):
        while await stream.database.fetchval(DEAD) > 10_000:
            assert (await stream.sweep()).vacuumed == ["headrace_streams.orders"]
