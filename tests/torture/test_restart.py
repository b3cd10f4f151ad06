"""Postgres crashes and comes back while publishers publish and workers work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.model.specs import ConsumerSpec
from tests.support import clusters
from tests.support.readers import Clock, Reader, publish
from tests.torture.fleet import Fleet
from tests.torture.ledger import check_settles, counts, nothing_is_left, open_ledger
from tests.torture.publishers import Publishers

# The promises about crashes require `fsync`, but a crash of the server alone loses nothing that was
# written.
SETTINGS = {"fsync": "off", "wal_writer_delay": "10s"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that belongs to this test and may crash."""
    with clusters.cluster(tmp_path / "postgres", **SETTINGS) as postgres:
        yield postgres


@pytest.mark.asyncio
async def test_what_was_published_survives_crashes(server: EmbeddedPostgres, tmp_path: Path) -> None:
    await run_through_crashes(server, tmp_path, crashes=2)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_what_was_published_survives_many_crashes(server: EmbeddedPostgres, tmp_path: Path) -> None:
    await run_through_crashes(server, tmp_path, crashes=30)


async def run_through_crashes(server: EmbeddedPostgres, logs: Path, *, crashes: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, workers' logs in {logs}")
    chance = random.Random(seed)
    dsn = server.url()
    database = store.Database(dsn)
    await database.open()
    await store.migrate(database)
    await store.create_stream(database, "orders")
    connection = await asyncpg.connect(dsn)
    await open_ledger(connection)
    await connection.close()
    publishers = Publishers(dsn, "orders", seed)
    async with Fleet(
        "receipts", 2, logs, seed, dsn=dsn, stream="orders", ack_wait="2s", failures=0.05, pace=0.01
    ) as fleet:
        await fleet.ready()
        enough = anyio.Event()
        publishing = asyncio.create_task(publishers.run(enough))
        for _ in range(crashes):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            await asyncio.to_thread(server.restart, "immediate")
        await asyncio.sleep(0.5)
        enough.set()
        await fleet.or_death(publishing)
        await fleet.finish()
    connection = await asyncpg.connect(dsn)
    twice = await publishers.check(connection)
    accepted, refused = await check_settles(connection, fleet.lines())
    print(
        f"{crashes} crashes, {publishers.count} published, {len(publishers.doubtful)} in doubt, {twice} of them came twice,"
        f" {await counts(connection)}, outcomes accepted {accepted}, refused {refused}"
    )
    assert publishers.doubtful, "no publish was interrupted: that was no torture"
    await connection.close()
    await nothing_is_left(database, "orders")
    await database.close()


@pytest.mark.asyncio
async def test_a_lease_that_a_crash_has_lost_settles_nothing(server: EmbeddedPostgres) -> None:
    """Leases are committed without waiting for the disk, so a crash may lose a lease and reuse its number."""
    database = store.Database(server.url())
    await database.open()
    await store.migrate(database)
    await store.create_stream(database, "orders")
    spec = ConsumerSpec(stream="orders", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, Clock())
    await publish(database, "a", "b", "c")
    forgotten = await reader.lease("ann")
    await asyncio.to_thread(server.restart, "immediate")
    await database.close()
    await database.open()

    assert (await reader.info()).in_flight == 0, "the lease was not forgotten; this test has no point"
    again = await reader.lease("bob", 2)
    assert [lost.lease_id for lost in await reader.ack_all(forgotten)] == [forgotten.lease_id]
    assert len(await reader.ack(forgotten)) == 3
    assert (await reader.info()).in_flight == 2
    assert await reader.ack_all(again) == []
    assert await reader.drain() == [3]
    await database.close()
