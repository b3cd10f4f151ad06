"""The open connections of a database: at most so many, some of which stay taken between two calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from headrace.model.errors import ConfigurationError
from headrace.store.connections.connection import Connection, PoolCounters
from headrace.store.connections.driver import connection_in
from headrace.store.connections.hold import BegunAhead, Hold
from headrace.store.connections.spare import SpareConnections, release

PATIENCE = 0.005
"""Seconds that a call waits for a connection in use before it opens another. A short call takes less than that, and the server
takes as much processor time for a new connection and its first call as for ten others. If all calls that a process begins with
opened one, they would wait for each other."""

OPENED_AT_A_TIME = 2
"""The number of connections that are opened at the same time, for the same reason."""


class ConnectionPool:
    """The connections of asyncpg's pool, with spare ones for the next call and with transactions that were begun ahead.

    It belongs to the event loop that runs when it is made.

    Args:
        pool: asyncpg's pool.
        max_connections: its largest size.
        timeout: how long a call waits for a connection, in seconds.
        counters: statistics of the connections.
        end: ends a transaction that was begun ahead and returns its connection.

    Attributes:
        waiting: how many callers wait for a connection.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        max_connections: int,
        timeout: float,
        counters: PoolCounters,
        end: Callable[[Hold], Coroutine[Any, Any, None]],
    ) -> None:
        self._pool = pool
        self._max = max_connections
        self._timeout = timeout
        self._counters = counters
        self._spare = SpareConnections(pool)
        self._begun_ahead = BegunAhead(end)
        self._in_use = 0
        self._opening = 0
        self._wanting: deque[asyncio.Future[None]] = deque()  # callers that wait for others to open or release one
        self._closed = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.waiting = 0

    # --- connections

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection. It is closed instead of returned if the driver can't use it any more."""
        connection = await self.acquire()
        try:
            yield connection
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            await self.release(connection)

    async def acquire(self) -> Any:
        """Take a connection. Return it with `release`. Raises TimeoutError if none becomes free in time."""
        self._in_use += 1  # from before the connection is there, so that it counts the callers that wait, too
        if (connection := self._spare.take()) is not None:
            return connection
        try:
            if self._in_use <= self._max:
                return await self._take_or_open()
            self.end_begun_ahead()
            with self.wait():
                return await self._pool.acquire(timeout=self._timeout)
        except BaseException:
            self._in_use -= 1
            raise

    async def release(self, connection: Any) -> None:
        """Return a connection. It goes through asyncpg's pool if another caller waits there."""
        waits = self._in_use > self._max
        try:
            if waits or self._closed or not self._spare.keep(connection):
                await release(self._pool, connection)
        finally:
            self._in_use -= 1
            self._wake_one()

    async def _take_or_open(self) -> Any:
        """Return a connection of the pool, or one that is released before another is opened. Raises TimeoutError."""
        began = self._loop.time()
        patience = PATIENCE if self._pool.get_size() else 0.0
        while not self._pool.get_idle_size():
            waited = self._loop.time() - began
            if waited >= patience and self._opening < OPENED_AT_A_TIME:
                break
            if waited >= self._timeout:
                raise TimeoutError
            await self._wait_for_others((patience if waited < patience else self._timeout) - waited)
            if (connection := self._spare.take()) is not None:
                return connection
        self._opening += 1
        try:
            return await self._pool.acquire(timeout=self._timeout)
        finally:
            self._opening -= 1
            self._wake_one()

    async def _wait_for_others(self, seconds: float) -> None:
        """Wait until another caller has opened or released a connection, at most for some seconds."""
        waiter = self._loop.create_future()
        self._wanting.append(waiter)
        timer = self._loop.call_later(seconds, _end, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._wake_one()
            raise
        finally:
            timer.cancel()

    def _wake_one(self) -> None:
        while self._wanting and not _end(self._wanting.popleft()):
            pass

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a caller that waits for a connection, or for one of the transactions that may be open, and its time."""
        self._counters.waits += 1
        self.waiting += 1
        since = time.monotonic()
        try:
            yield
        finally:
            self.waiting -= 1
            self._counters.waited += time.monotonic() - since

    # --- transactions that were begun ahead

    def may_begin_ahead(self, hold: Hold) -> bool:
        """Whether a transaction may be begun ahead on the connection of this one. Not if something else waits for the
        connection, or if it has to be replaced."""
        inner: Connection | None = connection_in(hold.connection)
        return (
            not self.waiting
            and not self._closed
            and inner is not None
            and inner.unblemished
            and not self._spare.must_replace(inner)
        )

    def keep_begun(self, hold: Hold) -> bool:
        """Keep a transaction that was begun ahead for the next `take_begun`. Returns False if the pool is closed."""
        if not self._closed:
            self._begun_ahead.keep(hold)
        return not self._closed

    def take_begun(self, settings: tuple[str, ...]) -> Hold | None:
        """Take a transaction that was begun ahead with these settings. None if there is none."""
        return self._begun_ahead.take(settings)

    def end_begun_ahead(self) -> None:
        """End the transactions that no handler has yet, since their connections are needed."""
        self._begun_ahead.end_all()

    # --- life

    def check_loop(self) -> None:
        """Raise `ConfigurationError` in another event loop than its own. Its connections can't be used there, and an
        attempt would break one that others use."""
        # A thread runs one loop at a time. To ask for the running loop is a system call in Python 3.11.
        if self._loop.is_running() and threading.get_ident() == self._thread:
            return
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "The app was connected in another event loop. Call it there, from a thread with anyio.from_thread.run(app.publish, …)"
                " or asyncio.run_coroutine_threadsafe(app.publish(…), loop).result(), or connect another app in this loop."
            )

    async def expire(self) -> None:
        """Replace all connections: those that are in use after their calls."""
        await self._pool.expire_connections()
        self.end_begun_ahead()
        await self._spare.return_all()

    def terminate(self) -> None:
        """Close all connections immediately, including those in use."""
        self._close()
        self._spare.forget()
        self._pool.terminate()

    async def drain(self) -> None:
        """Close each connection once it is not in use."""
        self._close()
        await self._spare.return_all()
        await self._pool.close()

    def _close(self) -> None:
        self.end_begun_ahead()
        self._closed = True

    # --- statistics

    @property
    def open(self) -> int:
        """The number of open connections."""
        return self._pool.get_size()

    @property
    def idle(self) -> int:
        """The number of connections that no call uses."""
        return self._pool.get_idle_size() + len(self._spare)

    @property
    def begun(self) -> int:
        """The number of transactions that were begun ahead, and that no handler has yet."""
        return len(self._begun_ahead)


def _end(waiter: asyncio.Future[None]) -> bool:
    """End the wait of a caller. Returns False if it had ended already."""
    if waiter.done():
        return False
    waiter.set_result(None)
    return True
