"""hotkeys: all messages on 10 keys, also with `ack_before_next`, and half of all messages on one key."""

from __future__ import annotations

from benchmarks.harness import Options
from benchmarks.payloads import Keys
from benchmarks.report import Result, figures
from benchmarks.suite.draining import LIMIT_IS, drained


async def hotkeys(options: Options) -> Result:
    """Drain 10 keys in order. Also with `ack_before_next`, and with 1,000 keys of which one has half the messages."""
    count = options.count(300_000, 30_000)
    consumer = {"concurrency": 32, "max_ack_pending": 10_000}
    ten, settings, proven = await drained(options, Keys(10), count, "noop", consumer)
    strict, strict_settings, strict_proven = await drained(
        options, Keys(10), count // 10, "noop", {**consumer, "ack_before_next": True}
    )
    half, half_settings, half_proven = await drained(options, Keys(1000, hot=True), count, "noop", consumer)
    return Result(
        benchmark="hotkeys",
        about="10 keys in order; and one key of 1,000 with half the traffic",
        measured=ten,
        limit_is=LIMIT_IS,
        variants={
            "half_on_one_key": {**figures(half), "settings": half_settings, "checks": half_proven},
            "ack_before_next": {
                **figures(strict),
                "of_rate": strict.rate / ten.rate,
                "settings": strict_settings,
                "checks": strict_proven,
            },
        },
        settings=settings,
        checks=proven,
    )
