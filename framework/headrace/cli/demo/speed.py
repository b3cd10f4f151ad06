"""The speed of this machine's database: bare inserts, publishing the same messages, and handling them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from headrace import App, Message

MESSAGES = 20_000
BATCH = 1000


class Speed(msgspec.Struct, frozen=True):
    """Messages a second.

    Attributes:
        inserted: by bare multi-row inserts into a plain table.
        published: into a stream, as batches of the same size.
        handled: by a consumer that does nothing with them, in order per key, acks included.
    """

    inserted: float
    published: float
    handled: float


async def measure(app: App, stream: str, messages: Sequence[tuple[str, object]]) -> Speed:
    """Measure with these messages, repeated as often as necessary. They go one batch after the other over one connection.

    Args:
        app: an app without consumers, which is not running. It gets one.
        stream: the name of a stream that does not exist yet.
    """
    repeated = [messages[number % len(messages)] for number in range(MESSAGES)]
    batches = [repeated[at : at + BATCH] for at in range(0, MESSAGES, BATCH)]
    app.stream(stream)

    @app.consumer(stream, name="speed", concurrency=16)
    async def handle(message: Message) -> None:
        pass

    async with app:
        inserted = await _insert(app, f'"{stream}"', batches)
        began = time.perf_counter()
        for batch in batches:
            await app.publish_many(stream, batch)
        published = time.perf_counter() - began
        began = time.perf_counter()
        async with app.running():
            await app.idle()
        handled = time.perf_counter() - began
    return Speed(MESSAGES / inserted, MESSAGES / published, MESSAGES / handled)


async def _insert(app: App, table: str, batches: Sequence[Sequence[tuple[str, object]]]) -> float:
    database = app.database
    await database.fetch(
        f"create table {table} (seq bigint generated always as identity primary key, key text, data json)"
    )
    try:
        began = time.perf_counter()
        for batch in batches:
            rows = [key for key, _ in batch], [msgspec.json.encode(data).decode() for _, data in batch]
            await database.fetch(f"insert into {table} (key, data) select * from unnest($1::text[], $2::json[])", *rows)
        return time.perf_counter() - began
    finally:
        await database.fetch(f"drop table {table}")
