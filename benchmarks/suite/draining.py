"""One worker process drains a backlog: the shared part of `drain`, `work` and `hotkeys`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from benchmarks.crew import crew
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured
from benchmarks.wire import ConsumerJob, Finish, HandlerName, Job, Report, TelemetryMode

Mode = TelemetryMode | Literal["history"]

READ_SIZE = 1000
LIMIT_IS = f"a bare cursor read of {READ_SIZE} rows at a time, decoded into the same type"


class Drain(Measured):
    """Rates, and `cpu`: microseconds of the worker's CPU time per message, which a busy machine disturbs less."""

    cpu: list[float] = msgspec.field(default_factory=list)


async def drained(
    options: Options, keys: Keys, count: int, handler: HandlerName, consumer: dict[str, Any]
) -> tuple[Measured, dict[str, Any], list[str]]:
    """Publish `count` messages, then drain them with a worker process. The rate is from first handler to last settle.

    Returns:
        The rates, the settings, and what was proven.
    """
    measured, settings, checks = await measure_drains(options, keys, count, handler, consumer, ("off",))
    return measured["off"], settings, checks


async def measure_drains(
    options: Options,
    keys: Keys,
    count: int,
    handler: HandlerName,
    consumer: dict[str, Any],
    modes: Sequence[Mode],
    beside: Callable[[Bench], Awaitable[None]] | None = None,
) -> tuple[dict[Mode, Drain], dict[str, Any], list[str]]:
    """Run `drained` once for each mode in each repeat: for a kind of telemetry, or for a consumer that keeps a history.

    They are consumers of the same stream, one after the other. Each repeat starts with another one,
    so that changes in the machine's speed affect all of them.

    Args:
        beside: what else to measure in each repeat.
    """
    measured = {mode: Drain() for mode in modes}
    repeats = options.times(3, 2)
    for repeat in range(repeats):
        async with bench(options) as place:
            await fill(place, keys, count)
            first = repeat % len(modes)
            for mode in [*modes[first:], *modes[:first]]:
                report = await _drain(place, keys, count, handler, consumer, mode)
                measured[mode].samples.append(count / report.seconds)
                measured[mode].cpu.append(report.cpu / count * 1e6)
            if beside is not None:
                await beside(place)
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
    place: Bench, keys: Keys, count: int, handler: HandlerName, consumer: dict[str, Any], mode: Mode
) -> Report:
    name = "drain" if mode == "off" else f"drain_{mode}"
    telemetry_mode: TelemetryMode = "off" if mode == "history" else mode
    if mode == "history":
        consumer = {**consumer, "history": "7d"}
    async with crew(Job(place.dsn, STREAM, [ConsumerJob(name, handler, consumer, keys)], telemetry_mode)) as worker:
        return await worker.finish(Finish(count))
