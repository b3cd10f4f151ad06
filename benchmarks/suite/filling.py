"""Fill the stream, and the plain table beside it, with the same messages before the clock runs."""

from __future__ import annotations

from benchmarks.harness import STREAM, Bench
from benchmarks.payloads import Batch
from headrace import store


async def fill(place: Bench, prepared: list[Batch]) -> None:
    for batch in prepared:
        await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
    await place.plain.insert_rate(prepared)
