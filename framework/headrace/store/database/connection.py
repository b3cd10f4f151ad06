"""The database connection: counts round trips, has its waits watched, and sends settings together with the
BEGIN of a transaction.
"""

from __future__ import annotations

import asyncio
import functools
import math
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


MAX_QUERIES = 50_000
"""The number of statements after which the pool replaces a connection. The server's memory for it grows slowly."""


SPARE_TIME = 1.0
"""How long an unused connection stays taken from the pool, in seconds. See `SpareConnections`."""


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
    _protocol: Any
    _listeners: dict[str, Any]
    _log_listeners: set[Any]
    _top_xact: Transaction | None

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

    @property
    def reusable(self) -> bool:
        """Whether the next call may use it as it is, without the pool's checks and its clean-up."""
        protocol = self._protocol
        return not (
            self.is_closed()
            or protocol.is_in_transaction()
            or self._top_xact is not None
            or protocol._is_cancelling()
            or protocol.queries_count >= MAX_QUERIES
            or self._listeners
            or self._log_listeners
        )

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
        """Roll back what is not committed, and return the connection to its pool.

        It never stays spare: user code that still has it, such as a task that a handler has left behind, could write
        into the transaction of another one. The pool makes what that code has useless.
        """
        try:
            if self._open is not None:
                transaction, self._open = self._open, None
                with anyio.fail_after(ROLLBACK_TIMEOUT, shield=True):
                    await transaction.rollback()
        except Exception:  # the connection is unusable, and closing it ends what was open on it
            self.break_off()
        finally:
            await release(self._pool, self.connection)


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

    def keep(self, connection: Any) -> bool:
        """Keep a connection after a call. Returns False if it must go through the pool."""
        if not _is_reusable(connection) or connection.opened_at <= self._expired_at:
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
