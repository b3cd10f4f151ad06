"""growth: how rates grow with the batch, the payload, connections that publish, consumers of a process, and receivers over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from benchmarks import checks
from benchmarks.crew import crew
from benchmarks.harness import MESSAGES, PLAIN, STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, batches, bytes_of
from benchmarks.report import Result, figures
from benchmarks.suite.filling import fill
from benchmarks.suite.http import receiving_rate
from benchmarks.timing import Measured, Stopwatch
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import store
from headrace.store import Database

KEYS = Keys(10_000)
SIZES = (1, 10, 100, 1000)
NOTES = (SMALL_NOTE, 1_000, 10_000)
CONNECTIONS = (1, 2, 4)
CONSUMERS = (1, 2, 4)
RECEIVERS = (3, 30, 300)
BATCH = 100
_WARMING = 10


async def growth(options: Options) -> Result:
    """Publish with other batches, payloads and connections, handle with more consumers, receive with more receivers."""
    most = options.count(100_000, 2_000)
    repeats = options.times(3, 1)
    variants: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        one = await _publishing(options, min(most, 2_000 * size), size, SMALL_NOTE)
        variants[f"publish, batches of {size}"] = figures(one)
    base = variants[f"publish, batches of {BATCH}"]
    for note in NOTES[1:]:
        one = await _publishing(options, most // (4 if note < 5_000 else 20), BATCH, note)
        variants[f"publish, payloads of {bytes_of(note):,} bytes"] = figures(one)
    for connections in CONNECTIONS[1:]:
        one = await _publishing(options, most, BATCH, SMALL_NOTE, connections)
        variants[f"publish, {connections} connections"] = figures(one)
    for consumers in CONSUMERS:
        variants[f"handle, {consumers} consumers in a process"] = await _handling(options, most, consumers)
    for receivers in RECEIVERS:
        variants[f"receive over HTTP, {receivers} receivers"] = await _receiving(options, most // 2, receivers)
    return Result(
        benchmark="growth",
        about=f"batches of {BATCH} published over one connection, and the same with more of one thing at a time",
        measured=Measured(base["samples"], base["limit_samples"]),
        limit_is="bare multi-row inserts of the same batches and payloads, over as many connections",
        variants=variants,
        settings={
            "messages": most, "payload_bytes": bytes_of(SMALL_NOTE), "keys": KEYS.count, "batch": BATCH, "connections": 1,
            "repeats": repeats,
        },
        checks=["each message is stored, and handled or received by each consumer exactly once"],
    )  # fmt: skip


async def _publishing(options: Options, count: int, size: int, note: int, connections: int = 1) -> Measured:
    """Publish over some connections, each with its share of the batches, and insert the same without Headrace."""
    texts = list(batches(KEYS, count, size, note))
    shares = [texts[number::connections] for number in range(connections)]
    measured = Measured()
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            for batch in texts[:_WARMING]:
                await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
            await place.plain.insert_rate(texts[:_WARMING])
            await place.rest(MESSAGES, PLAIN)
            measured.samples.append(count / await _publish(place.database, shares))
            await place.rest(MESSAGES, PLAIN)
            measured.limit_samples.append(count / await _insert(place, shares))
            warmed = sum(len(batch.keys) for batch in texts[:_WARMING])
            await checks.stored(place.database, STREAM, count + warmed)
    return measured


async def _publish(database: Database, shares: Sequence[Sequence[Batch]]) -> float:
    """Publish, and return the seconds."""

    async def publish(share: Sequence[Batch]) -> None:
        for batch in share:
            await store.publish_many(database, STREAM, batch.keys, batch.texts)

    watch = Stopwatch()
    async with anyio.create_task_group() as group:
        for share in shares:
            group.start_soon(publish, share)
    return watch.seconds()


async def _insert(place: Bench, shares: Sequence[Sequence[Batch]]) -> float:
    """Insert into the plain table, and return the seconds."""
    logs = [place.plain] + [await place.plain.another(place.database) for _ in shares[1:]]
    try:
        watch = Stopwatch()
        async with anyio.create_task_group() as group:
            for log, share in zip(logs, shares, strict=True):
                group.start_soon(log.insert_rate, list(share))
        return watch.seconds()
    finally:
        for log in logs[1:]:
            await log.close()


async def _handling(options: Options, count: int, consumers: int) -> dict[str, Any]:
    """Handle a backlog with some consumers of one process, which each get all messages."""
    rates, cpu = [], []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await fill(place, KEYS, count)
            jobs = [
                ConsumerJob(f"c{number}", "noop", {"concurrency": 32, "max_ack_pending": 10_000}, KEYS)
                for number in range(consumers)
            ]
            async with crew(Job(place.dsn, STREAM, jobs)) as worker:
                report = await worker.finish(Finish(count))
            rates.append(consumers * count / report.seconds)
            cpu.append(report.cpu / consumers / count * 1e6)
    measured = Measured(rates)
    return {"rate": measured.rate, "samples": rates, "worker_cpu_us": Measured(cpu).rate}


async def _receiving(options: Options, count: int, receivers: int) -> dict[str, Any]:
    """Publish and receive over HTTP with three consumers, which have a third of the receivers each."""
    rates = [await receiving_rate(options, count, receivers) for _ in range(options.times(3, 1))]
    return {"rate": Measured(rates).rate, "samples": rates}
