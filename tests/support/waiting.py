"""Wait for something in this process or in the database, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that will have to wait for a lock. See `until_blocked`."""
    return asyncio.create_task(work)


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until a condition is met."""
    async with asyncio.timeout(60):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


async def until_blocked(observer: Any, by: Any, *, timeout: float = 60, statement: str = "") -> int:
    """Wait until another session waits for a lock that the session of `by` holds. Returns the pid of the waiting
    session.

    `observer` is a connection or a `Database`. It polls, and each query takes its time. `statement` is a part of what the
    session runs, where a running service may wait for the same lock.
    """
    holder = by.get_server_pid()
    async with asyncio.timeout(timeout):
        while True:
            found = await observer.fetchval(
                """select pid from pg_stat_activity where datname = current_database()
                   and $1 = any (pg_blocking_pids(pid)) and strpos(query, $2) > 0
                   and application_name <> 'repacks of tests' limit 1""",
                holder,
                statement,
            )
            if found is not None:
                return int(found)
            await asyncio.sleep(0)
