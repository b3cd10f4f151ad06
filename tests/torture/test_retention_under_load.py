"""Constant retention while several processes publish, lease and maintain. Each message is delivered or
counted as missed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from tests.support.readers import owner

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

PUBLISHERS = 4
CONSUMERS = {"all": (">",), "some": ("k.1.*", "k.2.*"), "idle": (">",)}
WIDTH = 300
LARGEST = 4_000_000


@dataclass
class Load:
    """The committed messages, and those that each consumer got."""

    dsn: str
    messages: int
    seed: int
    committed: dict[int, str] = field(default_factory=dict)
    delivered: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in CONSUMERS})
    publishing: bool = True
    largest: int = 0
    dropped: int = 0

    async def publish(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        async with connection(self.dsn) as own:
            while len(self.committed) < self.messages:
                keys = [f"k.{chance.randrange(8)}.{chance.randrange(50)}" for _ in range(chance.randint(1, 60))]
                transaction = own.transaction()
                await transaction.start()
                seqs = [
                    (await store.publish(own, "orders", key, f'"{chance.randbytes(300).hex()}"'), key) for key in keys
                ]
                await asyncio.sleep(chance.expovariate(1 / 0.002))
                if chance.random() < 0.1:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    self.committed.update((seq, key) for seq, key in seqs if seq is not None)

    async def consume(self, consumer: int, name: str, who: str, *, slow: float) -> None:
        chance = random.Random(f"{self.seed} {name} {who}")
        async with connection(self.dsn) as own:
            empty = 0
            while empty < 5:
                publishing = self.publishing
                batch = await store.lease(own, consumer, owner(who), chance.randint(1, 80))
                self.delivered[name].update(batch.seqs)
                if batch.lease_id is not None:
                    await asyncio.sleep(chance.expovariate(1 / slow))
                    assert await store.settle(own, consumer, Settlement(whole=[batch.lease_id])) == []
                empty = 0 if publishing or batch.seqs or batch.more else empty + 1

    async def sweep(self, database: store.Database) -> None:
        sweeper = Sweeper(database)
        while self.publishing:
            swept = await sweeper.sweep()
            self.dropped += swept.segments_dropped
            size = await database.fetchval(
                "select headrace_internal.stored_bytes(s) from headrace_internal.streams as s"
            )
            self.largest = max(self.largest, size)

    async def run(self, database: store.Database, consumers: dict[str, int]) -> None:
        async with asyncio.TaskGroup() as loops:
            for name, slow in (("all", 0.001), ("some", 0.02)):
                for who in ("ann", "bob", "cid"):
                    loops.create_task(self.consume(consumers[name], name, who, slow=slow))
            for _ in range(2):
                loops.create_task(self.sweep(database))
            async with asyncio.TaskGroup() as publishers:
                for number in range(PUBLISHERS):
                    publishers.create_task(self.publish(number))
            self.publishing = False


@asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[Any]:
    own = await asyncpg.connect(dsn)
    try:
        yield own
    finally:
        own.terminate()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_each_message_is_delivered_or_counted_as_missed_and_the_size_stays_below_a_bound(
    database: store.Database, seed: int
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", max_storage=LARGEST))
    await database.fetch("select headrace_internal.plan_segments(1)")
    consumers = {
        name: (await store.declare_consumer(database, ConsumerSpec(stream="orders", name=name, filters=filters))).id
        for name, filters in CONSUMERS.items()
    }
    load = Load(database.dsn, 60_000, seed)
    await load.run(database, consumers)
    left = {row[0] for row in await database.fetch("select seq from headrace_streams.orders")}
    first = min(left)
    assert left == {seq for seq in load.committed if seq >= first}, "what remains is what came last, all of it"
    assert load.dropped > 20
    assert load.largest < 1.6 * LARGEST
    for name, consumer in consumers.items():
        wanted = {seq for seq, key in load.committed.items() if name != "some" or key[2] in "12"}
        got = load.delivered[name]
        missed = (
            await database.fetchval("select messages from headrace_internal.gaps where consumer_id = $1", consumer) or 0
        )
        assert not [seq for seq, times in got.items() if times > 1], f"{name}: delivered more than once"
        assert set(got) <= wanted
        ahead = 0 if name != "idle" else len(left)
        assert len(got) + missed + ahead == len(wanted), (
            f"{name}: {len(got)} delivered, {missed} missed of {len(wanted)}"
        )
    assert sum(load.delivered["idle"].values()) == 0
