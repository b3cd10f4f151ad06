"""One worker process drains a backlog: the shared part of `drain`, `work` and `hotkeys`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.crew import crew
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, HandlerName, Job, Report, Telling

READ_SIZE = 1000
LIMIT_IS = f"a bare cursor read of {READ_SIZE} rows at a time, decoded into the same type"


class Told(Measured):
    """Rates, and `cpu`: microseconds of the worker's CPU time per message, which a busy machine disturbs less."""

    cpu: list[float] = msgspec.field(default_factory=list)


async def drained(
    options: Options, keys: Keys, count: int, handler: HandlerName, consumer: dict[str, Any]
) -> tuple[Measured, dict[str, Any], list[str]]:
    """Publish `count` messages, then drain them with a worker process. The rate is from first handler to last settle.

    Returns:
        The rates, the settings, and what was proven.
    """
    measured, settings, checks = await told(options, keys, count, handler, consumer, ("off",))
    return measured["off"], settings, checks


async def told(
    options: Options,
    keys: Keys,
    count: int,
    handler: HandlerName,
    consumer: dict[str, Any],
    tellings: Sequence[Telling],
) -> tuple[dict[Telling, Told], dict[str, Any], list[str]]:
    """Run `drained` once for each kind of telemetry in each repeat.

    They are consumers of the same stream, one after the other. Each repeat starts with another one,
    so that changes in the machine's speed affect all of them.
    """
    measured = {telling: Told() for telling in tellings}
    repeats = options.times(3, 2)
    for repeat in range(repeats):
        async with bench(options) as place:
            await fill(place, keys, count)
            first = repeat % len(tellings)
            for telling in [*tellings[first:], *tellings[:first]]:
                report = await _drain(place, keys, count, handler, consumer, telling)
                measured[telling].samples.append(count / report.seconds)
                measured[telling].cpu.append(report.cpu / count * 1e6)
            limit = await place.plain.read_rate(READ_SIZE, decode=True)
            for one in measured.values():
                one.limit_samples.append(limit)
    settings = {
        "messages": count,
        "keys": keys.count,
        **({"hot": "every second message has one of the keys"} if keys.hot else {}),
        "payload_bytes": bytes_of(SMALL_NOTE),
        "worker_processes": 1,
        **consumer,
        "repeats": repeats,
    }
    return measured, settings, report.checks


async def _drain(
    place: Bench, keys: Keys, count: int, handler: HandlerName, consumer: dict[str, Any], telling: Telling
) -> Report:
    name = "drain" if telling == "off" else f"drain_{telling}"
    async with crew(Job(place.dsn, STREAM, [ConsumerJob(name, handler, consumer, keys)], telling)) as worker:
        return await worker.finish(Finish(count))
