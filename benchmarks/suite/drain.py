"""drain: a backlog of 100,000 keys, a typed handler that does nothing, with telemetry off and on, and with a history."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from benchmarks.batch_client import Used
from benchmarks.checks import CheckFailed
from benchmarks.harness import Bench, Options
from benchmarks.payloads import Keys
from benchmarks.processes import started
from benchmarks.report import Result
from benchmarks.suite.draining import LIMIT_IS, Drain, Mode, measure_drains

BATCH = 2000
"""Messages in a batch of the client that acks by the batch. A lease call has as many at most."""


async def drain(options: Options) -> Result:
    """Drain a backlog of 100,000 keys in one worker process with a typed no-op handler. Also with telemetry on, and with
    a history."""
    count = options.count(500_000, 50_000)
    consumer = {"concurrency": 32, "max_ack_pending": 10_000}
    modes: tuple[Mode, ...] = ("off", "metrics", "traces", "sampled", "history")
    client: list[float] = []

    async def beside(place: Bench) -> None:
        client.append(await _batch_client(place, count))

    measured, settings, proven = await measure_drains(options, Keys(100_000), count, "noop", consumer, modes, beside)
    off = measured["off"]
    return Result(
        benchmark="drain",
        about="a backlog drained by one worker process, typed no-op handler",
        measured=off,
        limit_is=LIMIT_IS,
        settings={**settings, "telemetry": "off"},
        variants={
            "telemetry: metrics": _beside(off, measured["metrics"]),
            "telemetry: every trace": _beside(off, measured["traces"]),
            "telemetry: 1 trace in 100": _beside(off, measured["sampled"]),
            "history: 7d": _beside(off, measured["history"]),
        },
        details={
            "cpu_us": median(off.cpu),
            "batch_client_cpu_us": median(client),
            "cpu_of_batch_client": median(ours / theirs for ours, theirs in zip(off.cpu, client, strict=True)),
        },
        checks=proven,
    )


async def _batch_client(place: Bench, count: int) -> float:
    """The CPU time in µs per message of a client that acks by the batch."""
    async with started("benchmarks.batch_client", "--dsn", place.dsn, "--size", str(BATCH)) as process:
        assert process.stdout is not None
        used = msgspec.json.decode(await process.stdout.receive(), type=Used)
    if used.messages != count:
        raise CheckFailed(f"The batch client had {used.messages} messages of {count}.")
    return used.cpu / count * 1e6


def _beside(off: Drain, on: Drain) -> dict[str, Any]:
    """`of_off` is the median of each repeat's rate, divided by the rate of the same repeat with all of it off."""
    ratios = [with_it / without for with_it, without in zip(on.samples, off.samples, strict=True)]
    return {
        "rate": on.rate,
        "samples": on.samples,
        "of_off": median(ratios),
        "ratios": ratios,
        "cpu_us": median(on.cpu),
    }
