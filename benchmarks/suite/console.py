"""console: what the console costs the database and the server, with nobody, 1 and 20 browsers looking on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from benchmarks.browsers import INTERVAL, PATHS, Asked, light, once, percentile, real
from benchmarks.checks import CheckFailed
from benchmarks.harness import Bench, Options, bench
from benchmarks.http_server import HEADRACE, Meter, postmaster, serving
from benchmarks.report import Result
from benchmarks.timing import Measured
from headrace import store
from headrace.model.specs import ConsumerSpec

BROWSERS = (0, 1, 20)
CONSUMERS = 10
QUERIES = 10
"""The most queries a second that the console may cost, however many look on."""

WARM_UP = 3.0


async def console(options: Options) -> Result:
    """Look on with 0, 1 and 20 browsers at a server of 1,000 streams and 10,000 consumers, one of them a real browser."""
    streams = 10 if options.quick else 1000
    seconds = options.duration(20, 4)
    async with bench(options) as place:
        await _furnish(place, streams)
        async with serving(HEADRACE, "--database", place.dsn) as server:
            await once(server.port)
            postgres = postmaster(await place.database.fetchval("select pg_backend_pid()"))
            phases = {
                str(count): await _look(place, server.port, server.pid, postgres, count, seconds) for count in BROWSERS
            }
    alone = phases["0"]["queries_per_second"]
    costs = {name: phase["queries_per_second"] - alone for name, phase in phases.items() if name != "0"}
    for name, cost in costs.items():
        if cost > QUERIES:
            raise CheckFailed(
                f"{name} browsers cost the database {cost:.1f} queries a second, and {QUERIES} are allowed."
            )
    return Result(
        benchmark="console",
        about="queries a second that 20 browsers cost the database",
        measured=Measured([costs["20"]], [costs["1"]]),
        limit_is="the same with 1 browser",
        details={"browsers": phases},
        settings={
            "streams": streams, "consumers": streams * CONSUMERS, "seconds": seconds, "interval_seconds": INTERVAL, "paths": list(PATHS),
        },
        checks=[f"at most {QUERIES} queries a second, however many look on", "each answer was 200 or 304"],
    )  # fmt: skip


async def _furnish(place: Bench, streams: int) -> None:
    for number in range(streams):
        await store.create_stream(place.database, f"idle-{number}")
        for consumer in range(CONSUMERS):
            await store.declare_consumer(place.database, ConsumerSpec(stream=f"idle-{number}", name=f"c{consumer}"))


async def _look(
    place: Bench, port: int, pid: int, postgres: int | None, browsers: int, seconds: float
) -> dict[str, Any]:
    """Look on with so many browsers, of which one is real, and return what it takes."""
    asked, stop = Asked(), asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(real(port)) if browsers else None
        lights = browsers - (first is not None)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for number in range(lights):
            group.create_task(light(port, asked, stop, number * INTERVAL / max(lights, 1)))
        try:
            await asyncio.sleep(WARM_UP)
            before, meter = await _transactions(place), Meter(server=pid, postgres=postgres)
            await asyncio.sleep(seconds)
            used, after = meter.read(), await _transactions(place)
        finally:
            stop.set()
    return {
        "real": 0 if first is None else 1,
        "first_page": None if first is None else msgspec.structs.asdict(first),
        "queries_per_second": max(0.0, (after - before - 1) / used["wall"]),
        "cores_of_server": used.get("server", 0.0) / used["wall"],
        "cores_of_postgres": used.get("postgres", 0.0) / used["wall"],
        "requests": asked.requests,
        "unchanged": asked.unchanged,
        "p50_ms": percentile(asked.took, 0.5),
        "p99_ms": percentile(asked.took, 0.99),
    }


async def _transactions(place: Bench) -> int:
    """The transactions of the database so far. Each query of the console is one of its own. Other sessions report theirs
    up to a second late, in the same way before and after."""
    return int(
        await place.database.fetchval(
            "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        )
    )
