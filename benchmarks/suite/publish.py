"""publish: batches over one connection, against the bare multi-row insert of the same batches."""

from __future__ import annotations

from benchmarks import checks
from benchmarks.harness import MESSAGES, PLAIN, STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Batch, Keys, Order, batches, bytes_of, orders, slices
from benchmarks.report import Result, figures
from benchmarks.timing import Measured, Stopwatch
from headrace import App, store

KEYS = Keys(100_000)
_WARMING = 20


async def publish(options: Options) -> Result:
    """Publish batches of 100 over one connection, each committed before the next. Also through the App."""
    count, size = options.count(200_000, 20_000), options.batch or 100
    texts = list(batches(KEYS, count, size))
    objects = [orders(KEYS, numbers) for numbers in slices(count, size)]
    by_store, by_app = Measured(), Measured()
    for _ in range(options.times()):
        async with bench(options) as place, App(place.dsn) as app:
            warming = (texts * _WARMING)[:_WARMING]
            await _by_store(place, warming)
            await place.plain.insert_rate(warming)

            await place.rest(MESSAGES, PLAIN)
            by_store.samples.append(await _by_store(place, texts))
            await place.rest(MESSAGES, PLAIN)
            limit = await place.plain.insert_rate(texts)
            await place.rest(MESSAGES, PLAIN)
            by_app.samples.append(await _by_app(app, objects))

            by_store.limit_samples.append(limit)
            by_app.limit_samples.append(limit)
            proven = await checks.stored(place.database, STREAM, 2 * count + sum(len(b.keys) for b in warming))
    return Result(
        benchmark="publish",
        about=f"batches of {size} published over one connection, JSON texts at hand",
        measured=by_store,
        limit_is=f"bare multi-row inserts of {size}, one connection",
        variants={"objects_encoded_by_the_app": figures(by_app)},
        settings={
            "messages": count,
            "batch": size,
            "index_keys": options.index_keys,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS.count,
            "repeats": options.times(),
        },
        checks=[proven],
    )


async def _by_store(place: Bench, texts: list[Batch]) -> float:
    watch = Stopwatch()
    published = 0
    for batch in texts:
        published += await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
    rate = published / watch.seconds()
    checks.expect(published, sum(len(batch.keys) for batch in texts), "messages published")
    return rate


async def _by_app(app: App, objects: list[list[tuple[str, Order]]]) -> float:
    watch = Stopwatch()
    published = 0
    for messages in objects:
        published += await app.publish_many(STREAM, messages)
    rate = published / watch.seconds()
    checks.expect(published, sum(len(messages) for messages in objects), "messages published")
    return rate
