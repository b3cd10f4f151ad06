"""Connections between two calls."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import asyncpg

from headrace.store.connections.connection import CANCEL_TIMEOUT, Connection

SPARE_TIME = 1.0
"""How long an unused connection stays taken from the pool, in seconds. See `SpareConnections`."""


class SpareConnections:
    """Connections that stay taken from their pool after a call, for the next one.

    A connection that goes through the pool for each call costs three times as much processor time as a short
    statement. A connection that is unused for `SPARE_TIME` seconds is returned to the pool, which closes it later.

    Args:
        pool: the pool of the connections.
    """

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._expired_at = -math.inf  # connections from before then are replaced by the pool
        self._spare: list[tuple[float, Any]] = []  # since when each is unused, the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._spare)

    def take(self) -> Any:
        """The connection that was used last, or None if there is none."""
        while self._spare:
            _, connection = self._spare.pop()
            if _is_reusable(connection):
                return connection
            with suppress(asyncpg.InterfaceError):  # it has left its pool
                connection.terminate()
        return None

    def must_replace(self, connection: Any) -> bool:
        """Whether a connection in use has to go through the pool after its call, which replaces it."""
        expired: bool = connection.opened_at <= self._expired_at
        return expired

    def keep(self, connection: Any) -> bool:
        """Keep a connection after a call. Returns False if it must go through the pool."""
        if not _is_reusable(connection) or self.must_replace(connection):
            return False
        self._spare.append((self._loop.time(), connection))
        if self._timer is None:
            self._timer = self._loop.call_later(SPARE_TIME, self._return_unused)
        return True

    async def return_all(self) -> None:
        """Return all of them to the pool, and those that are in use after their calls."""
        self._expired_at = self._loop.time()
        self.forget()
        spare, self._spare = self._spare, []
        for _, connection in spare:
            await release(self._pool, connection)

    def forget(self) -> None:
        """Stop the timer, because the pool closes its connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _return_unused(self) -> None:
        before = self._loop.time() - SPARE_TIME / 2
        unused = [connection for since, connection in self._spare if since <= before]
        del self._spare[: len(unused)]
        for connection in unused:
            task = self._loop.create_task(release(self._pool, connection))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        self._timer = self._loop.call_later(SPARE_TIME, self._return_unused) if self._spare else None


def _is_reusable(connection: Any) -> bool:
    inner: Connection | None = connection._con  # None if it was closed, and has left its pool
    return inner is not None and inner.reusable


async def release(pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
    """Return a connection to its pool. If that takes more than some seconds, because the network does not
    respond, close it.

    Close it, too, if a call was interrupted inside a transaction: a cancelled BEGIN may have begun one that nobody ends.
    asyncpg would roll it back, after a warning of its own about every such connection.
    """
    with suppress(asyncpg.InterfaceError):  # the connection is closed already and has left its pool
        if not connection.is_closed() and connection.is_in_transaction():
            connection.terminate()
    with suppress(TimeoutError):
        await pool.release(connection, timeout=CANCEL_TIMEOUT)
