"""All reaches into private attributes of asyncpg, each with its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction, TransactionState

from headrace.store.connections.built_in_types import Rows, described
from headrace.store.connections.statements import bound

CANCEL_TIMEOUT = 2.0
"""The timeout for cancelling a statement in seconds. The request uses another connection. If that fails too,
this connection is closed, and the server notices it.
"""

if TYPE_CHECKING:
    Plain = asyncpg.Connection[asyncpg.Record]
else:
    Plain = asyncpg.Connection


class DriverConnection(Plain):
    """A connection of asyncpg that shows its state, runs statements in one round trip, and cancels within a short timeout."""

    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.BaseTransport
    _addr: object
    _protocol: Any
    _listeners: dict[str, Any]
    _log_listeners: set[Any]
    _top_xact: Transaction | None

    # asyncpg has no public access to any of these.

    @property
    def socket(self) -> Any:
        """Its socket, or None if it is closed."""
        return self._transport.get_extra_info("socket")

    @property
    def descriptor(self) -> int | None:
        """The number of its socket, None if that is closed."""
        return None if self.is_closed() or self._transport.is_closing() else int(self.socket.fileno())

    @property
    def address(self) -> object:
        """The address to which it is connected: a host as the URL names it and a port, or the path of a Unix socket."""
        return self._addr

    @property
    def in_any_transaction(self) -> bool:
        """Whether a transaction is open, on the server or for asyncpg alone."""
        return bool(self._top_xact or self._protocol.is_in_transaction())

    @property
    def cancelling(self) -> bool:
        """Whether a statement is being cancelled."""
        return bool(self._protocol._is_cancelling())

    @property
    def queries_count(self) -> int:
        """How many queries it has sent."""
        return int(self._protocol.queries_count)

    @property
    def has_listeners(self) -> bool:
        """Whether user code has added listeners."""
        return bool(self._listeners or self._log_listeners)

    async def fetch_after(
        self, before: Sequence[tuple[str, Sequence[str | None]]], query: str, timeout: float | None = None
    ) -> Any:
        """Run statements that return no rows, and then a query, in one round trip. Returns the rows of the query.

        asyncpg has no pipeline. But it takes the answers of messages that were written before its own, up to the next
        ReadyForQuery. One write has the statements, without a Sync, right before the query that asyncpg sends.

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
                [bound((await self._get_statement(text, timeout)).name, given) for text, given in before]  # type: ignore[attr-defined]
            )
            rows, _ = await self._do_execute(query, execute, protocol._get_timeout(timeout))  # type: ignore[attr-defined]
        return rows

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> tuple[Rows, Any]:
        """Describe types that asyncpg has no codecs for, see `built_in_types`."""
        return await described(typeoids, partial(super()._introspect_types, typeoids, timeout))  # type: ignore[misc]

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


def connection_in(proxy: Any) -> Any | None:
    """Return the connection in a proxy of the pool. None if it was closed, and has left its pool.

    The proxy passes on the methods of the connection, which raise when it has none. It has no way to ask.
    """
    return proxy._con


def in_new_proxy(proxy: Any) -> Any:
    """Return the connection in a new proxy. The old proxy becomes useless, with its cursors and prepared statements.

    asyncpg's pool does the same when a connection is returned and taken again, with a task and several timers each time.
    """
    connection, holder = proxy._con, proxy._holder
    connection._on_release()
    proxy._detach()
    holder._proxy = fresh = PoolConnectionProxy(holder, connection)
    return fresh


def started_transaction(proxy: Any) -> Transaction:
    """Return a transaction of asyncpg that counts as started. Its `start` would send a BEGIN, which was sent already."""
    transaction: Transaction = proxy.transaction()
    proxy._con._top_xact = transaction
    transaction._state = TransactionState.STARTED  # type: ignore[attr-defined]
    return transaction


def note_committed(connection: Any, transaction: Transaction) -> None:
    """Count a transaction as committed. Its `commit` would send a COMMIT, which was sent already."""
    connection._top_xact = None
    transaction._state = TransactionState.COMMITTED  # type: ignore[attr-defined]
