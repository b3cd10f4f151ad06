"""Calls and transactions of one database, over a bounded pool of connections.

Nothing here needs a session: no session-level advisory locks, and no `SET` that outlives its transaction.
So a pgbouncer in transaction mode may be in between. Behind one, prepared statements can't be kept, and
each call runs in an explicit transaction, so that the same server parses and executes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import asyncpg

from headrace.model.errors import ConfigurationError, StoreBusy, StoreError, StoreUnavailable
from headrace.model.text.masking import masked
from headrace.store.connections.connection import MAX_QUERIES
from headrace.store.connections.driver_parameters import DriverParameters
from headrace.store.connections.fair_shares import FairShares, NoPlace
from headrace.store.connections.hold import Hold
from headrace.store.connections.pool import ConnectionPool
from headrace.store.connections.statements import LONG_TRANSACTION, SHORT_TRANSACTION, ending_when_idle
from headrace.store.database.connector import Connector
from headrace.store.database.direct_statements import DirectStatements
from headrace.store.database.errors import first_line, translated
from headrace.store.database.missing_objects import ObjectReplaced, object_missing, object_replaced
from headrace.store.database.rights import OWNS, rights_of
from headrace.store.database.schema import read_state

JUDGING_WAIT = 10.0
"""Default of the longest wait for a place to evaluate a condition, in seconds."""

MAX_WAITING_JUDGEMENTS = 50
"""The most calls about one stream that wait for such a place."""

MIN_POSTGRES = 14  # the first version with multiranges


class Executor(Protocol):
    """Runs the verbs: a `Database`, or the user's connection inside a transaction."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, /, *args: Any) -> Any: ...
    async def fetchval(self, query: str, /, *args: Any) -> Any: ...


class Database:
    """A pool of connections to one database.

    Args:
        dsn: a Postgres URL, as for libpq. See `headrace.model.database_url`.
        max_connections: the maximum size of the pool.
        application_name: the name of the connections in `pg_stat_activity`.
        connect_timeout: the timeout for connecting, and for waiting for a connection of the pool, in
            seconds. None takes that of the URL, or else 10 s.

    Raises:
        DatabaseRefused: the URL can't be used.

    Attributes:
        pooled: whether a pooler is in between.
        granted, owns, maintains: see `Rights`, and `learn_ownership`.
        direct_statements: the statements that publish to streams by their own functions, by stream. None for a stream whose
            functions can't be called. `publish` keeps them.
        holds: the maximum number of open transactions of handlers and services. They last as long as user
            code runs, so they may not use all connections. The rest is kept for leasing, settling and
            extending.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_connections: int = 10,
        application_name: str = "headrace",
        connect_timeout: float | None = None,
    ) -> None:
        parameters = DriverParameters(dsn)
        self.dsn = dsn
        self.max_connections = max_connections
        self.application_name = application_name
        self.connect_timeout = connect_timeout or parameters.connect_timeout
        self.pooled = False
        self.granted = False
        self.owns = False
        self.maintains = True
        self.direct_statements: dict[str, DirectStatements | None] = {}
        self.holds = max_connections - min(max(max_connections // 3, 1), 8) if max_connections > 1 else 1
        self._hold_semaphore = anyio.Semaphore(self.holds, fast_acquire=True)
        self.limit_judging(max_connections // 5)
        self._connector = Connector(dsn, parameters, application_name, self.connect_timeout, self._expire)
        self._connections: ConnectionPool | None = None

    def limit_judging(self, places: int) -> None:
        """Set how many connections may examine many messages at the same time. It is at least one, and at most all."""
        places = min(max(places, 1), self.max_connections)
        self._judging = FairShares(places, max(places - 1, 1), MAX_WAITING_JUDGEMENTS)

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, or `ConfigurationError` if the DSN can never work."""
        if self._connections is not None:
            return
        connector = self._connector
        connector.forget_settings()
        self.direct_statements.clear()
        with translated(self.dsn):
            probe = await self.connect(statement_cache_size=0)
            try:
                await self._inspect_server(probe)
            finally:
                await probe.close(timeout=self.connect_timeout)
            pool = await asyncpg.create_pool(  # type: ignore[call-overload]
                min_size=0,
                max_size=self.max_connections,
                max_queries=MAX_QUERIES,
                connect=connector.open,
                init=connector.watch,
                reset=self._restore,
                statement_cache_size=0 if self.pooled else 200,
                max_cached_statement_lifetime=0,
                **connector.options(),
            )
            counters, size = connector.counters, self.max_connections
            self._connections = ConnectionPool(pool, size, self.connect_timeout, counters, self.end)

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """Open a connection outside the pool. The caller closes it. Raises asyncpg's own errors."""
        return await self._connector.connect(**options)

    async def _inspect_server(self, probe: asyncpg.Connection[asyncpg.Record]) -> None:
        version = probe.get_server_version().major
        if version < MIN_POSTGRES:
            raise ConfigurationError(
                f"The server is PostgreSQL {version}. Headrace needs PostgreSQL {MIN_POSTGRES} or newer, since it uses multiranges."
            )
        async with probe.transaction():
            backend = await probe.fetchval("select pg_backend_pid()")
            rights = await rights_of(probe)
        self.granted, self.owns, self.maintains = rights.granted, rights.owns, rights.maintains
        self._connector.granted = rights.granted
        # A pooler answers the handshake itself, with a process id that it made up.
        self.pooled = self._connector.detector.pooled = backend != probe.get_server_pid()
        if not self.pooled:
            await self._connector.learn_settings(probe)

    async def learn_ownership(self) -> None:
        """Find out again what `owns` says, because the schema may have been created."""
        self.owns = await self.fetchval(OWNS)

    async def close(self) -> None:
        """Close every connection, including those in use, within a few seconds."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.terminate()
        await self._connector.detector.close()

    async def drain(self) -> None:
        """Close every connection once it is not in use."""
        connections, self._connections = self._connections, None
        if connections is not None:
            with translated(self.dsn):
                await connections.drain()
        await self._connector.detector.close()

    def fetch(self, query: str, /, *args: Any) -> Coroutine[Any, Any, list[asyncpg.Record]]:
        return self._run("fetch", query, args)

    def fetchrow(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]:
        return self._run("fetchrow", query, args)

    def fetchval(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]:
        return self._run("fetchval", query, args)

    async def _run(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        with translated(self.dsn, ours=True):
            try:
                return await self._call(method, query, args)
            except asyncpg.PostgresError as error:
                if object_missing(error):
                    await self.refuse_while_recovering()
                if not object_replaced(error):
                    raise
            try:
                return await self._call(method, query, args)
            except asyncpg.UndefinedFunctionError as error:
                await self._refuse_other_revision(error)
                raise

    async def _refuse_other_revision(self, error: asyncpg.PostgresError) -> None:
        """Raise `StoreError` if the schema exists and lacks a function, since it has another revision than this code.
        Processes at work wait, and report it, instead of ending.
        """
        async with self.connections.connection() as connection, connection.transaction():
            state = await read_state(connection)
        if state.revision:
            reason = state.mismatch(self.dsn) or "Repair the schema: headrace migrate --reinstall."
            raise StoreError(f"A function of Headrace is missing ({first_line(error)}). {reason}") from error

    async def refuse_while_recovering(self) -> None:
        """Raise `StoreUnavailable` if the server is in recovery. Call it when something is missing that may
        exist a moment later.
        """
        with translated(self.dsn):
            if await self._call("fetchval", "select pg_is_in_recovery()", ()):
                raise StoreUnavailable(
                    f"The database at {masked(self.dsn)} is in recovery, and may not have everything yet. Try again later."
                )

    async def _call(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        if self.pooled:
            return await self._call_pooled(method, query, args)
        connections = self.connections
        connection = await connections.acquire()
        try:
            return await getattr(connection, method)(query, *args)
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            await connections.release(connection)

    async def _call_pooled(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        async with self.connections.connection() as connection:
            connection.send_with_next(SHORT_TRANSACTION)
            async with connection.transaction(isolation="read_committed"):
                return await getattr(connection, method)(query, *args)

    @asynccontextmanager
    async def transaction(self, settings: str = "") -> AsyncIterator[Any]:
        """A connection inside a transaction, which commits at the end unless an exception is raised.

        Args:
            settings: SQL that is sent with the BEGIN. Behind a pooler it limits the transaction's idle time by default.

        Raises:
            ObjectReplaced: the transaction has to be repeated, as `with_repeat` does. It can't be repeated here,
                where the body is unknown.
        """
        with translated(self.dsn, ours=True):
            try:
                async with self.connections.connection() as connection:
                    connection.send_with_next(settings or (LONG_TRANSACTION if self.pooled else ""))
                    async with connection.transaction(isolation="read_committed" if self.pooled else None):
                        yield connection
            except asyncpg.PostgresError as error:
                if object_replaced(error) and await self._has_schema():
                    raise ObjectReplaced(
                        f"A function or table that the transaction used was replaced meanwhile, as by an upgrade ({first_line(error)}). Try again."
                    ) from error
                raise

    async def _has_schema(self) -> bool:
        """Whether Headrace's functions exist. If they do, a missing one is only being replaced."""
        found: bool = await self._call(
            "fetchval",
            "select exists (select from pg_proc where proname = 'lease' and pronamespace = to_regnamespace('headrace_internal'))",
            (),
        )
        return found

    # --- long transactions

    async def begin(self, idle: float, *, assign: bool = False) -> Hold:
        """Begin a transaction for user code. The caller may commit it, and returns it with `end`.

        Args:
            idle: seconds after which the server ends an idle transaction, for example of a frozen process
                or of code that waits for something else.
            assign: assign the transaction's id at its beginning, so that `Hold.xid` is known. Until its end it holds
                back the server's cleaning of dead rows, as does a transaction that has written something. The id is not
                assigned behind a pooler, nor if the user has chosen an isolation level whose snapshot it would take.

        Raises:
            StoreUnavailable: also if all `holds` were in use for too long.
        """
        settings = (ending_when_idle(idle), *self._connector.yours)
        connections = self.connections
        if assign and (begun := connections.take_begun(settings)) is not None:
            return begun
        with translated(self.dsn):
            await self._acquire_hold(connections)
            try:
                hold = Hold(connections, await connections.acquire())
            except BaseException:
                self._hold_semaphore.release()
                raise
            try:
                await hold.begin(settings, assign=assign and not self.pooled and not self._connector.yours)
            except BaseException:
                await self.end(hold)
                raise
        return hold

    def may_begin_ahead(self, hold: Hold) -> bool:
        """Whether the next transaction may be begun together with the COMMIT of this one. Then `end` keeps it for the next
        `begin`. Not if something else waits for the connection, or if it has to be replaced.
        """
        return hold.xid is not None and hold.connections.may_begin_ahead(hold)

    async def end(self, hold: Hold) -> None:
        """Return what `begin` returned. Rolls back what is not committed."""
        if hold.begun_ahead and hold.connections.keep_begun(hold):
            return
        try:
            await hold.end()
        finally:
            try:
                await hold.connections.release(hold.released())
            finally:
                self._hold_semaphore.release()

    async def _acquire_hold(self, connections: ConnectionPool) -> None:
        try:
            self._hold_semaphore.acquire_nowait()
        except anyio.WouldBlock:
            connections.end_begun_ahead()
            with connections.wait(), anyio.move_on_after(self.connect_timeout):
                await self._hold_semaphore.acquire()
                return
            raise StoreUnavailable(
                f"All {self.holds} transactions that this process may hold open have been in use for {self.connect_timeout:g} s."
                f" Shorten them, or raise max_connections={self.max_connections}."
            ) from None

    @asynccontextmanager
    async def judging(
        self, stream: str, timeout: float | None = JUDGING_WAIT, *, bounded: bool = True
    ) -> AsyncIterator[None]:
        """Hold a place for a call that examines many messages, by a condition that may be slow.

        A fifth of the connections has such places, and no stream has all of them while there are several. Free
        places go round the streams. So slow conditions take connections neither from publishing and settling, nor all
        places from the conditions of other streams.

        Args:
            stream: the stream whose messages are examined.
            timeout: the longest wait for a place in seconds. None waits for as long as it takes.
            bounded: refuse if too many calls about the stream wait already.

        Raises:
            StoreBusy: no place became free in time.
        """
        try:
            async with self._judging.place(stream, timeout, bounded=bounded):
                yield
        except NoPlace:
            raise StoreBusy(
                f"Other calls are examining messages of the stream {stream!r} or of others, and no more of them may run at the"
                " same time. Try again later, with fewer such calls at a time or with simpler conditions."
            ) from None

    # --- connections

    @property
    def waiting(self) -> int:
        """How many calls wait for a connection of the pool."""
        return self._connections.waiting if self._connections is not None else 0

    @property
    def connections(self) -> ConnectionPool:
        """The open connections. Raises as `check_loop` does."""
        self.check_loop()
        assert self._connections is not None
        return self._connections

    def check_loop(self) -> None:
        """Raise `StoreUnavailable` if the database is not open, and `ConfigurationError` if another event loop opened it."""
        if self._connections is None:
            raise StoreUnavailable(
                "The database connection is not open. Use it inside `async with app:`, or while the app runs."
            )
        self._connections.check_loop()

    async def _restore(self, connection: Any) -> None:
        """Undo what user code has changed in the session of a connection that it returns. Headrace itself changes nothing."""
        if self.pooled:  # by now the pooler may have given the connection another session
            connection.session_changed = False
        else:
            await connection.restore_session()

    async def _expire(self) -> None:
        if self._connections is not None:
            await self._connections.expire()

    def statistics(self) -> dict[str, float]:
        """Statistics of the pool.

        Gauges are the connections `open` and `idle`, of at most `max`, the long transactions `held`, of
        at most `holds`, and the calls that are `judging` conditions. Counters since the start are round trips to the
        server, waits for a connection and their seconds, and connections that `died` silently.
        """
        connections, counters = self._connections, self._connector.counters
        return {
            "open": connections.open if connections else 0,
            "idle": connections.idle if connections else 0,
            "max": self.max_connections,
            "held": self.holds - self._hold_semaphore.value - (connections.begun if connections else 0),
            "holds": self.holds,
            "judging": self._judging.in_use,
            "round_trips": counters.round_trips,
            "waits": counters.waits,
            "waited": counters.waited,
            "died": self._connector.detector.ended,
        }
