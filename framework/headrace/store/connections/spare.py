"""Connections between two calls."""

from __future__ import annotations

import asyncio
import functools
import math
from contextlib import suppress
from typing import Any

import asyncpg

from headrace.model.clock import suspension_clock
from headrace.store.connections.connection import Connection
from headrace.store.connections.driver import CANCEL_TIMEOUT, connection_in
from headrace.store.connections.unused import Unused

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
        self._unused: Unused[Any] = Unused(lambda: SPARE_TIME, functools.partial(release, pool))

    def __len__(self) -> int:
        return len(self._unused.things)

    def take(self) -> Any:
        """The connection that was used last, or None if there is none."""
        spare = self._unused.things
        while spare:
            _, connection = spare.pop()
            inner: Connection | None = connection_in(connection)
            if inner is not None and not inner.is_closed():  # nothing else can have changed since `keep`
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
        self._unused.keep(connection)
        return True

    async def return_all(self) -> None:
        """Return all of them to the pool, and those that are in use after their calls."""
        self._expired_at = suspension_clock()
        self.forget()
        for connection in self._unused.take_all():
            await release(self._pool, connection)

    def forget(self) -> None:
        """Stop the timer, because the pool closes its connections."""
        self._unused.forget()


def _is_reusable(connection: Any) -> bool:
    inner: Connection | None = connection_in(connection)
    return inner is not None and inner.reusable


async def release(pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
    """Return a connection to its pool. If that takes more than some seconds, because the network does not
    respond, close it.

    Close it, too, if a call was interrupted inside a transaction: a cancelled BEGIN may have begun one that nobody ends.
    asyncpg would roll it back, after a warning of its own about every such connection. And close it if user code
    has altered it for good, see `Connection.altered`.

    If its return fails, it is closed, or was closed meanwhile with its pool. The call that used it has succeeded.
    """
    with suppress(asyncpg.InterfaceError):  # the connection is closed already and has left its pool
        if not connection.is_closed() and (connection.altered or connection.is_in_transaction()):
            connection.terminate()
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InternalClientError):
        await pool.release(connection, timeout=CANCEL_TIMEOUT)
