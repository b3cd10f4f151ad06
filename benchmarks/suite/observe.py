"""observe: the cost of `headrace observe` at 10,000 messages a second."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.checks import CheckFailed
from benchmarks.crew import crew
from benchmarks.harness import STREAM, Options, bench
from benchmarks.observing import INTERVAL, Taken
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured, Phase, Summary
from benchmarks.wire import ConsumerJob, Finish, Job
from headrace import App

KEYS = Keys(1000)
QUERIES = 4
"""Maximum queries of a refresh in the mean: figures and counts each time, the rest every other time or less."""
CONSUMER = {"concurrency": 16, "max_ack_pending": 1000}
RATE, BATCH = 10_000, 50
WARM_UP = 2.0


async def observe(options: Options) -> Result:
    """Publish and handle 10,000 messages/s, first alone, then with `headrace observe` refreshing once a second."""
    seconds = options.duration(20, 3)
    measured, alone, watched, taken = Measured(), list[Summary](), list[Summary](), list[Taken]()
    checks: list[str] = []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await place.rest()
            job = Job(place.dsn, STREAM, [ConsumerJob("observe", "timed", CONSUMER)])
            async with crew(job) as worker, App(place.dsn) as app:
                publisher = Publisher(app, STREAM, KEYS)
                await publisher.at_pace(RATE, WARM_UP, BATCH)
                first = await _phase("alone", publisher, seconds)
                async with _observer(place.dsn, seconds) as observer:
                    second = await _phase("watched", publisher, seconds)
                    taken.append(await _end(observer))
                report = await worker.finish(Finish(publisher.published, [first, second]))
        phases = report.phases["observe"]
        alone.append(phases["alone"].whole)
        watched.append(phases["watched"].whole)
        measured.limit_samples.append(alone[-1].rate)
        measured.samples.append(watched[-1].rate)
        checks = report.checks
    return Result(
        benchmark="observe",
        about="messages handled a second while somebody looks on",
        measured=measured,
        limit_is="the same, with nobody looking on",
        latency=_middle(watched),
        details={"alone": _middle(alone), **_cost(taken)},
        settings={
            "seconds": seconds,
            "pace": f"{RATE:,}/s as {BATCH} messages each {BATCH / RATE * 1000:g} ms",
            "interval_seconds": INTERVAL,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            **CONSUMER,
            "repeats": options.times(3, 1),
        },
        checks=checks + _proven(taken),
    )


async def _phase(name: str, publisher: Publisher, seconds: float) -> Phase:
    start = time.monotonic_ns()
    await publisher.at_pace(RATE, seconds, BATCH)
    return Phase(name, start, start + int(seconds * 1e9), seconds)


@asynccontextmanager
async def _observer(dsn: str, seconds: float) -> AsyncIterator[BufferedByteReceiveStream]:
    """A running observer. Yields its output."""
    command = [sys.executable, "-m", "benchmarks.observing", dsn, str(seconds)]
    process: Process = await anyio.open_process(command, stderr=None)
    async with process:
        assert process.stdout is not None
        written = BufferedByteReceiveStream(process.stdout)
        with anyio.fail_after(60):
            await written.receive_until(b"up\n", 1000)
        yield written


async def _end(observer: BufferedByteReceiveStream) -> Taken:
    with anyio.fail_after(60):
        return msgspec.json.decode(await observer.receive_until(b"\n", 10_000), type=Taken)


def _middle(summaries: list[Summary]) -> dict[str, float]:
    return sorted(summaries, key=lambda summary: summary.p99_ms)[len(summaries) // 2].latency()


def _cost(taken: list[Taken]) -> dict[str, float]:
    """The cost of the observers, over all repeats."""
    seconds = sum(one.seconds for one in taken)
    return {
        "queries_per_second": sum(one.round_trips for one in taken) / seconds,
        "look_ms": sum(one.looking for one in taken) / max(1, sum(one.looks for one in taken)) * 1000,
        "observer_cpu": sum(one.cpu for one in taken) / seconds,
    }


def _proven(taken: list[Taken]) -> list[str]:
    """Check that it refreshed, and made no more queries than allowed."""
    for one in taken:
        if not one.looks or one.round_trips > QUERIES * (one.looks + 1):
            raise CheckFailed(f"the observer looked {one.looks} times and made {one.round_trips:g} queries")
    return [f"a look was {QUERIES} queries at most, in the mean"]
