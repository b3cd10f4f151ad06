"""A streaming query is stopped and restarted repeatedly, while publishers commit late, roll back and
prepare, and segments are created.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from headrace import store, sweep
from headrace.model.specs import StreamSpec
from tests.runtime.running import eventually
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.test_source_streaming import Query, batches_of
from tests.support.late import LatePublishers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

MESSAGES = 20_000
HOLD = 3.0


class Preparing:
    """A publisher that prepares its transactions, and ends them on another connection some time later.

    Attributes:
        committed: The seqs of its committed messages.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(f"{seed} prepares")
        self.committed: set[int] = set()

    async def run(self, publishers: LatePublishers) -> None:
        own = await asyncpg.connect(self._dsn)
        other = await asyncpg.connect(self._dsn)
        number = 0
        try:
            while publishers.publishing:
                number += 1
                await self._one(own, other, f"torture {number}")
        finally:
            await own.close()
            await other.close()

    async def _one(self, own: Any, other: Any, name: str) -> None:
        await own.execute("begin")
        seqs = [await store.publish(own, "orders", "prepared", "1") for _ in range(self._chance.randint(1, 5))]
        await asyncio.sleep(self._chance.random() * HOLD / 2)
        await own.execute(f"prepare transaction '{name}'")
        await asyncio.sleep(self._chance.random() * HOLD)
        if self._chance.random() < 0.3:
            await other.execute(f"rollback prepared '{name}'")
        else:
            await other.execute(f"commit prepared '{name}'")
            self.committed.update(seq for seq in seqs if seq is not None)


async def tend(database: store.Database, publishers: LatePublishers) -> None:
    """Create segments, as a janitor does."""
    while publishers.publishing:
        await sweep(database)
        await asyncio.sleep(1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_committed_message_comes_once_whatever_happens(
    spark: SparkSession,  # noqa: F811
    dsn: str,
    database: store.Database,
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    await store.create_stream(database, StreamSpec(name="orders", max_storage=1_000_000_000))
    publishers = LatePublishers(dsn, messages=MESSAGES, seed=seed, publishers=8, slowest=1.0)
    preparing = Preparing(dsn, seed)
    async with asyncio.TaskGroup() as group:
        group.create_task(publishers.run())
        group.create_task(preparing.run(publishers))
        group.create_task(tend(database, publishers))
        while publishers.publishing:
            await one_run(spark, dsn, tmp_path, chance, publishers)
    query = Query(spark, dsn, tmp_path)
    await query.run()
    found = query.seqs()
    there = {row[0] for row in await database.fetch("select seq from headrace_streams.orders")}
    assert set(found) == there == publishers.committed | preparing.committed
    assert max(found.values()) == 1
    assert preparing.committed


async def one_run(
    spark: SparkSession,  # noqa: F811
    dsn: str,
    directory: Path,
    chance: random.Random,
    publishers: LatePublishers,
) -> None:
    """Run some micro-batches, and then stop during one."""
    limit = {"maxRows": chance.choice((500, 2000, 20_000))} if chance.random() < 0.7 else {}
    query = Query(spark, dsn, directory, partitions=chance.choice((1, 2)), settleTimeout="1s", **limit)
    if chance.random() < 0.3:
        await query.run()
        return
    wanted = chance.randint(1, 6)

    async def enough() -> bool:
        return not publishers.publishing or not running.isActive or await batches_of(running, wanted)

    running = await asyncio.to_thread(query.start, processingTime="0 seconds")
    try:
        await eventually(enough)
        await asyncio.sleep(chance.random())
    finally:
        await asyncio.to_thread(running.stop)
    assert running.exception() is None
