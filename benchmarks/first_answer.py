"""The bare client of `start`: `python -m benchmarks.first_answer DSN`. It asks the database for a number, and waits."""

from __future__ import annotations

import asyncio
import sys

import asyncpg


async def ask(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    print(await connection.fetchval("select 1"), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1]))
