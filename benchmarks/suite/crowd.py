"""crowd: one, eight and sixty-four worker processes on one consumer, at the same pace."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks import checks
from benchmarks.crowd_worker import Handled
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.processes import started
from benchmarks.processor_time import Meter, postmaster
from benchmarks.publishing import Publisher
from benchmarks.report import Result
from benchmarks.timing import Measured, milliseconds
from headrace import App

KEYS = Keys(1000)
CROWDS = (1, 8, 64)
RATE = 300
SETTLE = 20.0
"""Seconds for the workers to come to rest, and then to settle at the pace."""

_LONGEST_LINE = 1 << 28


async def crowd(options: Options) -> Result:
    """Publish 300/s one by one to 1, 8 and 64 workers on one consumer: CPU time per message, of workers and server."""
    seconds = options.duration(30, 3)
    crowds = CROWDS if not options.quick else (1, 4)
    found = {count: await _crowd(options, count, seconds) for count in crowds}
    alone, most = found[crowds[0]], found[crowds[-1]]
    return Result(
        benchmark="crowd",
        about=f"processor time of a message among {crowds[-1]} worker processes, {RATE}/s",
        measured=Measured([most["us_per_message"]], [alone["us_per_message"]]),
        limit_is="the same with one worker process",
        unit="us per message",
        latency={name: most[name] for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")},
        variants={f"of_{count}": result for count, result in found.items()},
        settings={"rate": RATE, "seconds": seconds, "payload_bytes": bytes_of(SMALL_NOTE), "keys": KEYS.count},
        checks=[f"{int(RATE * seconds):,} messages handled once by each crowd"],
    )


async def _crowd(options: Options, count: int, seconds: float) -> dict[str, Any]:
    async with bench(options) as place, AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(worker(place, [STREAM], 1)) for _ in range(count)]
        app = await stack.enter_async_context(App(place.dsn))
        postgres = postmaster(await place.database.fetchval("select pg_backend_pid()"))
        publisher = Publisher(app, STREAM, KEYS)
        settle = min(SETTLE, seconds)
        await publisher.at_pace(RATE, settle, 1)
        began = time.monotonic_ns()
        meter = Meter(postgres=postgres, **{f"worker_{one.pid}": one.pid for one in workers})
        await publisher.at_pace(RATE, seconds, 1)
        used = meter.read()
        await anyio.sleep(1)
        handled = [await one.end() for one in workers]
    at = [moment for one in handled for moment in one.at]
    took = [time for one in handled for moment, time in zip(one.at, one.took, strict=True) if moment >= began]
    checks.expect(len(at), publisher.published, "messages handled")
    messages = RATE * seconds
    mine = sum(seconds for name, seconds in used.items() if name.startswith("worker_"))
    theirs = used.get("postgres", 0.0)
    halves = [
        milliseconds(
            [
                time for one in handled for moment, time in zip(one.at, one.took, strict=True)
                if first <= (moment - began) / 1e9 < last
            ]
        )["p50_ms"]
        for first, last in ((0, seconds / 2), (seconds / 2, seconds))
    ]  # fmt: skip
    return {
        "us_per_message": (mine + theirs) / messages * 1e6,
        "workers_us": mine / messages * 1e6,
        "postgres_us": theirs / messages * 1e6,
        "took_part": sum(bool(one.at) for one in handled),
        **milliseconds(took),
        "p50_ms_of_the_halves": halves,
    }


class Worker:
    """A worker process."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.pid = process.pid
        self._process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> bytes:
        return await self._lines.receive_until(b"\n", _LONGEST_LINE)

    async def end(self) -> Handled:
        """Stop it, and return what it has handled."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        return msgspec.json.decode(await self.line(), type=Handled)


@asynccontextmanager
async def worker(place: Bench, streams: list[str], consumers: int) -> AsyncIterator[Worker]:
    """A worker process with `consumers` consumers on each of these streams. Yields once it is ready."""
    async with started("benchmarks.crowd_worker", place.dsn, ",".join(streams), str(consumers)) as process:
        one = Worker(process)
        checks.expect(await one.line(), b"ready", "its first line")
        yield one
