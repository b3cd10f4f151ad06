"""Marks, positions and ranges, as tests query them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace import store, sweep
from headrace.model.specs import StreamSpec
from tests.conftest import Connect
from tests.support.readers import publish


async def begin(connect: Connect, *keys: str) -> tuple[Any, Any]:
    """Return a transaction that has published and is still open."""
    connection = await connect()
    transaction = connection.transaction()
    await transaction.start()
    if keys:
        await publish(connection, *keys)
    return connection, transaction


async def mark(database: store.Database) -> Any:
    return await database.fetchrow("select uid, last, open from headrace_internal.range_mark('orders')")


async def is_open(database: store.Database, mark: Any) -> bool:
    return bool(await database.fetchval("select headrace_internal.still_open_xids($1)", mark["open"]))


async def resolved(database: store.Database, after: int = 0) -> int:
    position: int = await database.fetchval("select headrace_internal.resolved_position('orders', $1)", after)
    return position


async def burn(database: store.Database, *keys: str) -> None:
    """Publish, and roll the transaction back."""
    with suppress(ZeroDivisionError):
        async with database.transaction() as connection:
            await publish(connection, *keys)
            raise ZeroDivisionError


async def plan(
    database: store.Database, first: int | None, last: int, parts: int = 1, *, fail: bool = True, uid: Any = None
) -> list[Any]:
    return await database.fetch(
        "select * from headrace_internal.plan_ranges('orders', $1, $2, null, $3, $4, $5)",
        first,
        last,
        parts,
        uid,
        fail,
    )


async def read(database: store.Database, ranges: list[Any]) -> list[int]:
    return [row["seq"] for part in ranges for row in await database.fetch(part["query"])]


async def make_old(database: store.Database, below: int) -> None:
    """Make the messages below a seq two hours older."""
    await database.fetch(
        "update headrace_streams.orders set created_at = created_at - interval '2 hours' where seq < $1", below
    )


class Segments:
    """The stream `orders`, in segments of ten messages."""

    def __init__(self, database: store.Database) -> None:
        self._database = database

    async def create(self, **policy: Any) -> None:
        """Create the stream with 35 messages, of which the first 30 are two hours old."""
        stream = await store.create_stream(self._database, StreamSpec(name="orders", **policy))
        for row in await self._database.fetch("delete from headrace_internal.segments returning relation"):
            await self._database.fetch(f"drop table {row[0]}")
        await self._database.fetch(
            "select headrace_internal.add_segment($1, i * 10 + 1, (i + 1) * 10 + 1) from generate_series(0, 9) as i",
            stream,
        )
        await self._database.fetch("select headrace_internal.add_segments_ahead($1, 101, 10)", stream)
        await publish(self._database, *(f"k.{n}" for n in range(35)))
        await make_old(self._database, 31)

    async def drop(self) -> int:
        """Run a retention sweep. Returns how many segments it dropped."""
        return (await sweep(self._database)).segments_dropped
