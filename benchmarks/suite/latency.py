"""latency: from the call of publish to the start of the handler, at a pace."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from itertools import cycle
from statistics import median
from typing import Any
from uuid import uuid4

import anyio
import msgspec

from benchmarks.crew import Crew, crew
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.listening_client import Used
from benchmarks.payloads import SMALL_NOTE, Keys, batches, bytes_of
from benchmarks.processes import started
from benchmarks.publishing import Publisher, at_pace
from benchmarks.report import Result, figures
from benchmarks.timing import Measured, Phase, Summary, milliseconds
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import App, store
from headrace.model.specs import ConsumerSpec
from headrace.store.database.listener import channels

KEYS = Keys(1000)
CONSUMER = {"concurrency": 16, "max_ack_pending": 1000}
WARM_UP = 2.0
LIMIT_COUNT = 500
CONNECTIONS = 8
"""Connections of the bare inserts at a pace, since some begin before the last one has ended."""


class Pace(msgspec.Struct, frozen=True):
    rate: int
    batch: int


class Paced(msgspec.Struct):
    """The results of a pace, over its repeats."""

    measured: Measured = msgspec.field(default_factory=Measured)
    summaries: list[Summary] = []
    late: list[dict[str, float]] = []
    cpu: list[float] = []
    clients: list[Used] = []
    commits: list[int] = []
    paced_commits: list[int] = []
    checks: list[str] = []

    def latency(self) -> dict[str, float]:
        """The latency of the repeat with the median p99. All percentiles are of the same repeat."""
        middle = sorted(self.summaries, key=lambda summary: summary.p99_ms)[len(self.summaries) // 2]
        return middle.latency()


async def latency(options: Options) -> Result:
    """Publish at 500/s (and 5,000/s) in one process, handle in another: p50, p95 and p99 from call to handler."""
    seconds = options.duration(20, 3)
    slow, fast = Pace(500, 1), Pace(5000, 10)
    found = {pace: await _paced(options, pace, seconds) for pace in (slow, fast)}
    return Result(
        benchmark="latency",
        about="from the call of publish to the start of the handler, 500/s one by one",
        measured=found[slow].measured,
        limit_is="bare inserts of one row, one after the other, over one connection",
        latency=found[slow].latency(),
        variants={"at_5000": {**figures(found[fast].measured), **found[fast].latency()}},
        details={
            "bare_insert": milliseconds(found[slow].commits),
            "bare_insert_at_pace": milliseconds(found[slow].paced_commits),
            "cpu_us": median(found[slow].cpu),
            "listening_client": {
                name: median(getattr(one, name) for one in found[slow].clients) for name in Used.__struct_fields__
            },
            "publisher_late": {"at_500": found[slow].late[-1], "at_5000": found[fast].late[-1]},
        },
        settings={
            "seconds": seconds,
            "warm_up_seconds": WARM_UP,
            "paces": "500/s one by one; 5,000/s as 10 messages each 2 ms",
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            **CONSUMER,
            "repeats": options.times(3, 1),
        },
        checks=found[slow].checks + found[fast].checks,
    )


async def _paced(options: Options, pace: Pace, seconds: float) -> Paced:
    paced = Paced()
    rows = next(batches(KEYS, LIMIT_COUNT, LIMIT_COUNT))
    singles = list(zip(rows.keys, rows.texts, strict=True))
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await place.rest()
            pace_of_calls = pace.rate / pace.batch
            # Half of them before and half after, since a shared machine has quick and slow minutes.
            paced.paced_commits += await _bare_inserts(place, singles, pace_of_calls, seconds / 2)
            job = Job(place.dsn, STREAM, [ConsumerJob("latency", "timed", CONSUMER)])
            async with crew(job) as worker, App(place.dsn) as app:
                summary, proven, late, cpu = await _measure(app, worker, pace, seconds)
            if pace.batch == 1:
                paced.clients.append(await _listening_client(place, pace, seconds / 2))
            commits = [await place.plain.insert(*single) for single in singles]
            paced.paced_commits += await _bare_inserts(place, singles, pace_of_calls, seconds / 2)
        paced.measured.samples.append(summary.rate)
        paced.measured.limit_samples.append(LIMIT_COUNT / (sum(commits) / 1e9))
        paced.summaries.append(summary)
        paced.cpu.append(cpu)
        paced.late.append(late)
        paced.commits += commits
        paced.checks = proven
    return paced


async def _bare_inserts(place: Bench, singles: list[tuple[str, str]], rate: float, seconds: float) -> list[int]:
    """The times of bare inserts of one row that are called as the publisher calls, in ns."""
    taken: list[int] = []
    following = cycle(singles)
    async with AsyncExitStack() as stack:
        free = [await place.plain.another(place.database) for _ in range(CONNECTIONS)]
        for log in free:
            stack.push_async_callback(log.close)
        places = anyio.Semaphore(CONNECTIONS)

        async def insert() -> None:
            async with places:
                log = free.pop()
                taken.append(await log.insert(*next(following)))
                free.append(log)

        await at_pace(rate, seconds, insert)
    return taken


async def _measure(
    app: App, worker: Crew, pace: Pace, seconds: float
) -> tuple[Summary, list[str], dict[str, Any], float]:
    """The last one is the worker's CPU time in µs per message, from its first message on."""
    publisher = Publisher(app, STREAM, KEYS)
    await publisher.at_pace(pace.rate, WARM_UP, pace.batch)
    start = time.monotonic_ns()
    late = await publisher.at_pace(pace.rate, seconds, pace.batch)
    phase = Phase("paced", start, start + int(seconds * 1e9), seconds)
    report = await worker.finish(Finish(publisher.published, [phase]))
    return report.phases["latency"]["paced"].whole, report.checks, late, report.cpu / publisher.published * 1e6


async def _listening_client(place: Bench, pace: Pace, seconds: float) -> Used:
    """Publish at the pace to a consumer without a framework."""
    consumer = await store.declare_consumer(
        place.database, ConsumerSpec(stream=STREAM, name="bare", deliver_policy="new")
    )
    await store.lease(place.database, consumer.id, uuid4(), 1)  # as a worker's first call, which begins the history
    await store.wait(place.database, [consumer.id], 600)
    stream = await place.database.fetchval("select id from headrace_internal.streams")
    arguments = ("--dsn", place.dsn, "--channel", channels([stream])[0], "--consumer", str(consumer.id))
    async with started("benchmarks.listening_client", *arguments) as process, App(place.dsn) as app:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.receive()
        publisher = Publisher(app, STREAM, KEYS)
        await publisher.at_pace(pace.rate, WARM_UP, pace.batch)
        await process.stdin.send(b"begin\n")
        await publisher.at_pace(pace.rate, seconds, pace.batch)
        await process.stdin.send(b"end\n")
        return msgspec.json.decode(await process.stdout.receive(), type=Used)
