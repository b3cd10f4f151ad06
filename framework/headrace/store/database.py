"""Connections to Postgres: a bounded pool, poolers noticed, errors translated at this one boundary.

Nothing here needs a session: no session-level advisory locks, no `SET` that outlives its transaction. So a transaction-pooling
pgbouncer may stand between. Behind one, prepared statements can't be kept, and each call runs in an explicit transaction, so
that its parse and its execution meet the same server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import asyncpg

from headrace.model.errors import ConfigurationError, FilterTooSlow, StoreUnavailable
from headrace.store.translate import translated

CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 60.0

OLDEST_POSTGRES = 14  # the first with multiranges


class Executor(Protocol):
    """What the verbs run on: a `Database`, or a connection of the user's that is inside a transaction."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, /, *args: Any) -> Any: ...
    async def fetchval(self, query: str, /, *args: Any) -> Any: ...


# A call that has to be a transaction may freeze inside it, with its process, and holds locks that others wait for: a
# consumer's, or rows of leases. Then the server ends it. There is nothing in it to wait for, so this is long.
_BRIEFLY = "set local idle_in_transaction_session_timeout = '5s'"


# What the server says when another process has just upgraded our functions and their types, and a call was looking them up:
# no such relation (by its OID), type or function. The call has done nothing, and finds the new ones when it is made again.
_SWEPT_AWAY = frozenset(("XX000", "42704", "42883", "42P01"))


async def _keep_as_is(_: Any) -> None:
    """A pool's reset of returned connections. We change no session state, so a round trip for it would be wasted."""


class Database:
    """A pool of connections to one database.

    Args:
        dsn: a Postgres URL, as libpq has them.
        max_connections: the pool's bound.
        application_name: how the connections show in `pg_stat_activity`.
    """

    def __init__(self, dsn: str, *, max_connections: int = 10, application_name: str = "headrace") -> None:
        self.dsn = dsn
        self.max_connections = max_connections
        self.application_name = application_name
        self.pooled = False
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, or `ConfigurationError` when the DSN can't ever work."""
        if self._pool is not None:
            return
        with translated(self.dsn):
            probe = await self.connect(statement_cache_size=0)
            try:
                await self._look_around(probe)
            finally:
                await probe.close(timeout=CONNECT_TIMEOUT)
            self._pool = await asyncpg.create_pool(
                self.dsn,
                min_size=0,
                max_size=self.max_connections,
                reset=_keep_as_is,
                statement_cache_size=0 if self.pooled else 200,
                max_cached_statement_lifetime=0,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                server_settings={"application_name": self.application_name},
            )

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """A connection outside the pool; the caller closes it. Raises asyncpg's own errors."""
        return await asyncpg.connect(
            self.dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=COMMAND_TIMEOUT,
            server_settings={"application_name": self.application_name},
            **options,
        )

    async def _look_around(self, probe: asyncpg.Connection[asyncpg.Record]) -> None:
        version = probe.get_server_version().major
        if version < OLDEST_POSTGRES:
            raise ConfigurationError(
                f"The server is PostgreSQL {version}, and Headrace needs {OLDEST_POSTGRES} or newer (it uses multiranges)."
            )
        async with probe.transaction():
            backend = await probe.fetchval("select pg_backend_pid()")
        # A pooler answers the handshake itself, with a process id of its own making.
        self.pooled = backend != probe.get_server_pid()

    async def close(self) -> None:
        """Close every connection, those in use included, after at most a few seconds."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def drain(self) -> None:
        """Close every connection once it is not in use."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with translated(self.dsn):
                await pool.close()

    async def fetch(self, query: str, /, *args: Any) -> list[asyncpg.Record]:
        return await self._run(asyncpg.Connection.fetch, query, args)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any) -> Any:
        return await self._run(asyncpg.Connection.fetchrow, query, args)

    async def fetchval(self, query: str, /, *args: Any) -> Any:
        return await self._run(asyncpg.Connection.fetchval, query, args)

    async def _run(self, method: Callable[..., Any], query: str, args: tuple[Any, ...]) -> Any:
        with translated(self.dsn):
            try:
                return await self._call(method, query, args)
            except asyncpg.PostgresError as error:
                if error.sqlstate not in _SWEPT_AWAY:
                    raise
            return await self._call(method, query, args)

    async def _call(self, method: Callable[..., Any], query: str, args: tuple[Any, ...]) -> Any:
        async with self._connection() as connection:
            if not self.pooled:
                return await method(connection, query, *args)
            async with connection.transaction():
                await connection.execute(_BRIEFLY)
                return await method(connection, query, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside a transaction, committed at the end unless an exception passes."""
        with translated(self.dsn):
            async with self._connection() as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """One from the pool. When the driver can't make sense of it any more, it does not go back there."""
        async with self._opened().acquire(timeout=CONNECT_TIMEOUT) as connection:
            try:
                yield connection
            except asyncpg.InternalClientError:
                connection.terminate()
                raise

    def _opened(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise StoreUnavailable(
                "The database connection is not open: use it inside `async with app:` or while the app runs."
            )
        return self._pool

    def statistics(self) -> dict[str, int]:
        """Connections open and idle, of at most `max_connections`."""
        pool = self._pool
        return {
            "open": pool.get_size() if pool else 0,
            "idle": pool.get_idle_size() if pool else 0,
            "max": self.max_connections,
        }


@asynccontextmanager
async def within(executor: Any, limit: float) -> AsyncIterator[Any]:
    """A connection inside a transaction, on which no statement may take longer than `limit` seconds.

    Args:
        executor: a `Database`, or an asyncpg connection.

    Raises:
        FilterTooSlow: one did. Nothing of the transaction stays.
    """
    async with executor.transaction() as transaction:
        connection = transaction if isinstance(executor, Database) else executor
        await connection.execute(f"{_BRIEFLY}; set local statement_timeout = {limit * 1000:.0f}")
        try:
            yield connection
        except asyncpg.QueryCanceledError as error:
            raise FilterTooSlow(
                f"Judging messages by the condition took longer than {limit:g} s: simplify it, most of all its regular expressions."
            ) from error
