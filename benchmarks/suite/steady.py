"""steady: a publisher and a worker together, for a while."""

from __future__ import annotations

import time

from benchmarks.crew import crew
from benchmarks.harness import PLAIN, STREAM, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, batches, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured, Phase, Summary
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import App

KEYS = Keys(10_000)
CONSUMER = {"concurrency": 32, "max_ack_pending": 10_000}
BATCH = 100
LEAD = 20_000
LIMIT_COUNT = 100_000


async def steady(options: Options) -> Result:
    """Publish and handle as fast as possible for 20 seconds. The publisher waits when it is 20,000 messages ahead."""
    seconds = options.duration(20, 3)
    raw = list(batches(KEYS, options.count(LIMIT_COUNT, LIMIT_COUNT // 10), BATCH))
    measured = Measured()
    windows: list[Summary] = []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await place.rest()
            async with (
                crew(Job(place.dsn, STREAM, [ConsumerJob("steady", "timed", CONSUMER, KEYS)])) as worker,
                App(place.dsn) as app,
            ):
                publisher = Publisher(app, STREAM, KEYS)
                start = time.monotonic_ns()
                await publisher.ahead_of(worker, BATCH, LEAD, seconds)
                phase = Phase("steady", start, time.monotonic_ns(), 1.0)
                report = await worker.finish(Finish(publisher.published, [phase]))
            measured.samples.append(publisher.published / ((report.settled - start) / 1e9))
            windows += report.phases["steady"]["steady"].windows
            await place.rest(PLAIN)
            measured.limit_samples.append(await place.plain.insert_rate(raw))
    return Result(
        benchmark="steady",
        about="publisher and worker at once, from the first publish to the last settle",
        measured=measured,
        limit_is=f"bare multi-row inserts of {BATCH}, one connection, nobody reading",
        details={
            "slowest_second": min((window.rate for window in windows), default=0.0),
            "fastest_second": max((window.rate for window in windows), default=0.0),
            "worker_busy": report.busy,
        },
        settings={
            "seconds": seconds,
            "batch": BATCH,
            "publisher_connections": 1,
            "publisher_at_most_ahead": LEAD,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            **CONSUMER,
            "repeats": options.times(3, 1),
        },
        checks=report.checks,
    )
