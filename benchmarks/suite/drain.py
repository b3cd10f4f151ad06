"""drain: a backlog of 100,000 keys, a typed handler that does nothing."""

from __future__ import annotations

from benchmarks.harness import Options
from benchmarks.payloads import Keys
from benchmarks.report import Result
from benchmarks.suite.draining import LIMIT_IS, drained


async def drain(options: Options) -> Result:
    """Drain a backlog of 100,000 keys in one worker process; a typed handler that does nothing."""
    count = options.count(500_000, 50_000)
    consumer = {"concurrency": 32, "max_ack_pending": 10_000}
    measured, settings, proven = await drained(options, Keys(100_000), count, "noop", consumer)
    return Result(
        benchmark="drain",
        about="a backlog drained by one worker process, typed no-op handler",
        measured=measured,
        limit_is=LIMIT_IS,
        settings=settings,
        checks=proven,
    )
