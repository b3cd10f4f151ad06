"""A backlog, drained by one worker process: what `drain`, `work` and `hotkeys` share."""

from __future__ import annotations

from typing import Any

from benchmarks.crew import crew
from benchmarks.harness import STREAM, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, HandlerName, Job

READ_SIZE = 1000
LIMIT_IS = f"a bare cursor read of {READ_SIZE} rows at a time, decoded into the same type"


async def drained(
    options: Options, keys: Keys, count: int, handler: HandlerName, consumer: dict[str, Any]
) -> tuple[Measured, dict[str, Any], list[str]]:
    """Publish `count` messages, then let a worker process have them; from its first handler's start to the last settle.

    Returns:
        The rates, the settings, and what was proven.
    """
    measured = Measured()
    for _ in range(options.times(3, 2)):
        async with bench(options) as place:
            await fill(place, keys, count)
            job = Job(place.dsn, STREAM, [ConsumerJob("drain", handler, consumer, keys)])
            async with crew(job) as worker:
                report = await worker.finish(Finish(count))
            measured.samples.append(count / report.seconds)
            measured.limit_samples.append(await place.plain.read_rate(READ_SIZE, decode=True))
    settings = {
        "messages": count,
        "keys": keys.count,
        **({"hot": "every second message has one of the keys"} if keys.hot else {}),
        "payload_bytes": bytes_of(SMALL_NOTE),
        "worker_processes": 1,
        **consumer,
        "repeats": options.times(3, 2),
    }
    return measured, settings, report.checks
