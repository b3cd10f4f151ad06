"""A plain table with no queue: what a team writes first, and about as much as Postgres can do on this machine.

Rows are inserted into one table with the columns of a message. A reader reads on from the last row that it handled, and
stores that place with each batch. Nothing is retried. A row that commits after a later one was read is never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from benchmarks.peers.process.adapter import Unable
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import PooledAdapter, connect, decode, encode, run_script

SCHEMA = """
create table orders (
    id bigint generated always as identity primary key, key text not null, data json not null,
    at timestamptz not null default clock_timestamp()
);
create table places (reader int primary key, place bigint not null);
"""
INSERT = "insert into orders (key, data) select key, data from unnest($1::text[], $2::json[]) as m (key, data)"
READ = "select id, data from orders where id > $1 order by id limit $2"
STORE = "update places set place = $2 where reader = $1"


class Peer(PooledAdapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"batch": 1000, "poll_ms": 5}

    async def set_up(self) -> None:
        readers = ", ".join(f"({reader}, 0)" for reader in range(self.readers))
        await run_script(self.url, f"{SCHEMA} insert into places values {readers};")

    async def _send(self, connection: Any, messages: Sequence[Message], delay: float | None) -> None:
        if delay is not None:
            raise Unable("a cursor over the ids passes a row that is not due")
        texts = [encode(one.order).decode() for one in messages]
        await connection.execute(INSERT, [one.key for one in messages], texts)

    async def remaining(self) -> int:
        return int(
            await self._pool.fetchval(
                "select coalesce(sum((select count(*) from orders where id > p.place)), 0) from places as p"
            )
        )

    async def stored(self) -> int:
        return int(await self._pool.fetchval("select count(*) from orders"))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        connection = await connect(self.url)
        size = self.transaction if self.transaction > 1 else self.settings["batch"]
        try:
            place = await connection.fetchval("select place from places where reader = $1", reader)
            while not stop.is_set():
                rows = await connection.fetch(READ, place, size)
                if not rows:
                    await asyncio.sleep(self.settings["poll_ms"] / 1000)
                    continue
                place = rows[-1][0]
                orders = [decode(row[1]) for row in rows]
                if handler.mode == "effect":
                    async with connection.transaction():
                        await handler.run(orders, ordered=True, write=connection.execute)
                        await connection.execute(STORE, reader, place)
                else:
                    await handler.run(orders, ordered=True)
                    await connection.execute(STORE, reader, place)
        finally:
            await connection.close()
