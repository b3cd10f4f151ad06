"""memory: the memory of a worker process at rest, and with 1,000 messages of 10 kB in its handlers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio

from benchmarks import checks
from benchmarks.crew import crew
from benchmarks.harness import STREAM, Options, bench
from benchmarks.payloads import LARGE_NOTE, Keys, batches, bytes_of
from benchmarks.report import Result
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import store

HELD = 1000
KEYS = Keys(HELD)
REST = 3.0

# The minimum for any client of this kind: the interpreter, the event loop, the driver with a
# connection, the codec.
_BARE = """
import asyncio, sys, anyio, asyncpg, msgspec, uvloop
async def wait():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.fetchval("select 1")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
uvloop.run(wait())
"""


async def memory(options: Options) -> Result:
    """Measure the memory of a worker process at rest, and with 1,000 messages of 10 kB held by waiting handlers."""
    at_rest = Measured()
    held = []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            job = Job(
                place.dsn,
                STREAM,
                [ConsumerJob("memory", "hold", {"concurrency": HELD, "max_ack_pending": HELD, "ordered": False})],
            )
            async with crew(job) as worker:
                await anyio.sleep(REST)
                at_rest.samples.append(_resident(worker.pid))
                for batch in batches(KEYS, HELD, 10, LARGE_NOTE):
                    await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
                await worker.begun_at_least(HELD)
                await anyio.sleep(REST)
                info = await store.consumer(place.database, STREAM, "memory")
                checks.expect(info.in_flight, HELD, "messages in flight")
                held.append(_resident(worker.pid))
                report = await worker.finish(Finish(HELD))
            at_rest.limit_samples.append(await _bare_client(place.dsn))
    return Result(
        benchmark="memory",
        about="the resident memory of a worker process at rest, and with 1,000 messages of 10 kB in its handlers",
        measured=at_rest,
        unit="MiB",
        limit_is="a bare client: interpreter, uvloop, asyncpg with a connection, msgspec",
        details={"rest_mib": at_rest.rate, "held_mib": sorted(held)[len(held) // 2], "held_mib_samples": held},
        settings={
            "held": HELD,
            "payload_bytes": bytes_of(LARGE_NOTE),
            "concurrency": HELD,
            "max_ack_pending": HELD,
            "measured": "resident set size, shared libraries included",
            "repeats": options.times(3, 1),
        },
        checks=[f"{HELD:,} messages were in flight, each in its handler, when it was taken", *report.checks],
    )


async def _bare_client(dsn: str) -> float:
    async with await anyio.open_process(
        [sys.executable, "-c", _BARE, dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None
    ) as process:
        assert process.stdout is not None
        await process.stdout.receive()
        await anyio.sleep(1.0)
        resident = _resident(process.pid)
        process.terminate()
        return resident


def _resident(pid: int) -> float:
    """Resident memory in MiB, as Linux counts it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
