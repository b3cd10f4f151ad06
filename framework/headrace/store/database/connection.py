"""The database connection: counts round trips, has its waits watched, and sends settings together with the
BEGIN of a transaction.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction, TransactionState

from headrace.store.database.keepalive import keep_alive

ROLLBACK_TIMEOUT = 10.0
"""The timeout for ending a long transaction in seconds. After it the connection is closed."""


CANCEL_TIMEOUT = 2.0
"""The timeout for cancelling a statement in seconds. The request uses another connection. If that fails too,
this connection is closed, and the server notices it.
"""


MAX_QUERIES = 50_000
"""The number of statements after which the pool replaces a connection. The server's memory for it grows slowly."""


ONE_PACKET = 1000
"""The number of characters of arguments that are sent with prepared statements in one packet, with room for the rest."""


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


@functools.lru_cache(maxsize=100)
def ending_when_idle(seconds: float) -> str:
    """SQL that makes the server end the transaction when it was idle for `seconds` seconds."""
    return f"set local idle_in_transaction_session_timeout = {seconds * 1000:.0f}"


# Statements that the server accepts only before the first query of a transaction.
_BEFORE_QUERIES = re.compile(r"\bset\s+(?:local\s+|session\s+)?transaction|\bisolation\s+level\b", re.IGNORECASE)

# As text, because not every version of asyncpg knows xid8.
_ASSIGN = "select pg_catalog.pg_current_xact_id()::text::bigint"


class AssignedId:
    """The id that a transaction got at its BEGIN, by a query.

    Attributes:
        xid: the id. None after the transaction has begun anew, without an id.
        statements: BEGIN and the statements that followed it.
        queries: how many queries the connection had sent then.
    """

    __slots__ = ("queries", "statements", "xid")

    def __init__(self, xid: int, statements: tuple[str, ...], queries: int) -> None:
        self.xid: int | None = xid
        self.statements = statements
        self.queries = queries


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
    _assigned: AssignedId | None = None  # until the first statement of its transaction
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

    async def begin_assigned(self, settings: tuple[str, ...]) -> AssignedId:
        """Begin a transaction and assign its id, in one round trip.

        The connection must keep prepared statements, as it does without a pooler. If the first statement is one that must
        precede all queries, the transaction is begun anew without an id.

        Args:
            settings: statements that follow the BEGIN. They return no rows.
        """
        statements = ("begin", *settings)
        rows = await self._watched(_ASSIGN, self._fetch_after([(one, ()) for one in statements], _ASSIGN))
        self._assigned = assigned = AssignedId(rows[0][0], statements, self._protocol.queries_count)
        return assigned

    def run_and_commit(self, query: str, arguments: Sequence[str | None], timeout: float) -> Awaitable[Any]:
        """Run a query that returns no rows, and COMMIT, in one round trip. The connection must keep prepared statements.

        The server must not get the query without the COMMIT, because it would keep the locks of the query while it waits. If
        both fit in one packet, they are prepared statements. Otherwise they are one message, a text without arguments.

        Args:
            query: its parameters are `$1` to `$9`.
            arguments: in Postgres's text format, None for NULL.
            timeout: in seconds.
        """
        query = for_grants(query) if self.granted else query
        if sum(len(text) for text in arguments if text is not None) > ONE_PACKET:
            literals = ["null" if text is None else "'" + text.replace("'", "''") + "'" for text in arguments]
            query = re.sub(r"\$([1-9])", lambda found: literals[int(found[1]) - 1], query)
            return self._watched("commit", super().execute(f"{query}; commit", timeout=timeout))
        # An empty query follows, since asyncpg has to send one. It is written last, and by itself.
        return self._watched("commit", self._fetch_after([(query, arguments), ("commit", ())], "", timeout))

    async def _fetch_after(
        self, before: Sequence[tuple[str, Sequence[str | None]]], query: str, timeout: float | None = None
    ) -> Any:
        """Run statements that return no rows, and then a query, in one round trip. Returns the rows of the query.

        asyncpg has no pipeline. But it takes the answers of messages that were written before its own, up to the next
        ReadyForQuery. So one write has the statements, without a Sync, right before the query that asyncpg sends.

        Args:
            before: each statement with its arguments, in Postgres's text format.
        """
        protocol = self._protocol

        async def execute(prepared: Any, timeout: float | None) -> Any:
            sent = protocol.queries_count
            self._transport.write(messages)  # type: ignore[attr-defined]
            try:
                return await protocol.bind_execute(
                    state=prepared, args=(), portal_name="", limit=0, return_extra=False, timeout=timeout
                )
            finally:
                if protocol.queries_count == sent:  # asyncpg refused, and the server waits for the end of the message
                    self.terminate()

        with self._stmt_exclusive_section:  # type: ignore[attr-defined]
            messages = b"".join(
                [_bound((await self._get_statement(text, timeout)).name, given) for text, given in before]  # type: ignore[attr-defined]
            )
            rows, _ = await self._do_execute(query, execute, protocol._get_timeout(timeout))  # type: ignore[attr-defined]
        return rows

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

    def copy_from_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_from_table(*args, **options)

    def copy_from_query(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_from_query(*args, **options)

    def copy_to_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_to_table(*args, **options)

    def copy_records_to_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_records_to_table(*args, **options)

    async def _begin_anew(self, assigned: AssignedId) -> None:
        """Begin the transaction without an id, if nothing was done in it yet. asyncpg doesn't count a COPY."""
        if self._protocol.queries_count == assigned.queries:
            assigned.xid = None
            self.counters.round_trips += 1
            await super().execute("; ".join(("rollback", *assigned.statements)))

    async def _watched(self, statement: str, answer: Coroutine[Any, Any, Any]) -> Any:
        if (assigned := self._assigned) is not None:
            self._assigned = None
            if _BEFORE_QUERIES.search(statement) is not None:
                try:
                    await self._begin_anew(assigned)
                except BaseException:
                    answer.close()
                    raise
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


def _bound(statement: str, arguments: Sequence[str | None]) -> bytes:
    """Bind and Execute for a prepared statement, without a Sync."""
    values = [b"\xff\xff\xff\xff" if text is None else _with_length(text.encode()) for text in arguments]
    body = b"\0%s\0\0\0%s%s\0\0" % (statement.encode(), len(values).to_bytes(2, "big"), b"".join(values))
    return b"B%s%sE\0\0\0\t\0\0\0\0\0" % ((len(body) + 4).to_bytes(4, "big"), body)


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


class Hold:
    """A connection that is taken from the pool for a transaction of user code. `Database.begin` makes it.

    The transaction is one of asyncpg, so that its savepoints and cursors work inside.

    Attributes:
        pool: the pool of the connection.
        connection: the connection, in a proxy that no other transaction gets.
    """

    __slots__ = ("_assigned", "_open", "connection", "pool")

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
        self.pool = pool
        self._open: Transaction | None = None
        self._assigned: AssignedId | None = None
        self.connection = connection

    @property
    def xid(self) -> int | None:
        """The transaction's id, if it was assigned at the beginning."""
        return None if self._assigned is None else self._assigned.xid

    async def begin(self, settings: tuple[str, ...], *, assign: bool = False) -> None:
        """Begin the transaction.

        Args:
            settings: statements that are sent with BEGIN, at least one.
            assign: assign the transaction's id, for `xid`. It takes no further round trip.
        """
        self._open = transaction = self.connection.transaction()
        if assign:
            connection: Connection = self.connection._con
            connection._top_xact = transaction
            transaction._state = TransactionState.STARTED
            self._assigned = await connection.begin_assigned(settings)
        else:
            self.connection.send_with_next("; ".join(settings))
            await transaction.start()

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        inner = self.connection._con  # None if it was closed, and has left its pool
        return inner is not None and not inner.is_closed()

    @property
    def in_transaction(self) -> bool:
        """Whether the connection is open and the server is in a transaction on it, also after a statement has failed."""
        return self.connected and bool(self.connection.is_in_transaction())

    async def commit(self) -> None:
        """Commit the transaction. After an error that is not from the server, it is unknown whether it was
        committed.
        """
        assert self._open is not None
        transaction, self._open = self._open, None
        await transaction.commit()

    async def run_and_commit(self, last: str, arguments: Sequence[str | None], timeout: float) -> None:
        """Run a query that returns no rows as the last statement, and commit, in one round trip. If the statement fails,
        nothing is committed.

        The server gets both at the same time. It skips the COMMIT after an error, and it never waits for the COMMIT while
        the statement holds locks. After an error that is not from the server, it is unknown whether it was committed.

        Args:
            arguments: in Postgres's text format, None for NULL.
            timeout: in seconds.
        """
        transaction, connection = self._open, self.connection._con
        assert transaction is not None
        if connection is None:  # it was closed, and has left its pool
            raise asyncpg.InterfaceError("the connection is closed")
        await connection.run_and_commit(last, arguments, timeout)
        self._open = connection._top_xact = None
        transaction._state = TransactionState.COMMITTED  # type: ignore[attr-defined]

    def break_off(self) -> None:
        """Close the connection at once. The server rolls back what is open on it."""
        self._open = None
        with suppress(asyncpg.InterfaceError):  # the connection is closed already and has left its pool
            self.connection.terminate()

    async def end(self) -> None:
        """Roll back what is not committed. Closes the connection if that fails."""
        transaction, self._open = self._open, None
        if transaction is None:
            return
        try:
            with anyio.fail_after(ROLLBACK_TIMEOUT, shield=True):
                await transaction.rollback()
        except Exception:  # the connection is unusable, and closing it ends what was open on it
            self.break_off()


def renewed(connection: Any) -> Any:
    """The same connection in a new proxy, for another user. The old proxy becomes useless, as well as the cursors and
    prepared statements that user code has made with it. A task that a handler has left behind could otherwise write into
    the transaction of another one.

    asyncpg's pool does the same when a connection is returned and taken again, with a task and several timers each time.

    Args:
        connection: the connection, as the pool gave it. One that has to go through the pool is returned as it is.
    """
    if not _is_reusable(connection):
        return connection
    inner, holder = connection._con, connection._holder
    inner._on_release()
    connection._detach()
    holder._proxy = fresh = PoolConnectionProxy(holder, inner)
    return fresh


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
