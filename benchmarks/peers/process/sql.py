"""Connections of peers that are SQL functions, and of handlers that write a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

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
