"""publish: append messages to a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from headrace.store.database import Database, Executor

# What one statement carries at most: enough to amortise its cost, too little to trouble anybody's memory.
CHUNK_MESSAGES = 1000
CHUNK_CHARACTERS = 8_000_000


async def publish(executor: Executor, stream: str, key: str, data: str, headers: str | None = None) -> int:
    """Append one message; `data` and `headers` are JSON text. Returns its seq. Raises `UnknownStream`, `InvalidInput`."""
    seq: int = await executor.fetchval("select headrace.publish($1, $2, $3, $4)", stream, key, data, headers)
    return seq


async def publish_many(
    executor: Executor,
    stream: str,
    keys: Sequence[str],
    data: Sequence[str],
    headers: Sequence[str | None] | None = None,
) -> int:
    """Append messages in their order; the lists run in parallel. Returns how many. Raises `UnknownStream`, `InvalidInput`.

    All or nothing only when `executor` is inside a transaction, or when there is one chunk; see `chunks`.
    """
    published = 0
    for start, end in chunks(data):
        published += await executor.fetchval(
            "select headrace.publish_many($1, $2, $3, $4)",
            stream,
            keys[start:end],
            data[start:end],
            headers[start:end] if headers is not None and any(islice(headers, start, end)) else None,
        )
    return published


async def publish_all(
    database: Database,
    stream: str,
    keys: Sequence[str],
    data: Sequence[str],
    headers: Sequence[str | None] | None = None,
) -> int:
    """As `publish_many`, all or nothing."""
    if sum(1 for _ in chunks(data)) <= 1:
        return await publish_many(database, stream, keys, data, headers)
    async with database.transaction() as connection:
        return await publish_many(connection, stream, keys, data, headers)


def chunks(data: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bounds of the slices in which messages are sent."""
    start = size = 0
    for place, text in enumerate(data):
        if place > start and (place - start >= CHUNK_MESSAGES or size + len(text) > CHUNK_CHARACTERS):
            yield start, place
            start, size = place, 0
        size += len(text)
    if start < len(data):
        yield start, len(data)
