"""A stream for tests of retention: `orders`, cut into segments of ten."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace import store, sweep
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.runtime.maintenance.sweeper import Swept
from tests.support.readers import Clock, Reader

HOUR = 3600.0


class Stream:
    """The stream `orders`, cut into segments of ten.

    Attributes:
        now: when messages were published last. Sweeps count from it.
    """

    def __init__(self, database: store.Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.now = datetime.now(UTC)

    async def create(self, *, width: int = 10, count: int = 20, **policy: Any) -> None:
        """With `count` segments of `width` seqs, followed by segments of increasing width."""
        stream = await store.create_stream(self.database, StreamSpec(name="orders", **policy))
        for row in await self.database.fetch("delete from headrace_internal.segments returning relation"):
            await self.database.fetch(f"drop table {row[0]}")
        await self.database.fetch(
            "select headrace_internal.add_segment($1, i * $2::int + 1, (i + 1) * $2::int + 1) from generate_series(0, $3::int - 1) as i",
            stream,
            width,
            count,
        )
        await self.database.fetch(
            "select headrace_internal.add_segments_ahead($1, $2, $3)", stream, width * count + 1, width
        )

    async def edit(self, **policy: Any) -> None:
        await store.edit_stream(self.database, StreamSpec(name="orders", **policy))

    async def fill(self, count: int, *, keys: int = 5, size: int = 0) -> None:
        """Publish this many messages, each with an incompressible text of this many bytes."""
        texts = [json.dumps({"n": n, "text": secrets.token_hex(size // 2)}) for n in range(count)]
        await store.publish_many(self.database, "orders", [f"k.{n % keys}" for n in range(count)], texts)
        self.now = datetime.now(UTC)  # a message of more than a second later counts as old as those behind it

    async def consumer(self, name: str = "ship", **settings: Any) -> Reader:
        spec = ConsumerSpec(stream="orders", name=name, **settings)
        return Reader(self.database, spec, (await store.declare_consumer(self.database, spec)).id, self.clock)

    async def sweep(self, after: float = 0.0) -> Swept:
        """Sweep this many seconds from now, until no work is left to do immediately."""
        swept = await sweep(self.database, now=self.now + timedelta(seconds=after))
        if swept.more:
            again = await self.sweep(after)
            swept.segments_dropped += again.segments_dropped
            swept.messages_trimmed += again.messages_trimmed
            swept.missed += again.missed
        return swept

    async def age(self, seconds: float, below: int) -> None:
        """Make the messages below a seq older."""
        await self.database.fetch(
            "update headrace_streams.orders set created_at = created_at - make_interval(secs => $1) where seq < $2",
            seconds,
            below,
        )

    async def seqs(self) -> list[int]:
        return [row[0] for row in await self.database.fetch("select seq from headrace_streams.orders order by seq")]

    async def segments(self) -> list[tuple[int, int | None]]:
        rows = await self.database.fetch("select lower, upper from headrace_internal.segments order by lower")
        return [(row[0], row[1]) for row in rows]

    async def gap(self, reader: Reader) -> tuple[int, int, int] | None:
        row = await self.database.fetchrow(
            "select messages, lower, upper from headrace_internal.gaps where consumer_id = $1", reader.id
        )
        return None if row is None else (row[0], row[1], row[2])


async def size(stream: Stream) -> int:
    return int(
        await stream.database.fetchval(
            "select headrace_internal.stored_bytes(s) from headrace_internal.streams as s where name = 'orders'"
        )
    )
