"""multitude: a thousand streams with ten consumers each, of which only one has messages."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio

from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.processor_time import Meter, postmaster
from benchmarks.report import Result
from benchmarks.suite.crowd import worker
from benchmarks.suite.standstill import Standstill, _undisturbed, take_turns
from benchmarks.timing import Measured, milliseconds
from headrace import store

KEYS = Keys(10_000)
CONSUMERS = 10
PROCESSES = 2
REST = 120.0
"""Seconds until all processes have come to rest."""


async def multitude(options: Options) -> Result:
    """Run 10 consumers on each of 1,000 streams in 2 processes: the idle cost, and lease speed beside them."""
    streams = 10 if options.quick else 1000
    seconds = options.duration(60, 5)
    count = options.count(100_000, 3_000)
    async with bench(options) as place, bench(options) as elsewhere, AsyncExitStack() as stack:
        names = [f"idle-{number}" for number in range(streams)]
        for name in names:
            await store.create_stream(place.database, name)
        workers = [await stack.enter_async_context(worker(place, names, CONSUMERS)) for _ in range(PROCESSES)]
        await anyio.sleep(min(REST, 6 * seconds))
        idle = await _idle(place, [one.pid for one in workers], seconds)
        beside, alone = Standstill(place, options.batch or 100), Standstill(elsewhere, options.batch or 100)
        async with beside.ready(_undisturbed, 0, count), alone.ready(_undisturbed, 0, count):
            await take_turns(beside, alone)
    return Result(
        benchmark="multitude",
        about=f"one busy consumer beside {streams * CONSUMERS:,} idle ones on {streams:,} streams, in {PROCESSES} processes",
        measured=Measured([beside.rate], [alone.rate]),
        limit_is="the same in a database without them",
        latency=milliseconds(beside.took),
        details={"idle": idle},
        settings={
            "streams": streams,
            "consumers": streams * CONSUMERS,
            "processes": PROCESSES,
            "messages": count,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "stream": STREAM,
        },
        checks=[f"{count:,} messages leased in each database, each once and in order"],
    )


async def _idle(place: Bench, pids: list[int], seconds: float) -> dict[str, Any]:
    """The cores that these processes and Postgres keep busy."""
    postgres = postmaster(await place.database.fetchval("select pg_backend_pid()"))
    meter = Meter(postgres=postgres, **{f"worker_{pid}": pid for pid in pids})
    await anyio.sleep(seconds)
    used = meter.read()
    workers = [used[f"worker_{pid}"] / used["wall"] for pid in pids]
    server = used.get("postgres", 0.0) / used["wall"]
    return {"cores_of_each_process": workers, "cores_of_postgres": server, "cores_in_all": sum(workers) + server}
