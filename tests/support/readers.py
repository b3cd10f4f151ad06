"""A consumer that a test controls. It leases and settles in few words, at the time that the test sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from headrace import store
from headrace.model.clock import POSTGRES_EPOCH
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch, ConsumerInfo, DeadLetter, Lost
from headrace.model.specs import ConsumerSpec

_OWNERS = UUID("6f6f6f6f-0000-4000-8000-000000000000")


def to_microseconds(time: datetime) -> int:
    """Return the number of microseconds as which Postgres stores a time."""
    return (time - POSTGRES_EPOCH) // timedelta(microseconds=1)


async def live_revision(database: store.Database, now: datetime | None = None) -> int | None:
    """Return the lowest revision of the schema that the running processes know. None if no process runs."""
    return await database.fetchval("select headrace_internal.live_revision(coalesce($1, clock_timestamp()))", now)


def owner(name: str) -> UUID:
    """Return the same owner for the same name."""
    return uuid5(_OWNERS, name)


class Clock:
    """A clock that only moves when the test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


async def publish(executor: store.Executor, *keys: str, stream: str = "orders", **data: Any) -> None:
    """Publish a message for each key. Its data is a number that counts the messages of the call."""
    await store.publish_many(executor, stream, keys, [json.dumps({"n": n, **data}) for n in range(len(keys))])


class Reader:
    """One consumer: leases for owners by name, settles messages, and queries the catalogue."""

    def __init__(self, executor: store.Executor, spec: ConsumerSpec, consumer: int, clock: Clock) -> None:
        self.executor = executor
        self.spec = spec
        self.id = consumer
        self.clock = clock

    async def lease(self, who: str = "ann", limit: int = 100, **bounds: Any) -> Batch:
        return await store.lease(self.executor, self.id, owner(who), limit, now=self.clock.now, **bounds)

    async def extend(self, who: str = "ann") -> list[int]:
        """Extend all leases of this owner that the store knows."""
        rows = await self.executor.fetch(
            "select lease_id from headrace_internal.leases where consumer_id = $1 and owner = $2", self.id, owner(who)
        )
        return await store.extend_leases(self.executor, self.id, [row["lease_id"] for row in rows], now=self.clock.now)

    async def mark_started(self, batch: Batch, *seqs: int) -> list[int]:
        """Record that handlers start messages of a lease."""
        assert batch.lease_id is not None, "the batch is empty"
        return await store.mark_started(self.executor, self.id, [batch.lease_id] * len(seqs), list(seqs))

    async def ack_within(self, transaction: Any, batch: Batch, *seqs: int) -> int:
        """Ack messages of a lease in a transaction. The default is the whole batch. Returns the transaction's id."""
        assert batch.lease_id is not None, "the batch is empty"
        chosen = list(seqs or batch.seqs)
        return await store.ack(transaction, self.id, [batch.lease_id] * len(chosen), chosen, now=self.clock.now)

    async def ack_all(self, *batches: Batch) -> list[Lost]:
        """Ack everything that the leases still hold."""
        return await self._settle(Settlement(whole=[batch.lease_id for batch in batches if batch.lease_id is not None]))

    async def ack(self, batch: Batch, *seqs: int) -> list[Lost]:
        """Ack single messages of a lease. The default is the whole batch."""
        return await self.fail(batch, None, *seqs)

    async def nack(self, batch: Batch, *seqs: int, delay: float | None = None, error: str | None = None) -> list[Lost]:
        return await self.fail(batch, Failure("retry", delay, error), *seqs)

    async def release(self, batch: Batch, *seqs: int) -> list[Lost]:
        return await self.fail(batch, Failure("release"), *seqs)

    async def reject(self, batch: Batch, *seqs: int, error: str = "no use") -> list[Lost]:
        return await self.fail(batch, Failure("reject", None, error), *seqs)

    async def fail(self, batch: Batch, failure: Failure | None, *seqs: int) -> list[Lost]:
        """Settle messages of a lease with one outcome, where None is an ack. The default is the whole batch."""
        assert batch.lease_id is not None, "the batch is empty"
        chosen: Sequence[int] = seqs or batch.seqs
        return await self._settle(
            Settlement(
                leases=[batch.lease_id] * len(chosen), seqs=list(chosen), failures=[failure for _ in range(len(chosen))]
            )
        )

    async def _settle(self, settlement: Settlement) -> list[Lost]:
        return await store.settle(self.executor, self.id, settlement, now=self.clock.now)

    async def seek(self, position: int | None) -> int:
        return await store.seek(self.executor, self.id, position)

    async def redrive(self, *seqs: int) -> int:
        """Redrive the given dead letters. The default is all."""
        return await store.redrive(self.executor, self.id, list(seqs) or None)

    async def discard(self, *seqs: int) -> int:
        return await store.discard(self.executor, self.id, list(seqs) or None)

    async def dead_letters(self) -> list[DeadLetter]:
        return await store.dead_letters(self.executor, self.id, limit=10_000)

    async def info(self) -> ConsumerInfo:
        return await store.consumer(self.executor, self.spec.stream, self.spec.name)

    async def drain(self, who: str = "ann", limit: int = 100, *, calls: int = 10**6, **bounds: Any) -> list[int]:
        """Lease and ack until nothing is left. Returns the seqs in the order of their delivery."""
        found: list[int] = []
        for _ in range(calls):
            batch = await self.lease(who, limit, **bounds)
            if batch.lease_id is not None:
                found += batch.seqs
                assert await self.ack_all(batch) == []
            elif not batch.more:
                break
        return found

    async def count(self, table: str) -> int:
        """Return how many rows of one of Headrace's tables belong to the consumer."""
        found: int = await self.executor.fetchval(
            f"select count(*) from headrace_internal.{table} where consumer_id = $1", self.id
        )
        return found

    async def cursor(self) -> Any:
        return await self.executor.fetchrow("select * from headrace_internal.cursors where consumer_id = $1", self.id)


@asynccontextmanager
async def begun(connect: Callable[[], Awaitable[Any]]) -> AsyncIterator[tuple[Any, Any]]:
    """Return a connection inside a transaction, and that transaction. It is rolled back at the end
    unless the test ends it.
    """
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction
    finally:
        if connection.is_in_transaction():
            await transaction.rollback()


def by_key(batch: Batch) -> dict[str, list[int]]:
    """Return the seqs of a batch by key, in the order of delivery."""
    found: dict[str, list[int]] = {}
    for key, seq in zip(batch.keys, batch.seqs, strict=True):
        found.setdefault(key, []).append(seq)
    return found


def more_than_once(seqs: Sequence[int]) -> list[int]:
    return [seq for seq, times in Counter(seqs).items() if times > 1]
