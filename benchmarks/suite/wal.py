"""wal: what a message writes on its whole way, published and consumed once: bytes of WAL, commits, and dead rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from uuid import uuid4

from benchmarks.checks import expect, settled
from benchmarks.crew import crew
from benchmarks.harness import PLAIN, STREAM, Bench, Options, bench, opened
from benchmarks.limits import INSERT
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, batches, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, Job
from benchmarks.written import Written
from headrace import App, store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from headrace.store import Database

KEYS = Keys(10_000)
BATCH = 100
LEAD = 5_000
CONSUMER = {"concurrency": 32, "max_ack_pending": 10_000}
_OWNER = uuid4()

Figures = dict[str, float]
"""The figures of a message, by name."""


async def wal(options: Options) -> Result:
    """Publish and consume each message once: in hundreds, one by one, and each beside a worker, and behind a checkpoint."""
    count, repeats = options.count(50_000, 2_000) // 1000 * 1000 or 1000, options.times(3, 1)
    many, single = list(batches(KEYS, count, BATCH)), list(batches(KEYS, count // 10, 1))
    ways: dict[str, Callable[[Bench], Awaitable[Figures]]] = {
        "in hundreds": partial(_kept_up, work=many, size=BATCH),
        "one by one, consumed in hundreds": partial(_kept_up, work=single, size=BATCH),
        "one by one": partial(_kept_up, work=single, size=1),
        "in hundreds, behind a checkpoint": partial(_behind, work=many, swept=True),
        "in hundreds, behind a checkpoint, without a janitor": partial(_behind, work=many, swept=False),
        "in hundreds, by a worker": partial(_worker, count=count, size=BATCH),
        "one by one, by a worker": partial(_worker, count=len(single), size=1),
        "bare inserts in hundreds": partial(_bare, work=many),
        "bare inserts one by one": partial(_bare, work=single),
    }
    found: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(repeats):
        for name, way in ways.items():
            async with bench(options) as place:
                await place.without_vacuum()
                found[name].append(await way(place))
    ours, bare = ([one["wal_bytes"] for one in found[name]] for name in ("in hundreds", "bare inserts in hundreds"))
    return Result(
        benchmark="wal",
        about=f"bytes of WAL of a message that is published and consumed once, in batches of {BATCH}",
        measured=Measured(ours, bare),
        limit_is=f"bare multi-row inserts of {BATCH}, which nobody reads",
        unit="bytes of WAL per message",
        variants={
            name: {part: median(one[part] for one in every) for part in every[0]} for name, every in found.items()
        },
        settings={
            "messages": count,
            "messages_one_by_one": len(single),
            "batch": BATCH,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "autovacuum": "off",
            "repeats": repeats,
        },
        checks=["each message was leased once, and acked"],
    )


async def _kept_up(place: Bench, work: list[Batch], size: int) -> Figures:
    """Lease and ack each `size` messages when they have been published."""
    async with opened(place.dsn, 1) as database:
        consumer = await _consumer(database)
        before = await Written.read(database)
        waiting = 0
        for batch in work:
            await _publish(database, batch)
            waiting += len(batch.keys)
            if waiting == size:
                await _consume(database, consumer, size)
                waiting = 0
        written = (await Written.read(database)).each(before, _messages(work))
    await settled(place.database, STREAM, "wal")
    return written


async def _behind(place: Bench, work: list[Batch], swept: bool) -> Figures:
    """Publish everything, and lease and ack it after a checkpoint. `publish_wal_bytes` and `consume_wal_bytes` are the
    parts. `swept`: whether the stream is swept before, as the janitor of a running app does every few seconds."""
    sweeper = Sweeper(place.database)
    await sweeper.sweep()
    async with opened(place.dsn, 1) as database:
        consumer = await _consumer(database)
        before = await Written.read(database)
        for batch in work:
            await _publish(database, batch)
        if swept:
            await sweeper.sweep()
        published = (await Written.read(database)).each(before, _messages(work))
        await place.rest()
        before = await Written.read(database)
        for batch in work:
            await _consume(database, consumer, len(batch.keys))
        consumed = (await Written.read(database)).each(before, _messages(work))
    await settled(place.database, STREAM, "wal")
    parts = {"publish_wal_bytes": published["wal_bytes"], "consume_wal_bytes": consumed["wal_bytes"]}
    return {**{name: published[name] + consumed[name] for name in published}, **parts}


async def _worker(place: Bench, count: int, size: int) -> Figures:
    """Publish beside a worker process that keeps up."""
    before = await Written.read(place.database)
    async with (
        crew(Job(place.dsn, STREAM, [ConsumerJob("wal", "noop", CONSUMER)])) as worker,
        App(place.dsn) as app,
    ):
        await Publisher(app, STREAM, KEYS).per_batch(worker, size, LEAD, count)
        await worker.finish(Finish(count))
    return (await Written.read(place.database)).each(before, count)


async def _bare(place: Bench, work: list[Batch]) -> Figures:
    """Insert the same messages into a plain table."""
    async with opened(place.dsn, 1) as database:
        before = await Written.read(database)
        for batch in work:
            await database.fetch(INSERT, batch.keys, batch.texts)
        written = (await Written.read(database)).each(before, _messages(work))
    expect(await place.database.fetchval(f"select count(*) from {PLAIN}"), _messages(work), "rows inserted")
    return written


async def _consumer(database: Database) -> int:
    spec = ConsumerSpec(stream=STREAM, name="wal", max_ack_pending=10_000)
    return (await store.declare_consumer(database, spec)).id


async def _publish(database: Database, batch: Batch) -> None:
    if len(batch.keys) == 1:
        await store.publish(database, STREAM, batch.keys[0], batch.texts[0])
    else:
        await store.publish_many(database, STREAM, batch.keys, batch.texts)


async def _consume(database: Database, consumer: int, size: int) -> None:
    leased = await store.lease(database, consumer, _OWNER, size)
    expect(len(leased.seqs), size, "messages leased")
    assert leased.lease_id is not None
    expect(await store.settle(database, consumer, Settlement(whole=[leased.lease_id])), [], "leases lost")


def _messages(work: list[Batch]) -> int:
    return sum(len(batch.keys) for batch in work)
