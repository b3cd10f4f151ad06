"""drain: a backlog of 100,000 keys, a typed handler that does nothing, with telemetry off and on."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.harness import Options
from benchmarks.payloads import Keys
from benchmarks.report import Result
from benchmarks.suite.draining import LIMIT_IS, Drain, measure_drains
from benchmarks.wire import TelemetryMode


async def drain(options: Options) -> Result:
    """Drain a backlog of 100,000 keys in one worker process with a typed no-op handler. Also with telemetry on."""
    count = options.count(500_000, 50_000)
    consumer = {"concurrency": 32, "max_ack_pending": 10_000}
    telemetry_modes: tuple[TelemetryMode, ...] = ("off", "metrics", "traces", "sampled")
    measured, settings, proven = await measure_drains(options, Keys(100_000), count, "noop", consumer, telemetry_modes)
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
        },
        details={"cpu_us": median(off.cpu)},
        checks=proven,
    )


def _beside(off: Drain, on: Drain) -> dict[str, Any]:
    """`of_off` is the median of each repeat's rate, divided by the rate of the same repeat with telemetry off."""
    ratios = [with_it / without for with_it, without in zip(on.samples, off.samples, strict=True)]
    return {
        "rate": on.rate,
        "samples": on.samples,
        "of_off": median(ratios),
        "ratios": ratios,
        "cpu_us": median(on.cpu),
    }
