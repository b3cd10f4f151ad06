"""Fill the stream and the plain table with the same messages, before the clock starts."""

from __future__ import annotations

from benchmarks.harness import MESSAGES, PLAIN, STREAM, Bench
from benchmarks.payloads import Keys, batches
from headrace import store

_CHUNK = 1000


async def fill(place: Bench, keys: Keys, count: int) -> None:
    for batch in batches(keys, count, _CHUNK):
        await store.publish_many(place.database, STREAM, batch.keys, batch.texts)
    await place.database.fetch(f"insert into {PLAIN} (key, data) select key, data from {MESSAGES} order by seq")
    await place.rest(MESSAGES, PLAIN)
