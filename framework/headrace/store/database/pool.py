"""Connections to Postgres: a bounded pool, detection of poolers, and translation of errors.

Nothing here needs a session: no session-level advisory locks, and no `SET` that outlives its transaction.
So a pgbouncer in transaction mode may be in between. Behind one, prepared statements can't be kept, and
each call runs in an explicit transaction, so that the same server parses and executes it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import anyio
import asyncpg

from headrace.model.errors import (
    ConfigurationError,
    FilterTooSlow,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UnknownConsumer,
)
from headrace.model.text.masking import masked
from headrace.store.connections.addresses import Addresses
from headrace.store.connections.connection import MAX_QUERIES, Connection, PoolCounters
from headrace.store.connections.hold import BegunAhead, Hold
from headrace.store.connections.keepalive import SERVER_SETTINGS
from headrace.store.connections.spare import SpareConnections, release
from headrace.store.connections.statements import ending_when_idle
from headrace.store.database.direct_statements import DirectStatements
from headrace.store.database.errors import first_line, readable, translated
from headrace.store.database.failure_detector import PROBE_TIMEOUT, FailureDetector
from headrace.store.database.fair_shares import FairShares, NoPlace
from headrace.store.database.missing_objects import ObjectReplaced, object_missing, object_replaced
from headrace.store.database.schema import read_state

CONNECT_TIMEOUT = 10.0
"""The default of `connect_timeout`, in seconds."""

COMMAND_TIMEOUT = 60.0
"""The timeout of a statement that the server is working on, in seconds. `failure_detector.py` detects lost calls much
earlier.
"""

JUDGING_WAIT = 10.0
"""Default of the longest wait for a place to evaluate a condition, in seconds."""

MAX_WAITING_JUDGEMENTS = 50
"""The most calls about one stream that wait for such a place."""

# As headrace_granted.is_direct has it. A role without any right gets the server's errors.
_HAS_GRANTS = """
    select exists (
        select from pg_proc as p
        join pg_namespace as g on g.oid = p.pronamespace and g.nspname = 'headrace_granted'
        join pg_namespace as n on n.nspname = 'headrace_internal'
        where p.proname = 'lease' and not has_schema_privilege(n.oid, 'create') and has_function_privilege(p.oid, 'execute'))
"""

# Whether the role needs no grant, whatever happens to its grants while the connections are open.
_OWNS = "select coalesce(has_schema_privilege(to_regnamespace('headrace_internal')::oid, 'create'), false)"

_ADMINISTERS = "select coalesce(0 = any (headrace_granted.streams_of('admin')), false)"

MIN_POSTGRES = 14  # the first version with multiranges


class Executor(Protocol):
    """Runs the verbs: a `Database`, or the user's connection inside a transaction."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, /, *args: Any) -> Any: ...
    async def fetchval(self, query: str, /, *args: Any) -> Any: ...


# A process may freeze inside a call that is a transaction, or the connection may die silently behind a
# pooler, where the backend is unknown. The call holds locks for which others wait: a consumer's lock,
# or rows of leases. So the server ends it soon. The transaction has no reason to idle, and if a call
# was ended by mistake, the caller makes it again.
_SHORT_TRANSACTION = ending_when_idle(2)

# The same for transactions of several calls, each of which may send megabytes. The server considers the
# transaction idle until the data has arrived.
_LONG_TRANSACTION = ending_when_idle(30)


# A session of Headrace has these settings, whatever the role or the database has. Each read of a lease call must
# see the newest state, the functions have strings with backslashes, and connections of the pool may idle.
_OURS = {
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",
    "idle_session_timeout": "0",
}

# How a transaction of user code gets the setting that the session would have without `_OURS`.
_YOURS = {
    "default_transaction_isolation": "set transaction isolation level {}",
    "standard_conforming_strings": "set local standard_conforming_strings = {}",
}


class Database:
    """A pool of connections to one database.

    Args:
        dsn: a Postgres URL, as for libpq.
        max_connections: the maximum size of the pool.
        application_name: the name of the connections in `pg_stat_activity`.
        connect_timeout: the timeout for connecting, and for waiting for a connection of the pool, in
            seconds.

    Attributes:
        pooled: whether a pooler is in between.
        granted: whether its role uses the schema through its grants (`headrace grant`), and not as a member of the
            owner.
        owns: whether its role is a member of the owner of the schema. False if there was none when the database was opened,
            see `learn_ownership`.
        maintains: whether its role may do the maintenance of all streams.
        direct_statements: the statements that publish to streams by their own functions, by stream. None for a stream whose
            functions can't be called. `publish` keeps them.
        waiting: how many calls wait for a connection of the pool.
        holds: the maximum number of open transactions of handlers and services. They last as long as user
            code runs, so they may not use all connections. The rest is kept for leasing, settling and
            extending.
    """

    def __init__(
        self, dsn: str, *, max_connections: int = 10, application_name: str = "headrace",
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:  # fmt: skip
        self.dsn = dsn
        self.max_connections = max_connections
        self.application_name = application_name
        self.connect_timeout = connect_timeout
        self.pooled = False
        self.granted = False
        self.owns = False
        self.maintains = True
        self.direct_statements: dict[str, DirectStatements | None] = {}
        self.waiting = 0
        self.holds = max_connections - min(max(max_connections // 3, 1), 8) if max_connections > 1 else 1
        self._hold_semaphore = anyio.Semaphore(self.holds, fast_acquire=True)
        self.limit_judging(max_connections // 5)
        self._counters = PoolCounters()
        self._addresses = Addresses(dsn)
        self._settings: dict[str, str] = {}  # settings of sessions, once it is known that the server accepts them
        self._yours: tuple[str, ...] = ()  # give a transaction of user code the settings that the user has chosen
        self._detector = FailureDetector(dsn, self._connect_probe, self._expire, self._addresses)
        self._in_use = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # that runs it
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._spare: SpareConnections | None = None
        self._begun_ahead: BegunAhead | None = None

    def limit_judging(self, places: int) -> None:
        """Set how many connections may examine many messages at the same time. It is at least one, and at most all."""
        places = min(max(places, 1), self.max_connections)
        self._judging = FairShares(places, max(places - 1, 1), MAX_WAITING_JUDGEMENTS)

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, or `ConfigurationError` if the DSN can never work."""
        if self._pool is not None:
            return
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._settings, self._yours = {}, ()
        self.direct_statements.clear()
        with translated(self.dsn), readable(self.dsn):
            probe = await self.connect(statement_cache_size=0)
            try:
                await self._inspect_server(probe)
            finally:
                await probe.close(timeout=self.connect_timeout)
            self._pool = await asyncpg.create_pool(  # type: ignore[call-overload]
                self.dsn,
                min_size=0,
                max_size=self.max_connections,
                max_queries=MAX_QUERIES,
                connect=self._connect,
                connection_class=Connection,
                init=self._watch,
                reset=self._restore,
                statement_cache_size=0 if self.pooled else 200,
                max_cached_statement_lifetime=0,
                timeout=self.connect_timeout,
                command_timeout=COMMAND_TIMEOUT,
                server_settings=self._session(),
            )
            self._spare = SpareConnections(self._pool)
            self._begun_ahead = BegunAhead(self.end)

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """Open a connection outside the pool. The caller closes it. Raises asyncpg's own errors."""
        connection = await self._connect(self.dsn, **(self._options() | options))
        await self._watch(connection)
        return connection  # type: ignore[no-any-return]

    async def _connect(self, dsn: str, *, timeout: float, **options: Any) -> Any:
        async def attempt() -> Any:
            return await self._addresses.connect(functools.partial(asyncpg.connect, dsn), timeout, **options)

        return await self._detector.connected(attempt)

    async def _connect_probe(self) -> Any:
        """Open a connection for the detector, which does not watch it."""
        options = self._options() | {"timeout": PROBE_TIMEOUT * len(self._addresses), "statement_cache_size": 0}
        return await self._addresses.connect(
            functools.partial(asyncpg.connect, self.dsn), options.pop("timeout"), **options
        )

    def _options(self) -> dict[str, Any]:
        return {
            "connection_class": Connection,
            "timeout": self.connect_timeout,
            "command_timeout": COMMAND_TIMEOUT,
            "server_settings": self._session(),
        }

    def _session(self) -> dict[str, str]:
        """The settings of a session. Settings in the URL take precedence."""
        ours = {"application_name": self.application_name, **self._settings}
        given = {name for name, _ in parse_qsl(urlsplit(self.dsn).query)}
        return {name: value for name, value in ours.items() if name not in given or name == "application_name"}

    async def _inspect_server(self, probe: asyncpg.Connection[asyncpg.Record]) -> None:
        version = probe.get_server_version().major
        if version < MIN_POSTGRES:
            raise ConfigurationError(
                f"The server is PostgreSQL {version}. Headrace needs PostgreSQL {MIN_POSTGRES} or newer, since it uses multiranges."
            )
        async with probe.transaction():
            backend = await probe.fetchval("select pg_backend_pid()")
            self.granted = await probe.fetchval(_HAS_GRANTS)
            self.owns = await probe.fetchval(_OWNS)
            self.maintains = not self.granted or await probe.fetchval(_ADMINISTERS)
        # A pooler answers the handshake itself, with a process id that it made up.
        self.pooled = self._detector.pooled = backend != probe.get_server_pid()
        if not self.pooled:
            yours = {name: await probe.fetchval("select pg_catalog.current_setting($1)", name) for name in _YOURS}
            self._yours = tuple(_YOURS[name].format(value) for name, value in yours.items() if value != _OURS[name])
            self._settings = _OURS | await _effective_settings(probe)

    async def learn_ownership(self) -> None:
        """Find out anew what `owns` says, because the schema may have been created."""
        self.owns = await self.fetchval(_OWNS)

    async def close(self) -> None:
        """Close every connection, including those in use, within a few seconds."""
        self._end_begun_ahead()
        pool, self._pool = self._pool, None
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.forget()
        if pool is not None:
            pool.terminate()
        await self._detector.close()

    async def drain(self) -> None:
        """Close every connection once it is not in use."""
        self._end_begun_ahead()
        pool, self._pool = self._pool, None
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.return_all()
        if pool is not None:
            with translated(self.dsn):
                await pool.close()
        await self._detector.close()

    async def fetch(self, query: str, /, *args: Any) -> list[asyncpg.Record]:
        return await self._run("fetch", query, args)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any) -> Any:
        return await self._run("fetchrow", query, args)

    async def fetchval(self, query: str, /, *args: Any) -> Any:
        return await self._run("fetchval", query, args)

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
        async with self._connection() as connection, connection.transaction():
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
        pool, connection = await self._acquire()
        try:
            return await getattr(connection, method)(query, *args)
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            await self._release(pool, connection)

    async def _call_pooled(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        async with self._connection() as connection:
            connection.send_with_next(_SHORT_TRANSACTION)
            async with connection.transaction(isolation="read_committed"):
                return await getattr(connection, method)(query, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside a transaction, which commits at the end unless an exception is raised.

        Raises:
            SweptAway: the transaction has to be repeated, as `again` does. It can't be repeated here, where
                the body is unknown.
        """
        with translated(self.dsn, ours=True):
            try:
                async with self._connection() as connection:
                    if self.pooled:
                        connection.send_with_next(_LONG_TRANSACTION)
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
        settings = (ending_when_idle(idle), *self._yours)
        self._open_pool()
        if assign and self._begun_ahead and (begun := self._begun_ahead.take(settings)) is not None:
            return begun
        with translated(self.dsn):
            await self._acquire_hold()
            try:
                hold = Hold(*await self._acquire())
            except BaseException:
                self._hold_semaphore.release()
                raise
            try:
                await hold.begin(settings, assign=assign and not self.pooled and not self._yours)
            except BaseException:
                await self.end(hold)
                raise
        return hold

    def may_begin_ahead(self, hold: Hold) -> bool:
        """Whether the next transaction may be begun together with the COMMIT of this one. Then `end` keeps it for the next
        `begin`. Not if something else waits for the connection, or if it has to be replaced.
        """
        inner: Connection | None = hold.connection._con
        return (
            hold.xid is not None
            and not self.waiting
            and hold.pool is self._pool
            and self._spare is not None
            and inner is not None
            and inner.unblemished
            and not self._spare.must_replace(inner)
        )

    async def end(self, hold: Hold) -> None:
        """Return what `begin` returned. Rolls back what is not committed."""
        if hold.begun_ahead and self._begun_ahead is not None and hold.pool is self._pool:
            self._begun_ahead.keep(hold)
            return
        try:
            await hold.end()
        finally:
            try:
                await self._release(hold.pool, hold.released())
            finally:
                self._hold_semaphore.release()

    async def _acquire_hold(self) -> None:
        try:
            self._hold_semaphore.acquire_nowait()
        except anyio.WouldBlock:
            self._end_begun_ahead()
            with self._waiting(), anyio.move_on_after(self.connect_timeout):
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

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection from the pool. It is closed instead of returned if the driver can't use it any more."""
        pool, connection = await self._acquire()
        try:
            yield connection
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            await self._release(pool, connection)

    async def _acquire(self) -> tuple[asyncpg.Pool[asyncpg.Record], Any]:
        pool = self._open_pool()
        assert self._spare is not None
        self._in_use += 1  # from before the connection is there, so that it counts the callers that wait, too
        if (connection := self._spare.take()) is not None:
            return pool, connection
        try:
            if self._in_use <= self.max_connections:
                return pool, await pool.acquire(timeout=self.connect_timeout)
            self._end_begun_ahead()
            with self._waiting():
                return pool, await pool.acquire(timeout=self.connect_timeout)
        except BaseException:
            self._in_use -= 1
            raise

    async def _release(self, pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
        """Return a connection. It goes through the pool if another call waits there."""
        waits = self._in_use > self.max_connections
        try:
            if waits or pool is not self._pool or self._spare is None or not self._spare.keep(connection):
                await release(pool, connection)
        finally:
            self._in_use -= 1

    async def _watch(self, connection: Any) -> None:
        connection.begin(self._counters, self._detector, granted=self.granted)

    async def _restore(self, connection: Any) -> None:
        """Undo what user code has changed in the session of a connection that it returns. Headrace itself changes nothing."""
        if self.pooled:  # by now the pooler may have given the connection another session
            connection.session_changed = False
        else:
            await connection.restore_session()

    async def _expire(self) -> None:
        if self._pool is not None:
            await self._pool.expire_connections()
        self._end_begun_ahead()
        if self._spare is not None:
            await self._spare.return_all()

    def _end_begun_ahead(self) -> None:
        """End the transactions that no handler has yet, since their connections are needed."""
        if self._begun_ahead is not None:
            self._begun_ahead.end_all()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._counters.waits += 1
        self.waiting += 1
        since = time.monotonic()
        try:
            yield
        finally:
            self.waiting -= 1
            self._counters.waited += time.monotonic() - since

    def _open_pool(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise StoreUnavailable(
                "The database connection is not open. Use it inside `async with app:`, or while the app runs."
            )
        self.check_loop()
        return self._pool

    def check_loop(self) -> None:
        """Raise `ConfigurationError` in another event loop than the one where the database was opened. Its connections
        can't be used there, and an attempt would break one that others use."""
        # A thread runs one loop at a time. To ask for the running loop is a system call in Python 3.11.
        if self._loop is not None and self._loop.is_running() and threading.get_ident() == self._thread:
            return
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "The app was connected in another event loop. Call it there, from a thread with anyio.from_thread.run(app.publish, …)"
                " or asyncio.run_coroutine_threadsafe(app.publish(…), loop).result(), or connect an app of your own in this loop."
            )

    def statistics(self) -> dict[str, float]:
        """Statistics of the pool.

        Gauges are the connections `open` and `idle`, of at most `max`, the long transactions `held`, of
        at most `holds`, and the calls that are `judging` conditions. Counters since the start are round trips to the server, waits for a connection and
        their seconds, and connections that `died` silently.
        """
        pool = self._pool
        return {
            "open": pool.get_size() if pool else 0,
            "idle": (pool.get_idle_size() if pool else 0) + len(self._spare or ()),
            "max": self.max_connections,
            "held": self.holds - self._hold_semaphore.value - len(self._begun_ahead or ()),
            "holds": self.holds,
            "judging": self._judging.in_use,
            "round_trips": self._counters.round_trips,
            "waits": self._counters.waits,
            "waited": self._counters.waited,
            "died": self._detector.ended,
        }


async def _effective_settings(probe: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    """The session settings that have an effect. This depends on the server's system and on the kind of connection."""
    set_config_query = (
        "select name, set_config(name, value, false) from unnest($1::text[], $2::text[]) as given (name, value)"
    )
    for settings in (SERVER_SETTINGS, {name: SERVER_SETTINGS[name] for name in SERVER_SETTINGS if "tcp" in name}):
        with suppress(asyncpg.PostgresError):  # this server can't check whether its client is connected
            rows = await probe.fetch(set_config_query, list(settings), list(settings.values()))
            return {name: settings[name] for name, value in rows if value != "0"}
    return {}


@asynccontextmanager
async def within(executor: Any, limit: float) -> AsyncIterator[Any]:
    """A connection inside a transaction in which no statement may take longer than `limit` seconds.

    Args:
        executor: a `Database`, or an asyncpg connection.

    Raises:
        FilterTooSlow: a statement took longer. The transaction is rolled back.
    """
    try:
        async with executor.transaction() as transaction:
            connection = transaction if isinstance(executor, Database) else executor
            await connection.execute(f"{_SHORT_TRANSACTION}; set local statement_timeout = {limit * 1000:.0f}")
            try:
                yield connection
            except asyncpg.QueryCanceledError as error:
                raise FilterTooSlow(
                    f"Evaluating the condition on messages took longer than {limit:g} s. Simplify it, especially its regular expressions."
                ) from error
    except UnknownConsumer:
        if isinstance(executor, Database):
            await executor.refuse_while_recovering()
        raise
