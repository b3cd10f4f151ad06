"""The raw limits for comparison: what the same Postgres does with a plain table, over one connection.

They are measured in the same run, between the repeats, so that a busy or throttled machine slows both.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import msgspec

from benchmarks.payloads import Batch, Order
from benchmarks.timing import Stopwatch
from headrace.store import Database

INSERT = "insert into plain_log (key, data) select * from unnest($1::text[], $2::json[])"
_INSERT_ONE = "insert into plain_log (key, data) values ($1, $2) returning id"
READ = "select id, key, data, created_at from plain_log where id > $1 order by id limit $2"


class PlainLog:
    """A table with the columns of a simple log, and a connection to it."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    @classmethod
    async def create(cls, database: Database) -> PlainLog:
        connection = await database.connect()
        await connection.execute(
            "create table plain_log (id bigserial primary key, key text not null, data json not null,"
            " created_at timestamptz not null default now())"
        )
        await _store_large_values_as_streams_do(connection)
        return cls(connection)

    async def another(self, database: Database) -> PlainLog:
        """The same table over another connection."""
        return PlainLog(await database.connect())

    async def close(self) -> None:
        await self._connection.close()

    async def insert_rate(self, batches: list[Batch]) -> float:
        """Messages inserted per second: a bare multi-row insert per batch, each committed before the next."""
        watch = Stopwatch()
        for batch in batches:
            await self.insert_many(batch.keys, batch.texts)
        return sum(len(batch.keys) for batch in batches) / watch.seconds()

    async def insert_many(self, keys: list[str], texts: list[str]) -> None:
        """Insert rows by one statement, and commit."""
        await self._connection.execute(INSERT, keys, texts)

    async def insert(self, key: str, text: str) -> int:
        """Insert one row. Returns the time from the call to the commit, in ns."""
        start = time.monotonic_ns()
        await self._connection.fetchval(_INSERT_ONE, key, text)
        return time.monotonic_ns() - start

    async def read_rate(self, size: int, *, decode: bool) -> float:
        """Messages read per second: scan the primary key, `size` rows at a time, and decode them if `decode`."""
        decoder = msgspec.json.Decoder(Order)
        position = count = 0
        watch = Stopwatch()
        while rows := await self._connection.fetch(READ, position, size):
            if decode:
                for row in rows:
                    decoder.decode(row[2])
            position = rows[-1][0]
            count += len(rows)
        return count / watch.seconds()


async def _store_large_values_as_streams_do(connection: asyncpg.Connection[Any]) -> None:
    try:
        await connection.execute("alter table plain_log alter column data set compression lz4")
    except asyncpg.FeatureNotSupportedError:
        await connection.execute("alter table plain_log alter column data set storage external")
