"""Runs reads at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def together(*reads: Callable[[], Awaitable[None]]) -> None:
    """Run them at the same time, and return when all have ended.

    Raises:
        The first error that one of them raises, as it is and in no group. The others are cancelled.
    """
    failures: list[Exception] = []

    async def run(read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for read in reads:
            group.start_soon(run, read)
    if failures:
        raise failures[0]
