"""pinned: 5,000/s while a transaction elsewhere in the database stays open, so that no dead row can be removed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import anyio
import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.crew import Crew, crew
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, batches, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured, Phase, Stopwatch
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import App

KEYS = Keys(1000)
CONSUMER = {"concurrency": 32, "max_ack_pending": 10_000}
RATE = 5000
BATCH = 10
FULL_BATCH = 100
LEAD = 20_000
LIMIT_COUNT = 50_000
WARM_UP = 2.0
WINDOW = 10.0


async def pinned(options: Options) -> Result:
    """Publish and handle 5,000/s, then 5 minutes more while a transaction holds xmin. Also at full speed in both."""
    seconds = options.duration(300, 4)
    free_seconds, full_seconds = min(seconds, 60.0), min(seconds, 10.0)
    window, times = min(WINDOW, seconds / 2), options.times(5, 1)
    async with bench(options) as place:
        await place.rest()
        job = Job(place.dsn, STREAM, [ConsumerJob("pinned", "timed", CONSUMER)])
        async with crew(job) as worker, App(place.dsn) as app:
            run = _Run(Publisher(app, STREAM, KEYS), worker, window)
            await run.publisher.at_pace(RATE, WARM_UP, BATCH)
            await run.paced("free", free_seconds)
            free_full_speeds = [await run.full_speed(full_seconds) for _ in range(times)]
            before = await _tables(place)
            async with _pin(place):
                await run.paced("pinned", seconds)
                full_speeds = [await run.full_speed(full_seconds) for _ in range(times)]
                after = await _tables(place)
            report = await worker.finish(Finish(run.publisher.published, run.phases))
        raw = list(batches(KEYS, options.count(LIMIT_COUNT, LIMIT_COUNT // 10), FULL_BATCH))
        limit = await place.plain.insert_rate(raw)
    full_speed, free_full_speed = median(full_speeds), median(free_full_speeds)
    held, free = report.phases["pinned"]["pinned"], report.phases["pinned"]["free"]
    return Result(
        benchmark="pinned",
        about=f"{RATE:,}/s for {seconds:g} s while a transaction holds xmin; each sample is a window of {window:g} s",
        measured=Measured([summary.rate for summary in held.windows], [limit]),
        limit_is=f"bare multi-row inserts of {FULL_BATCH}, one connection, nobody reading",
        latency=held.whole.latency(),
        variants={
            "not_pinned": {"rate": free.whole.rate, **free.whole.latency()},
            "full_speed": {
                "rate": full_speed,
                "rate_not_pinned": free_full_speed,
                "pinned_to_not_pinned": full_speed / free_full_speed,
                "samples": full_speeds,
                "samples_not_pinned": free_full_speeds,
            },
        },
        details={
            "pinned_to_not_pinned": held.whole.rate / free.whole.rate,
            "windows": [msgspec.to_builtins(summary) for summary in held.windows],
            "tables_before": before,
            "tables_after": after,
        },
        settings={
            "rate_asked": RATE,
            "seconds": seconds,
            "seconds_not_pinned": free_seconds,
            "seconds_full_speed": full_seconds,
            "batch": BATCH,
            "full_speed_batch": FULL_BATCH,
            "publisher_at_most_ahead": LEAD,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            **CONSUMER,
        },
        checks=[*report.checks, "xmin was held from the beginning of the pinned phases to their end"],
    )


class _Run:
    """The phases, one after the other. Each begins with no backlog."""

    def __init__(self, publisher: Publisher, worker: Crew, window: float) -> None:
        self.publisher = publisher
        self.phases: list[Phase] = []
        self._worker = worker
        self._window = window

    async def paced(self, name: str, seconds: float) -> None:
        await self._worker.begun_at_least(self.publisher.published)
        start = time.monotonic_ns()
        await self.publisher.at_pace(RATE, seconds, BATCH)
        self.phases.append(Phase(name, start, start + int(seconds * 1e9), self._window))

    async def full_speed(self, seconds: float) -> float:
        """Messages published and begun per second, with a publisher as fast as the worker follows."""
        await self._worker.begun_at_least(self.publisher.published)
        before, watch = self.publisher.published, Stopwatch()
        await self.publisher.ahead_of(self._worker, FULL_BATCH, LEAD, seconds)
        await self._worker.begun_at_least(self.publisher.published)
        return (self.publisher.published - before) / watch.seconds()


@asynccontextmanager
async def _pin(place: Bench) -> AsyncIterator[None]:
    """Hold a transaction with an xid and a snapshot. While it is open, no row that dies after now can be removed."""
    holder = await place.database.connect()
    try:
        async with holder.transaction(isolation="repeatable_read"):
            xid: int = await holder.fetchval("select pg_current_xact_id()::text::bigint")
            yield
            xmin: int = await place.database.fetchval("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            if xmin > xid:
                raise CheckFailed(f"xmin was not held: it has reached {xmin}, and the transaction was {xid}.")
    finally:
        await holder.close()


async def _tables(place: Bench) -> dict[str, Any]:
    """Dead rows by the server's statistics, and sizes with indexes, of the tables with writes."""
    await anyio.sleep(1.0)  # backends report to the statistics at most once a second
    rows = await place.database.fetch(
        """select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid) / 1024 as kib
           from pg_stat_user_tables where schemaname in ('headrace_internal', 'headrace_streams') and n_tup_ins > 100 order by relname"""
    )
    return {row["relname"]: {"rows": row["n_live_tup"], "dead": row["n_dead_tup"], "kib": row["kib"]} for row in rows}
