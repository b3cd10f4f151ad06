"""Connections that are taken from the pool for transactions of user code."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio
import asyncpg
from asyncpg.transaction import Transaction

from headrace.store.connections.connection import AssignedId, Connection
from headrace.store.connections.driver import connection_in, in_new_proxy, note_committed, started_transaction
from headrace.store.connections.unused import Unused

ROLLBACK_TIMEOUT = 10.0
"""The timeout for ending a long transaction in seconds. After it the connection is closed."""


UNUSED = 0.02
"""How long a transaction that was begun ahead may wait for a handler, in seconds. See `BegunAhead`."""

_STALE = 0.2
"""Seconds. A handler that blocks the event loop keeps a transaction waiting for longer than `UNUSED`, and the server ends
one that has idled for too long. So an older one is not used."""


class Pool(Protocol):
    """Where a transaction's connection is returned. See `ConnectionPool`."""

    async def release(self, connection: Any) -> None: ...
    def may_begin_ahead(self, hold: Hold) -> bool: ...
    def keep_begun(self, hold: Hold) -> bool: ...


class Hold:
    """A connection that is taken from the pool for a transaction of user code. `Database.begin` makes it.

    The transaction is one of asyncpg, so that its savepoints and cursors work inside.

    Attributes:
        connections: the pool of the connection.
        settings: the statements that were sent with its BEGIN.
        begun_ahead: whether its transaction is committed and the next one is begun, for the next handler.
        connection: the connection, in a proxy that no other transaction gets.
    """

    __slots__ = ("_assigned", "_open", "_renewed", "begun_ahead", "connection", "connections", "settings")

    def __init__(self, connections: Pool, connection: Any) -> None:
        self.connections = connections
        self._open: Transaction | None = None
        self._assigned: AssignedId | None = None
        self._renewed = False  # whether user code never had the connection in its present proxy
        self.connection = connection
        self.settings: tuple[str, ...] = ()
        self.begun_ahead = False

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
        self.settings = settings
        if assign:
            self._open = started_transaction(self.connection)
            self._assigned = await self.connection.begin_assigned(settings)
        else:
            self._open = transaction = self.connection.transaction()
            self.connection.send_with_next("; ".join(settings))
            await transaction.start()

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        inner = connection_in(self.connection)
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
        await self._end_by(transaction.commit)

    async def run_and_commit(
        self, last: str, arguments: Sequence[str | None], timeout: float, *, begin_next: bool = False
    ) -> None:
        """Run a query that returns no rows as the last statement, and commit, in one round trip. If the statement fails,
        nothing is committed.

        The server gets both at the same time. It skips the COMMIT after an error, and it never waits for the COMMIT while
        the statement holds locks. After an error that is not from the server, it is unknown whether it was committed.

        Args:
            arguments: in Postgres's text format, None for NULL.
            timeout: in seconds.
            begin_next: begin the next transaction in the same round trip, with the same settings and an id, see
                `begun_ahead`. After any error it is unknown whether this one was committed.
        """
        inner: Connection | None = connection_in(self.connection)
        assert self._open is not None
        if inner is None:  # it was closed, and has left its pool
            raise asyncpg.InterfaceError("the connection is closed")
        if inner.unblemished:
            # What user code still has of the connection is useless from here on. Between the COMMIT's answer and whoever waits
            # for it, it could write into the next transaction.
            self.connection, self._renewed = in_new_proxy(self.connection), True
            self._open = started_transaction(self.connection)
        if begin_next:
            assigned = await inner.run_commit_and_begin(last, arguments, self.settings, timeout)
            if assigned is not None:
                self._assigned, self.begun_ahead = assigned, True
                return
        else:
            await inner.run_and_commit(last, arguments, timeout)
        transaction, self._open = self._open, None
        note_committed(inner, transaction)

    def released(self) -> Any:
        """The connection for another user, when the transaction has ended. See `renewed`."""
        return self.connection if self._renewed else renewed(self.connection)

    def break_off(self) -> None:
        """Close the connection immediately. The server rolls back what is open on it."""
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
                await self._end_by(transaction.rollback)
        except Exception:  # the connection is unusable, and closing it ends what was open on it
            self.break_off()

    async def _end_by(self, end: Callable[[], Awaitable[None]]) -> None:
        inner: Connection | None = connection_in(self.connection)  # None if it was closed, and then `end` raises
        await (end() if inner is None else inner.end(end))


def renewed(connection: Any) -> Any:
    """The same connection in a new proxy, for another user. The old proxy becomes useless, as well as the cursors and
    prepared statements that user code has made with it. A task that a handler has left behind could otherwise write into
    the transaction of another one.

    Args:
        connection: the connection, as the pool gave it. One that has to go through the pool is returned as it is.
    """
    inner: Connection | None = connection_in(connection)
    return in_new_proxy(connection) if inner is not None and inner.reusable else connection


class BegunAhead:
    """Transactions that were begun together with the COMMIT of the one before, until the next handler takes them.

    A transaction that no handler takes for `UNUSED` seconds is ended, since it has a connection, and an id that holds back
    the cleaning of dead rows.

    Args:
        end: ends a transaction and returns its connection.
    """

    def __init__(self, end: Callable[[Hold], Coroutine[Any, Any, None]]) -> None:
        self._unused: Unused[Hold] = Unused(lambda: UNUSED, functools.partial(_given_up, end))

    def __len__(self) -> int:
        return len(self._unused.things)

    def keep(self, hold: Hold) -> None:
        """Keep a transaction that was begun ahead."""
        self._unused.keep(hold)

    def take(self, settings: tuple[str, ...]) -> Hold | None:
        """Take a transaction with these settings, the newest. Returns None if there is none."""
        holds = self._unused.things
        for place in range(len(holds) - 1, -1, -1):
            since, hold = holds[place]
            if hold.settings == settings:
                del holds[place]
                if hold.in_transaction and time.monotonic() < since + _STALE:
                    hold.begun_ahead = hold._renewed = False
                    return hold
                self._unused.end_soon(hold)
        return None

    def end_all(self) -> None:
        """End all of them, since something else needs their connections."""
        for hold in self._unused.take_all():
            self._unused.end_soon(hold)


async def _given_up(end: Callable[[Hold], Coroutine[Any, Any, None]], hold: Hold) -> None:
    hold.begun_ahead = False
    await end(hold)
