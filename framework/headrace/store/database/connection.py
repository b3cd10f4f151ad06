"""The database connection: counts round trips, has its waits watched, and sends settings together with the
BEGIN of a transaction.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import asyncpg
from asyncpg.transaction import Transaction

from headrace.store.database.keepalive import keep_alive

ROLLBACK_TIMEOUT = 10.0
"""The timeout for ending a long transaction in seconds. After it the connection is closed."""


CANCEL_TIMEOUT = 2.0
"""The timeout for cancelling a statement in seconds. The request uses another connection. If that fails too,
this connection is closed, and the server notices it.
"""

KEPT_FOR = 2.0
"""Seconds after which kept connections go back to the pool, those that are not in use."""


if TYPE_CHECKING:
    Plain = asyncpg.Connection[asyncpg.Record]
else:
    Plain = asyncpg.Connection


class StatementObserver(Protocol):
    """Learns of each statement. See `headrace.store.database.failure_detector`."""

    def sent(self, connection: Connection, statement: str) -> None: ...
    def answered(self, connection: Connection, *, succeeded: bool) -> None: ...


# Strings, quoted names and comments, which stay as they are. Handlers send statements over these connections, too.
_KEPT = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$(?:[^\W\d]\w*)?\$).*?\1|--[^\n]*|/\*.*?\*/|\bheadrace_internal\.""",
    re.DOTALL,
)


def for_grants(query: str) -> str:
    """A statement of the store for a role that uses the schema through its grants. In the schema headrace_granted it
    finds what it may use, under the same names.
    """
    if "headrace_internal." not in query:
        return query
    return _for_grants(query) if len(query) < 10_000 else _for_grants.__wrapped__(query)


@functools.lru_cache(maxsize=500)
def _for_grants(query: str) -> str:
    return _KEPT.sub(lambda found: "headrace_granted." if found[0] == "headrace_internal." else found[0], query)


def ending_when_idle(seconds: float) -> str:
    """SQL that makes the server end the transaction when it was idle for `seconds` seconds."""
    return f"set local idle_in_transaction_session_timeout = {seconds * 1000:.0f}"


class PoolCounters:
    """Statistics of the connections of one pool.

    Attributes:
        round_trips: statements that were sent, including BEGIN and COMMIT.
        waits: how often a caller had to wait for a connection, or for one of the `holds`.
        waited: the total seconds of these waits.
    """

    __slots__ = ("round_trips", "waited", "waits")

    def __init__(self) -> None:
        self.round_trips = 0
        self.waits = 0
        self.waited = 0.0


class Connection(Plain):
    """A connection of asyncpg, with the additions of this module.

    Attributes:
        opened_at: when it was opened, on the loop's clock.
        granted: whether its role uses the schema through its grants, see `for_grants`.
    """

    counters = PoolCounters()  # each pool sets its own
    granted = False
    detector: StatementObserver | None = None
    opened_at = 0.0
    _with_next = ""
    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.BaseTransport
    _addr: object

    def begin(self, counters: PoolCounters, detector: StatementObserver, *, granted: bool = False) -> None:
        """Start the measurements. Called when the connection has just been opened."""
        self.counters, self.detector, self.granted = counters, detector, granted
        self.opened_at = self._loop.time()
        keep_alive(self.socket)

    @property
    def socket(self) -> Any:
        """Its socket, or None if it is closed."""
        return self._transport.get_extra_info("socket")

    @property
    def address(self) -> object:
        """The address to which it is connected: a host as the URL names it and a port, or the path of a Unix socket."""
        return self._addr

    def send_with_next(self, query: str) -> None:
        """Send this SQL together with the next statement that has no arguments, which saves a round trip."""
        self._with_next = query

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Awaitable[str]:  # type: ignore[override]
        with_next, self._with_next = self._with_next, ""
        query = query + with_next if with_next else query
        query = for_grants(query) if self.granted else query
        return self._watched(query, super().execute(query, *args, timeout=timeout))

    def executemany(self, command: str, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        return self._watched(command, super().executemany(command, *args, **options))

    def fetch(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = for_grants(query) if self.granted else query
        return self._watched(query, super().fetch(query, *args, **options))

    def fetchrow(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = for_grants(query) if self.granted else query
        return self._watched(query, super().fetchrow(query, *args, **options))

    def fetchval(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = for_grants(query) if self.granted else query
        return self._watched(query, super().fetchval(query, *args, **options))

    async def _watched(self, statement: str, answer: Awaitable[Any]) -> Any:
        self.counters.round_trips += 1
        detector = self.detector
        if detector is None:
            return await answer
        detector.sent(self, statement)
        succeeded = False
        try:
            result = await answer
            succeeded = True
            return result
        except asyncpg.InternalClientError as error:
            # The server closed the connection, and the driver was still reading its last messages. This
            # is not an error of the caller.
            self.terminate()
            raise asyncpg.InterfaceError("the connection broke during a statement") from error
        except AttributeError as error:
            if not self.is_closed():
                raise
            # A statement with types that the driver doesn't know takes several round trips, and the
            # connection was closed between two of them.
            raise asyncpg.InterfaceError("the connection was closed during a statement") from error
        finally:
            detector.answered(self, succeeded=succeeded)

    async def _cancel(self, *waiters: Any) -> None:
        """Cancel within a short timeout. asyncpg's own limit is the timeout of a statement, and until then the
        pool lacks this connection.
        """
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT) as limit:
                await super()._cancel(*waiters)  # type: ignore[misc]
        except TimeoutError:
            pass
        if limit.expired() and not self.is_closed():
            self.terminate()


class Hold:
    """A connection that is taken from the pool for a transaction of user code. `Database.begin` makes it.

    asyncpg begins the transaction, so that its savepoints and cursors work inside.
    """

    __slots__ = ("_open", "_pool", "connection")

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
        self._pool = pool
        self._open: Transaction | None = None
        self.connection = connection

    async def begin(self, idle: float, settings: str = "") -> None:
        """Begin the transaction. The server ends it if it is idle for `idle` seconds.

        Args:
            settings: SQL that is sent with BEGIN, each statement after a semicolon.
        """
        self._open = transaction = self.connection.transaction()
        self.connection.send_with_next(ending_when_idle(idle) + settings)
        await transaction.start()

    async def commit(self) -> None:
        """Commit the transaction. After an error that is not from the server, it is unknown whether it was
        committed.
        """
        assert self._open is not None
        transaction, self._open = self._open, None
        await transaction.commit()

    def break_off(self) -> None:
        """Close the connection at once. The server rolls back what is open on it."""
        self._open = None
        with suppress(asyncpg.InterfaceError):  # the connection is closed already and has left its pool
            self.connection.terminate()

    async def end(self) -> None:
        """Roll back what is not committed, and return the connection to its pool."""
        try:
            if self._open is not None:
                transaction, self._open = self._open, None
                with anyio.fail_after(ROLLBACK_TIMEOUT, shield=True):
                    await transaction.rollback()
        except Exception:  # the connection is unusable, and closing it ends what was open on it
            self.break_off()
        finally:
            await release(self._pool, self.connection)


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


def unused(connection: Any) -> bool:
    """Whether a connection of a pool is open, and the next caller may use it as it is: no transaction is open on it, and
    no cancellation is under way."""
    with suppress(asyncpg.InterfaceError, AttributeError):  # it is closed already and has left its pool
        return not (connection.is_closed() or connection.is_in_transaction() or connection._protocol._is_cancelling())
    return False


class KeptConnections:
    """Connections of a pool that are kept at hand after a call.

    To take a connection from the driver's pool and to return it costs a task, two timeouts and a timer, which is more
    than a short statement itself. So the next call gets the connection of one that has just ended. A few seconds later
    it goes back to the pool, which replaces old connections and closes idle ones.
    """

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool
        self._kept: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> Any:
        """Return the connection that was used last, or None if none is kept."""
        return self._kept.pop() if self._kept else None

    def keep(self, connection: Any) -> None:
        """Keep a connection on which nothing is open."""
        self._kept.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_FOR, self._begin_giving_back)

    async def clear(self) -> None:
        """Return all to the pool. Call it before the pool is closed, and if they may have died."""
        kept, self._kept = self._kept, []
        await asyncio.gather(*(release(self._pool, connection) for connection in kept), return_exceptions=True)

    def close(self) -> None:
        """Forget all, after their pool has closed them."""
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_giving_back(self) -> None:
        self._timer = None
        if self._kept:
            self._task = asyncio.get_running_loop().create_task(self.clear())
