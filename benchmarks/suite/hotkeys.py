"""hotkeys: all messages on 10 keys, also with `ack_before_next` and with handlers that wait, and half of all messages on
one key."""

from __future__ import annotations

from collections import Counter
from statistics import median

import anyio

from benchmarks.harness import Bench, Options
from benchmarks.payloads import Keys
from benchmarks.report import Result, figures
from benchmarks.suite.draining import LIMIT_IS, drained, measure_drains
from benchmarks.timing import Measured, Stopwatch
from benchmarks.worker import WORK

TEN = Keys(10)


async def hotkeys(options: Options) -> Result:
    """Drain 10 keys in order. Also with `ack_before_next`, with a handler that awaits 1 ms, and with 1,000 keys of which one
    has half the messages."""
    count = options.count(300_000, 30_000)
    consumer = {"concurrency": 32, "max_ack_pending": 10_000}
    ten, settings, proven = await drained(options, TEN, count, "noop", consumer)
    strict, strict_settings, strict_proven = await drained(
        options, TEN, count // 10, "noop", {**consumer, "ack_before_next": True}
    )
    half, half_settings, half_proven = await drained(options, Keys(1000, hot=True), count, "noop", consumer)
    loops: list[float] = []

    async def beside(_: Bench) -> None:
        loops.append(await _bare_loops(count // 5))

    waiting, waiting_settings, waiting_proven = await measure_drains(
        options, TEN, count // 5, "work", consumer, ("off",), beside
    )
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
            "handlers_of_1_ms": {
                **figures(Measured(waiting["off"].samples, loops)),
                "limit_is": "10 bare loops that await 1 ms for each message of their key",
                "cpu_us": median(waiting["off"].cpu),
                "settings": {**waiting_settings, "handler": "awaits 1 ms"},
                "checks": waiting_proven,
            },
        },
        settings=settings,
        checks=proven,
    )


async def _bare_loops(count: int) -> float:
    """Messages per second of a loop for each key, which awaits what the handler awaits, as often as its key has messages."""

    async def loop(times: int) -> None:
        for _ in range(times):
            await anyio.sleep(WORK)

    watch = Stopwatch()
    async with anyio.create_task_group() as group:
        for times in Counter(map(TEN.place, range(count))).values():
            group.start_soon(loop, times)
    return count / watch.seconds()
