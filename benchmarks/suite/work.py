"""work: handlers that await 1 ms, 256 actors, 1,000 keys in order, also with `ack_before_next`."""

from __future__ import annotations

from benchmarks.harness import Options
from benchmarks.payloads import Keys
from benchmarks.report import Result, figures
from benchmarks.suite.draining import LIMIT_IS, drained


async def work(options: Options) -> Result:
    """Drain 1,000 keys in order with 256 actors and a handler that awaits 1 ms. Also with `ack_before_next`."""
    count = options.count(300_000, 30_000)
    consumer = {"concurrency": 256, "max_ack_pending": 10_000}
    measured, settings, proven = await drained(options, Keys(1000), count, "work", consumer)
    strict, strict_settings, strict_proven = await drained(
        options, Keys(1000), count, "work", {**consumer, "ack_before_next": True}
    )
    return Result(
        benchmark="work",
        about="1 ms awaited in each handler, 256 actors, 1,000 keys in order",
        measured=measured,
        limit_is=LIMIT_IS,
        variants={
            "ack_before_next": {
                **figures(strict),
                "of_rate": strict.rate / measured.rate,
                "settings": strict_settings,
                "checks": strict_proven,
            }
        },
        settings={**settings, "handler": "awaits 1 ms"},
        checks=proven,
    )
