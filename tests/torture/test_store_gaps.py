"""Publishers commit late, out of order, partly or not at all, beside many lease loops. No message is
lost or delivered twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec
from tests.support.readers import owner

pytestmark = pytest.mark.asyncio

PUBLISHERS = 8
OWNERS = ("ann", "bob", "cid")
ROLLED_BACK = 0.15


@dataclass
class Race:
    """The committed and the delivered messages. Time runs faster than the real clock, so that locks
    are checked more often.
    """

    dsn: str
    messages: int
    seed: int
    committed: set[int] = field(default_factory=set)
    delivered: Counter[int] = field(default_factory=Counter)
    publishing: bool = True
    speed: float = 50.0
    began: float = field(default_factory=monotonic)

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=(monotonic() - self.began) * self.speed)

    async def publish(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        async with connection(self.dsn) as own:
            while len(self.committed) < self.messages:
                transaction = own.transaction()
                await transaction.start()
                seqs = [await self.publish_one(own, chance) for _ in range(chance.randint(1, 12))]
                if chance.random() < 0.3:
                    seqs += await self.publish_in_a_savepoint(own, chance)
                await dawdle(chance)
                if chance.random() < ROLLED_BACK:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    self.committed.update(seqs)

    async def publish_one(self, own: Any, chance: random.Random) -> int:
        if chance.random() < 0.1:
            await dawdle(chance)
        return await store.publish(own, "orders", f"k.{chance.randrange(500)}", "1")

    async def publish_in_a_savepoint(self, own: Any, chance: random.Random) -> list[int]:
        savepoint = own.transaction()
        await savepoint.start()
        seqs = [await self.publish_one(own, chance) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.5:
            await savepoint.rollback()
            return []
        await savepoint.commit()
        return seqs

    async def consume(self, consumer: int, name: str) -> None:
        """Lease and ack until the publishers have ended and several calls returned nothing."""
        chance = random.Random(f"{self.seed} {name}")
        async with connection(self.dsn) as own:
            empty = 0
            while empty < 5:
                publishing = self.publishing
                limit, look = chance.randint(1, 100), chance.choice([20, 100, 2_000])
                batch = await store.lease(own, consumer, owner(name), limit, look=look, now=self.now())
                self.delivered.update(batch.seqs)
                twice = [seq for seq in batch.seqs if self.delivered[seq] > 1]
                assert not twice, f"delivered more than once: {twice[:20]}"
                if batch.lease_id is not None:
                    await dawdle(chance)
                    assert await store.settle(own, consumer, Settlement(whole=[batch.lease_id]), now=self.now()) == []
                empty = 0 if publishing or batch.seqs or batch.more else empty + 1

    async def run(self, consumer: int) -> None:
        async with asyncio.TaskGroup() as loops:
            for name in OWNERS:
                loops.create_task(self.consume(consumer, name))
            async with asyncio.TaskGroup() as publishers:
                for number in range(PUBLISHERS):
                    publishers.create_task(self.publish(number))
            self.publishing = False

    def judge(self) -> None:
        lost = self.committed - set(self.delivered)
        made_up = set(self.delivered) - self.committed
        assert not lost, f"lost {len(lost)} of {len(self.committed)}: {sorted(lost)[:20]}"
        assert not made_up, f"delivered {len(made_up)} that were never committed: {sorted(made_up)[:20]}"


@asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[Any]:
    own = await asyncpg.connect(dsn)
    try:
        yield own
    finally:
        own.terminate()


async def dawdle(chance: random.Random) -> None:
    """Delay this publisher, so that others commit first. This delay is under test, not a wait for something."""
    await asyncio.sleep(chance.expovariate(1 / 0.003))


@asynccontextmanager
async def pinned_xmin(dsn: str) -> AsyncIterator[None]:
    """A transaction left open elsewhere in the database, like a forgotten one."""
    async with connection(dsn) as idle:
        transaction = idle.transaction(isolation="repeatable_read")
        await transaction.start()
        await idle.fetchval("select pg_current_xact_id()")
        yield


async def race(database: store.Database, messages: int, *, pinned: bool, ordered: bool, seed: int) -> None:
    await store.create_stream(database, "orders")
    spec = ConsumerSpec(stream="orders", name="ship", ack_wait=86_400, max_ack_pending=100_000, ordered=ordered)
    consumer = (await store.declare_consumer(database, spec)).id
    race = Race(database.dsn, messages, seed)
    if pinned:
        async with pinned_xmin(database.dsn):
            await race.run(consumer)
    else:
        await race.run(consumer)
    race.judge()
    info = await store.consumer(database, "orders", "ship")
    assert (info.in_flight, info.parked, info.lag) == (0, 0, 0)


@pytest.mark.long
async def test_what_is_committed_is_delivered_once_each(database: store.Database) -> None:
    await race(database, 8_000, pinned=True, ordered=True, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("pinned", [False, True], ids=["free", "pinned"])
async def test_each_of_seventy_thousand_messages_is_delivered_once(
    database: store.Database, pinned: bool, ordered: bool, seed: int
) -> None:
    await race(database, 70_000, pinned=pinned, ordered=ordered, seed=seed)
