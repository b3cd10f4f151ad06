"""fanout: three consumers of one stream, payloads of 10 kB."""

from __future__ import annotations

import time

import anyio

from benchmarks.crew import crew
from benchmarks.harness import PLAIN, STREAM, Options, bench
from benchmarks.payloads import LARGE_NOTE, Keys, batches, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import App

KEYS = Keys(1000)
HANDLERS = {"billing": 17, "shipping": 17, "audit": 16}
MAX_ACK_PENDING = 1000
BATCH = 10
PUBLISHERS = 4
LEAD = 2000
DISTINCT = 5000
"""How many different messages the bare inserts have. They stay in memory."""


async def fanout(options: Options) -> Result:
    """Publish 10 kB payloads in batches of 10 to three consumers with 50 handlers in all, which each receive all."""
    count = options.count(50_000, 3000)
    raw = list(batches(KEYS, min(count, DISTINCT), BATCH, LARGE_NOTE))
    raw *= count // len(raw) // BATCH  # as much as the stream gets, since writing is fastest at first
    measured = Measured()
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await place.rest()
            consumers = [
                ConsumerJob(name, "noop", {"concurrency": handlers, "max_ack_pending": MAX_ACK_PENDING})
                for name, handlers in HANDLERS.items()
            ]
            async with crew(Job(place.dsn, STREAM, consumers)) as worker, App(place.dsn) as app:
                publisher = Publisher(app, STREAM, KEYS, LARGE_NOTE)
                start = time.monotonic_ns()
                async with anyio.create_task_group() as group:
                    for _ in range(PUBLISHERS):
                        group.start_soon(publisher.per_batch, worker, BATCH, LEAD, count)
                report = await worker.finish(Finish(count))
            measured.samples.append(count / ((report.settled - start) / 1e9))
            await place.rest(PLAIN)
            measured.limit_samples.append(await place.plain.insert_rate(raw))
    return Result(
        benchmark="fanout",
        about="three consumers of one stream, 10 kB payloads; messages published, each handled three times",
        measured=measured,
        limit_is=f"bare multi-row inserts of {BATCH} of 10 kB, one connection, nobody reading",
        details={"worker_busy": report.busy},
        settings={
            "messages": count,
            "batch": BATCH,
            "publisher_connections": PUBLISHERS,
            "publisher_at_most_ahead": LEAD,
            "payload_bytes": bytes_of(LARGE_NOTE),
            "payload": "random letters and digits, which do not compress",
            "keys": KEYS.count,
            "handlers": HANDLERS,
            "max_ack_pending": MAX_ACK_PENDING,
            "worker_processes": 1,
            "repeats": options.times(3, 1),
        },
        checks=report.checks,
    )
