"""publish: batches over one connection, against the bare multi-row insert of the same batches."""

from __future__ import annotations

from benchmarks import checks
from benchmarks.harness import MESSAGES, PLAIN, STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, batches, bytes_of
from benchmarks.report import Result
from benchmarks.timing import Measured, Stopwatch
from headrace import store

KEYS = Keys(100_000)


async def publish(options: Options) -> Result:
    """Publish batches of 100 over one connection, each committed before the next; JSON texts at hand."""
    count, size = options.count(200_000, 20_000), options.batch or 100
    prepared = list(batches(KEYS, count, size))
    measured = Measured()
    for _ in range(options.times()):
        async with bench(options) as place:
            await _warm(place, prepared)
            await place.rest(MESSAGES, PLAIN)
            measured.samples.append(await _publish_rate(place, prepared))
            await place.rest(MESSAGES, PLAIN)
            measured.limit_samples.append(await place.plain.insert_rate(prepared))
            proven = await checks.stored(place.database, STREAM, count + _WARMING * size)
    return Result(
        benchmark="publish",
        about=f"batches of {size} published over one connection",
        measured=measured,
        limit_is=f"bare multi-row inserts of {size}, one connection",
        settings={
            "messages": count,
            "batch": size,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "repeats": options.times(),
        },
        checks=[proven],
    )


_WARMING = 20


async def _warm(place: Bench, prepared: list[Batch]) -> None:
    """So that both sides have their statements prepared and their first pages."""
    warming = (prepared * _WARMING)[:_WARMING]
    await _publish_rate(place, warming)
    await place.plain.insert_rate(warming)


async def _publish_rate(place: Bench, prepared: list[Batch]) -> float:
    watch = Stopwatch()
    published = 0
    for batch in prepared:
        published += await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
    rate = published / watch.seconds()
    checks.expect(published, sum(len(batch.keys) for batch in prepared), "messages published")
    return rate
