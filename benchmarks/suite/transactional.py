"""transactional: drain a backlog with handlers that write in the transaction of their ack, by 100 and one by one."""

from __future__ import annotations

import time
from typing import Any

import anyio

from benchmarks.checks import CheckFailed
from benchmarks.crew import crew
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of, slices
from benchmarks.report import Result, figures
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured, Stopwatch
from benchmarks.wire import ConsumerJob, Finish, HandlerName, Job
from headrace.store import Database

KEYS = Keys(1000)
BATCH = 100
WORKERS = 7
"""Concurrent handlers: as many as may hold a transaction with max_connections=10. The raw limit uses as many."""

LIMIT_IS = f"bare transactions on {WORKERS} connections at a time: BEGIN, the same write, COMMIT"
ONE = "insert into effects (number) values ($1)"
MANY = "insert into effects (number) select * from unnest($1::bigint[])"


async def transactional(options: Options) -> Result:
    """Drain in transactions of 100 messages, each with a row per message and the acks. Also in transactions of one."""
    batches, settings, proven = await _drained(
        options, options.count(200_000, 5_000), "effects", options.batch or BATCH
    )
    singles, single_settings, single_proven = await _drained(options, options.count(20_000, 1_000), "effect", None)
    return Result(
        benchmark="transactional",
        about=f"handlers that write in the transaction of their ack, {options.batch or BATCH} messages at a time",
        measured=batches,
        limit_is=LIMIT_IS,
        variants={"one_by_one": {**figures(singles), "settings": single_settings, "checks": single_proven}},
        settings=settings,
        checks=proven,
    )


async def _drained(
    options: Options, count: int, handler: HandlerName, batch: int | None
) -> tuple[Measured, dict[str, Any], list[str]]:
    """Drain once. Returns the rates from first handler to last settle, the settings, and what was proven."""
    measured = Measured(samples=[], limit_samples=[])
    consumer: dict[str, Any] = {"transactional": True, "concurrency": WORKERS, "max_ack_pending": 10_000}
    if batch is not None:
        consumer["batch"] = batch
    proven: list[str] = []
    repeats = options.times(3, 2)
    for _ in range(repeats):
        async with bench(options) as place:
            await place.database.fetch("create table effects (number bigint not null)")
            await fill(place, KEYS, count)
            async with crew(Job(place.dsn, STREAM, [ConsumerJob(handler, handler, consumer, KEYS)])) as worker:
                report = await worker.finish(Finish(count))
            measured.samples.append(count / report.seconds)
            proven = [*report.checks, await _written_once(place, count)]
            measured.limit_samples.append(await _limit(place, count, batch))
    settings = {
        "messages": count,
        "keys": KEYS.count,
        "payload_bytes": bytes_of(SMALL_NOTE),
        "worker_processes": 1,
        **consumer,
        "repeats": repeats,
    }
    return measured, settings, proven


async def _written_once(place: Bench, count: int) -> str:
    rows, numbers = await place.database.fetchrow("select count(*), count(distinct number) from effects")
    if not rows == numbers == count:
        raise CheckFailed(f"of {count:,} messages {numbers:,} were written, in {rows:,} rows.")
    return f"{rows:,} rows written, one for each message"


async def _limit(place: Bench, count: int, batch: int | None) -> float:
    """Messages per second of the same transactions without a stream, measured for at most a few seconds."""
    work = iter(slices(count, batch or 1))
    done = 0
    database = Database(place.dsn, max_connections=WORKERS, application_name="benchmarks")
    await database.open()
    until = time.monotonic() + 3.0

    async def write() -> None:
        nonlocal done
        for numbers in work:
            async with database.transaction() as connection:
                await (
                    connection.execute(ONE, numbers[0]) if batch is None else connection.execute(MANY, list(numbers))
                )
            done += len(numbers)
            if time.monotonic() > until:
                return

    try:
        watch = Stopwatch()
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(write)
        return done / watch.seconds()
    finally:
        await database.close()
