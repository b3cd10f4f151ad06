"""Point-in-time recovery: the store is restored to an earlier moment, and acks from after that moment arrive."""

from __future__ import annotations

from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from tests.support.clusters import cluster, standby
from tests.support.readers import Clock, Reader, owner, publish
from tests.support.recovery import archived
from tests.support.servers import opened

pytestmark = pytest.mark.asyncio

FUTURE = 200
"""The number of leases and messages after the recovery point. It exceeds the values that a sequence
logs ahead, so their numbers are drawn again."""


@pytest.mark.process
async def test_a_recovery_to_an_earlier_time_loses_nothing_of_it_and_stale_acks_change_nothing(tmp_path: Path) -> None:
    with archived(tmp_path / "postgres", max_prepared_transactions="5") as server:
        dsn, clock, spec = server.server.url(), Clock(), ConsumerSpec(stream="orders", name="ship", ack_wait=30)
        async with opened(dsn) as database:
            await store.migrate(database)
            await anyio.to_thread.run_sync(server.back_up)
            await store.create_stream(database, "orders")
            reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
            await publish(database, *"abc")  # 1 to 3
            kept = await reader.lease()
            async with database.transaction() as connection:
                await reader.ack_within(connection, kept, 1)
            await reader.nack(kept, 2, delay=5)
            old = await asyncpg.connect(dsn)
            await old.execute("begin isolation level repeatable read; select pg_current_xact_id()")
            late, prepared = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
            await late.execute("begin; select headrace.publish('orders', 'late', '4')")
            await prepared.execute("begin; select headrace.publish('orders', 'prepared', '5')")
            await publish(database, "d")  # 6
            busy = await reader.lease("bob")
            clock.advance(2)
            await reader.lease("bob")  # this call looks up which transactions may fill the holes
            await prepared.execute("prepare transaction 'prepared'")
            assert (await reader.cursor())["suspects"], "nothing is under suspicion: that part of the test has no point"
            await database.fetchval("select pg_create_restore_point('middle')")

            await late.execute("commit")
            await prepared.execute("rollback prepared 'prepared'")
            stale = await lost_future(database, reader, kept, busy)
            for connection in (old, late, prepared):
                await connection.close()

        await anyio.to_thread.run_sync(server.recover, "middle")
        async with opened(dsn) as database:
            reader.executor = database
            await stale_acks_change_nothing(reader, stale)
            # The leases of the recovery point are still held, and their acks count.
            assert await reader.ack(busy, 6) == []
            assert await reader.ack_all(kept) == []
            await database.fetch("commit prepared 'prepared'")
            await publish(database, *["x"] * FUTURE)
            clock.advance(5)
            found = await drain_with_time(reader)
            expected = await database.fetch("select seq from headrace_streams.orders order by seq")
            assert sorted([1, 3, 6, *found]) == [row["seq"] for row in expected]
            assert {2, 5} <= set(found)
            assert set(found) & {seq for batch in stale for seq in batch.seqs}, "no seq was given again"
            cursor = await reader.cursor()
            assert (str(cursor["holes"]), await reader.count("acks")) == ("[]", 0)


async def lost_future(database: store.Database, reader: Reader, *leased: Batch) -> list[Batch]:
    """Work done after the recovery point. Returns leases that are known outside the database and
    that the recovery undoes."""
    for batch in leased:
        await reader.ack_all(batch)
    reader.clock.advance(5)
    await reader.drain()
    batches = []
    for number in range(FUTURE):
        await publish(database, f"future.{number}")
        batches.append(await reader.lease(f"owner {number}", 1))
    reader.clock.advance(-5)
    return batches


async def stale_acks_change_nothing(reader: Reader, stale: list[Batch]) -> None:
    before = await state(reader)
    for batch in stale:
        assert batch.lease_id
        assert len(await reader.ack_all(batch)) == 1
        assert len(await reader.nack(batch)) == 1
        assert await reader.mark_started(batch, *batch.seqs) == [batch.lease_id]
        with pytest.raises(LeaseLost):
            async with reader.executor.transaction() as connection:  # type: ignore[attr-defined]
                await reader.ack_within(connection, batch)
    assert await store.extend_leases(reader.executor, reader.id, [b.lease_id for b in stale if b.lease_id]) == []
    assert await state(reader) == before


async def state(reader: Reader) -> list[object]:
    tables = ("leases", "parked", "tails", "dead_letters", "acks", "cursors")
    return [
        [dict(row) for row in await reader.executor.fetch(f"select * from headrace_internal.{table}")]
        for table in tables
    ]


async def drain_with_time(reader: Reader) -> list[int]:
    """Drain with lease calls in between that check whether the holes can be forgotten."""
    found = await reader.drain("cid")
    for _ in range(4):
        reader.clock.advance(2)
        found += await reader.drain("cid")
    return found


@pytest.mark.process
async def test_a_consumer_that_a_server_in_recovery_has_not_replayed_yet_is_waited_for(tmp_path: Path) -> None:
    """The server accepts readers before it has replayed the whole log. Workers must not take their
    consumer for deleted."""
    with cluster(tmp_path / "primary") as primary:
        async with opened(primary.url()) as database:
            await store.migrate(database)
            with standby(primary, recovery_min_apply_delay="1h") as replica:
                await store.create_stream(database, "orders")
                spec = ConsumerSpec(stream="orders", name="ship")
                consumer = (await store.declare_consumer(database, spec)).id
                async with opened(replica.url) as behind:
                    for call in (
                        store.lease(behind, consumer, owner("ann"), 1),
                        store.lease(behind, consumer, owner("ann"), 1, judging=60.0),
                        store.consumer_spec(behind, consumer),
                        store.publish(behind, "orders", "a", "1"),
                    ):
                        with pytest.raises(StoreUnavailable, match=r"in recovery|is a standby"):
                            await call
