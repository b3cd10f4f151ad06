"""standstill: rate and latency of other messages while a key, a publisher or a snapshot stands still."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import anyio
import asyncpg

from benchmarks import checks
from benchmarks.harness import MESSAGES, STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, batches, bytes_of
from benchmarks.report import Result
from benchmarks.timing import Measured, milliseconds
from headrace import store
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch as Leased
from headrace.model.specs import ConsumerSpec
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.maintenance.sweeper import Sweeper

KEYS = Keys(10_000)
STUCK = "orders.eu.stuck"
SHARE = 100
"""One in this many messages is on the stalled key or waits behind it."""

CHUNK = 1000
LOOK = 10_000
TURN = 10
"""Consecutive calls of one side before the other side's turn."""

SWEEP = 1.0
"""Seconds between sweeps. A janitor runs beside all measurements."""

Scene = Callable[["Standstill", int], AbstractAsyncContextManager[None]]


async def standstill(options: Options) -> Result:
    """Lease batches of 100 beside a blocked or retried key, an open publisher or an old snapshot, and without them."""
    count = options.count(100_000, 10_000)
    size = options.batch or 100
    runs: dict[str, list[tuple[Standstill, Standstill]]] = {name: [] for name in SCENES}
    for _ in range(options.times(3, 1)):
        for name, (scene, times, free) in SCENES.items():
            async with (
                _stand(options, size, scene, int(count * times), count) as held,
                _stand(options, size, free, 0, count) as other,
            ):
                await take_turns(held, other)
            runs[name].append((held, other))
    worst = min(runs, key=lambda name: _measured(runs[name]).ratio)
    return Result(
        benchmark="standstill",
        about=f"all others while something stands still; here, as it was the worst, {worst}",
        measured=_measured(runs[worst]),
        limit_is="the same while nothing stands still",
        latency=milliseconds(runs[worst][-1][0].took),
        variants={name: _variant(pairs) for name, pairs in runs.items()},
        settings={
            "messages": count,
            "batch": size,
            "behind": {name: int(count * times) for name, (_, times, _) in SCENES.items()},
            "more_of_it": f"one of {SHARE}",
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "repeats": options.times(3, 1),
        },
        checks=[f"{count:,} messages of other keys leased in each run, each once and in order"],
    )


def _measured(pairs: list[tuple[Standstill, Standstill]]) -> Measured:
    return Measured([held.rate for held, _ in pairs], [free.rate for _, free in pairs])


def _variant(pairs: list[tuple[Standstill, Standstill]]) -> dict[str, Any]:
    measured = _measured(pairs)
    held, free = [milliseconds([time for pair in pairs for time in pair[which].took]) for which in (0, 1)]
    return {
        "rate": measured.rate,
        "limit": measured.limit,
        "ratio": measured.ratio,
        **held,
        "p99_ratio": held["p99_ms"] / free["p99_ms"],
        **pairs[-1][0].details,
        "checks": pairs[-1][0].checks,
    }


@asynccontextmanager
async def _stand(options: Options, size: int, scene: Scene, behind: int, count: int) -> AsyncIterator[Standstill]:
    async with bench(options) as place:
        measured = Standstill(place, size)
        async with measured.ready(scene, behind, count):
            yield measured
        if measured.late:
            await measured.catch_up()


async def take_turns(held: Standstill, free: Standstill) -> None:
    """Measure both alternately, a few calls each, so that a machine that gets slower slows both."""
    while not (held.done and free.done):
        for measured in (held, free):
            for _ in range(TURN):
                if not measured.done:
                    await measured.lease_and_ack()
    for measured in (held, free):
        measured.check()


class Standstill:
    """One consumer of a fresh stream, and its measurements.

    Attributes:
        publish: publishes messages of other keys, together with those that are stalled.
        publish_others: publishes only messages of other keys, where that differs.
        count: how many messages of other keys are to be leased.
        took: nanoseconds of each call that leased, and acked.
        late: how many published messages are delivered after the standstill.
    """

    def __init__(self, place: Bench, size: int) -> None:
        self.place = place
        self.size = size
        self.consumer = 0
        self.publish = self.publish_beside
        self.publish_others = self.publish_beside
        self.late = 0
        self.count = 0
        self.took: list[int] = []
        self._others = 0
        self._seqs: list[int] = []
        self.details: dict[str, float] = {}
        self.checks: list[str] = []
        self._sweeper = Sweeper(place.database)
        self._scheduled = Scheduler(place.database)

    @asynccontextmanager
    async def ready(self, scene: Scene, behind: int, count: int) -> AsyncIterator[None]:
        """Set up `behind` messages behind the standstill, and `count` messages of other keys to lease."""
        spec = ConsumerSpec(stream=STREAM, name="stand", max_deliver=1, on_exhausted="block", max_ack_pending=10_000)
        self.consumer = (await store.declare_consumer(self.place.database, spec)).id
        self.count = count
        async with scene(self, behind):
            await self.pass_all()
            for batch in batches(KEYS, count, CHUNK):
                await self.publish(batch)
            await self.place.rest(MESSAGES)
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._sweep)
                yield
                beside.cancel_scope.cancel()

    async def publish_beside(self, batch: Batch) -> None:
        await store.publish_many(self.place.database, STREAM, batch.keys, batch.texts)
        await self.publish_stuck(len(batch.keys) // SHARE)

    async def publish_stuck(self, count: int) -> None:
        await store.publish_many(self.place.database, STREAM, [STUCK] * count, ['{"stuck": true}'] * count)

    async def pile_up(self, count: int) -> None:
        """Publish `count` messages of the stalled key."""
        for first in range(0, count, CHUNK):
            await self.publish_stuck(min(CHUNK, count - first))

    async def fail(self, failure: Failure) -> None:
        """Publish a message of the key, and make it fail."""
        await self.publish_stuck(1)
        await self.fail_all(await self.lease(1), failure)

    async def fail_all(self, leased: Leased, failure: Failure) -> None:
        assert leased.lease_id is not None
        count = len(leased.seqs)
        settlement = Settlement(leases=[leased.lease_id] * count, seqs=list(leased.seqs), failures=[failure] * count)
        checks.expect(await store.settle(self.place.database, self.consumer, settlement), [], "what was lost")

    async def pass_all(self) -> int:
        """Lease and ack all available messages. Returns how many there were."""
        passed, more = 0, True
        while more:
            leased = await self.lease(LOOK)
            await self.ack(leased)
            passed += len(leased.seqs)
            more = leased.more or leased.lease_id is not None
        return passed

    async def lease(self, limit: int) -> Leased:
        return await store.lease(self.place.database, self.consumer, OWNER, limit, look=LOOK)

    async def ack(self, leased: Leased) -> None:
        if leased.lease_id is not None:
            await store.settle(self.place.database, self.consumer, Settlement(whole=[leased.lease_id]))

    @property
    def done(self) -> bool:
        return self._others >= self.count

    @property
    def rate(self) -> float:
        return self._others / (sum(self.took) / 1e9)

    async def lease_and_ack(self) -> None:
        began = time.perf_counter_ns()
        leased = await self.lease(self.size)
        await self.ack(leased)
        self.took.append(time.perf_counter_ns() - began)
        self._others += sum(key != STUCK for key in leased.keys)
        self._seqs += leased.seqs
        checks.expect(leased.lease_id is not None or leased.more, True, f"more, after {self._others:,} messages")

    def check(self) -> None:
        checks.expect(len(set(self._seqs)), len(self._seqs), "messages that were leased once")
        checks.expect(self._seqs, sorted(self._seqs), "messages in order")

    async def _sweep(self) -> None:
        while True:
            await self._sweeper.sweep()
            await self._scheduled.deliver()
            await anyio.sleep(SWEEP)

    async def catch_up(self) -> None:
        """Deliver the delayed messages after the standstill."""
        began = time.perf_counter()
        checks.expect(await self.pass_all(), self.late, "messages that came when the publisher committed")
        self.details["caught_up_in_s"] = time.perf_counter() - began
        self.checks.append(f"{self.late:,} messages that were committed late, leased once each")


OWNER = uuid4()
PUBLISH = "select headrace.publish($1, $2, $3)"


@asynccontextmanager
async def _undisturbed(measured: Standstill, behind: int) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _blocked(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """A key is blocked."""
    await measured.fail(Failure("retry", None, "never again"))
    await measured.pile_up(behind)
    yield


@asynccontextmanager
async def _in_backoff(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """A key waits for its retry."""
    await measured.fail(Failure("release", 3600.0, "later"))
    await measured.pile_up(behind)
    yield


@asynccontextmanager
async def _keys_in_backoff(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """A large number of keys wait for their retry."""
    keys = [f"orders.us.{number}" for number in range(behind)]
    await store.publish_many(measured.place.database, STREAM, keys, ["{}"] * behind)
    while (leased := await measured.lease(LOOK)).lease_id is not None:
        await measured.fail_all(leased, Failure("release", 3600.0, "later"))
    yield


@asynccontextmanager
async def _one_by_one(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """Each message has its own commit."""
    async with _connected(measured) as others:

        async def publish(batch: Batch) -> None:
            for key, text in zip(batch.keys, batch.texts, strict=True):
                await others.fetchval(PUBLISH, STREAM, key, text)

        measured.publish = publish
        await others.execute("set synchronous_commit = off")
        yield


@asynccontextmanager
async def _publishing(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """Like `_interleaved` for the messages behind it. After that, the open transaction publishes only now and then."""
    async with _interleaved(measured, behind):
        everywhere = measured.publish

        async def publish(batch: Batch) -> None:
            for first in range(0, len(batch.keys), SHARE):
                await measured.publish_others(
                    Batch(batch.keys[first + 1 : first + SHARE], batch.texts[first + 1 : first + SHARE])
                )
                await everywhere(Batch(batch.keys[first : first + 1], batch.texts[first : first + 1]))

        measured.publish = publish
        yield


@asynccontextmanager
async def _interleaved(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """Like `_one_by_one`, and an open transaction publishes a message between each two commits, all the time."""
    async with _one_by_one(measured, behind), _connected(measured) as own:
        measured.publish_others = measured.publish

        async def publish(batch: Batch) -> None:
            for key, text in zip(batch.keys, batch.texts, strict=True):
                await own.fetchval(PUBLISH, STREAM, STUCK, '{"stuck": true}')
                await measured.publish_others(Batch([key], [text]))
            measured.late += len(batch.keys)

        measured.publish = publish
        async with own.transaction():
            for batch in batches(KEYS, behind, CHUNK):
                await publish(batch)
            yield


@asynccontextmanager
async def _pinned(measured: Standstill, behind: int) -> AsyncIterator[None]:
    """An old snapshot keeps the dead rows of messages that were put back, scheduled, given ids, and blocked."""
    async with _connected(measured) as old, old.transaction(isolation="repeatable_read", readonly=True):
        await old.fetchval("select count(*) from headrace_internal.streams")
        await _leave_dead_rows(measured, behind)
        yield


async def _leave_dead_rows(measured: Standstill, count: int) -> None:
    database = measured.place.database
    for batch in batches(KEYS, count, CHUNK):
        soon = datetime.now(UTC) + timedelta(milliseconds=1)
        options = [PublishOptions(message_id=f"{batch.keys[0]}-{uuid4()}", deliver_at=soon) for _ in batch.keys]
        await store.publish_many(database, STREAM, batch.keys, batch.texts, options=options)
    schedule, sweeper = Scheduler(database), Sweeper(database)
    later = datetime.now(UTC) + timedelta(minutes=10)
    while (await schedule.deliver(later))[1] is not None:
        pass
    while (await sweeper.sweep(later)).ids_forgotten:
        pass
    while (leased := await measured.lease(LOOK)).lease_id is not None:
        await measured.fail_all(leased, Failure("release"))
        await measured.fail_all(await measured.lease(LOOK), Failure("retry"))
        await store.discard(database, measured.consumer)


@asynccontextmanager
async def _connected(measured: Standstill) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(measured.place.dsn)
    try:
        yield connection
    finally:
        await connection.close()


SCENES: dict[str, tuple[Scene, float, Scene]] = {
    "blocked": (_blocked, 10, _undisturbed),
    "in_backoff": (_in_backoff, 1, _undisturbed),
    "keys_in_backoff": (_keys_in_backoff, 0.05, _undisturbed),
    "publishing": (_publishing, 1, _one_by_one),
    "interleaved": (_interleaved, 1, _one_by_one),
    "pinned": (_pinned, 1, _undisturbed),
}
"""The standstills, the number of messages behind each in every measurement, and the baseline."""
