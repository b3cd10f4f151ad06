"""Connections of peers that are SQL functions, and of handlers that write a row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from benchmarks.peers.process.adapter import Adapter
from benchmarks.peers.process.messages import Message

CONNECTIONS = 8
"""Connections of a publisher, whose calls overlap at a pace."""


async def connect(url: str) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(url)


async def _kept(connection: Any) -> None:
    """Leave the connection as it is between two calls. asyncpg would run four statements."""


@asynccontextmanager
async def pool(url: str, most: int = CONNECTIONS) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with asyncpg.create_pool(url, min_size=1, max_size=most, reset=_kept) as connections:
        yield connections


class PooledAdapter(Adapter):
    """An adapter that publishes by statements over a pool of connections."""

    _pool: asyncpg.Pool[Any]

    @asynccontextmanager
    async def publisher(self) -> AsyncIterator[None]:
        async with pool(self.url) as self._pool:
            yield

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        await self._send(self._pool, messages, delay)

    @asynccontextmanager
    async def open_transaction(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        async with self._pool.acquire() as connection, connection.transaction():
            await self._send(connection, messages, None)
            yield

    async def _send(self, connection: Any, messages: Sequence[Message], delay: float | None) -> None:
        """Publish messages over a connection, or a pool of them."""
        raise NotImplementedError


async def run_script(url: str, statements: str) -> None:
    """Run statements in one transaction."""
    connection = await connect(url)
    try:
        async with connection.transaction():
            await connection.execute(statements)
    finally:
        await connection.close()


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
