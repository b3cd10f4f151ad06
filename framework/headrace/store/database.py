"""Connections to Postgres: a bounded pool, poolers noticed, errors translated at this one boundary.

Nothing here needs a session: no session-level advisory locks, no `SET` that outlives its transaction. So a transaction-pooling
pgbouncer may stand between. Behind one, prepared statements can't be kept, and each call runs in an explicit transaction, so
that its parse and its execution meet the same server.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import anyio
import asyncpg

from headrace.model.errors import ConfigurationError, FilterTooSlow, StoreUnavailable, UnknownConsumer
from headrace.store.addresses import Addresses
from headrace.store.connection import Connection, Hold, Meter, ending_when_idle, release
from headrace.store.detector import PROBE_PATIENCE, FailureDetector
from headrace.store.liveness import SERVER_SETTINGS
from headrace.store.missing import SweptAway, not_there, swept_away
from headrace.store.translate import first_line, safe, translated

CONNECT_TIMEOUT = 10.0
"""Seconds that connecting may take, and waiting for a connection of the pool."""

COMMAND_TIMEOUT = 60.0
"""Seconds that a statement may take while the server works on it. What gets lost on the way is noticed long before, by `detector.py`."""

OLDEST_POSTGRES = 14  # the first with multiranges


class Executor(Protocol):
    """What the verbs run on: a `Database`, or a connection of the user's that is inside a transaction."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, /, *args: Any) -> Any: ...
    async def fetchval(self, query: str, /, *args: Any) -> Any: ...


# A call that has to be a transaction may freeze inside it with its process, or die in silence behind a pooler, where nobody knows its
# backend. It holds locks that others wait for: a consumer's, or rows of leases. So the server ends it. There is nothing in it to
# wait for, and who is ended wrongly makes the call again.
_BRIEFLY = ending_when_idle(2)

# The same for several calls, each of which may send megabytes: until they have come, the server takes the transaction for idle.
_AT_LAST = ending_when_idle(30)


async def _keep_as_is(_: Any) -> None:
    """A pool's reset of returned connections. We change no session state, so a round trip for it would be wasted."""


class Database:
    """A pool of connections to one database.

    Args:
        dsn: a Postgres URL, as libpq has them.
        max_connections: the pool's bound.
        application_name: how the connections show in `pg_stat_activity`.

    Attributes:
        pooled: whether a pooler stands between.
        holds: how many transactions of handlers and services may be open at a time. They last as long as somebody else's code does,
            so a share of the connections is kept from them: leasing, settling and extending go on.
    """

    def __init__(self, dsn: str, *, max_connections: int = 10, application_name: str = "headrace") -> None:
        self.dsn = dsn
        self.max_connections = max_connections
        self.application_name = application_name
        self.pooled = False
        self.holds = max_connections - min(max(max_connections // 3, 1), 8) if max_connections > 1 else 1
        self._held = anyio.Semaphore(self.holds, fast_acquire=True)
        self._meter = Meter()
        self._addresses = Addresses(dsn)
        self._settings: dict[str, str] = {}  # of sessions, once it is known that the server can have them
        self._detector = FailureDetector(dsn, self._connect_probe, self._expire, self._addresses)
        self._in_use = 0
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, or `ConfigurationError` when the DSN can't ever work."""
        if self._pool is not None:
            return
        self._settings = {}
        with translated(self.dsn):
            probe = await self.connect(statement_cache_size=0)
            try:
                await self._look_around(probe)
            finally:
                await probe.close(timeout=CONNECT_TIMEOUT)
            self._pool = await asyncpg.create_pool(  # type: ignore[call-overload]
                self.dsn,
                min_size=0,
                max_size=self.max_connections,
                connect=self._connect,
                connection_class=Connection,
                init=self._meet,
                reset=_keep_as_is,
                statement_cache_size=0 if self.pooled else 200,
                max_cached_statement_lifetime=0,
                timeout=CONNECT_TIMEOUT,
                command_timeout=COMMAND_TIMEOUT,
                server_settings=self._session(),
            )

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """A connection outside the pool; the caller closes it. Raises asyncpg's own errors."""
        connection = await self._connect(self.dsn, **(self._options() | options))
        await self._meet(connection)
        return connection  # type: ignore[no-any-return]

    async def _connect(self, dsn: str, *, timeout: float = CONNECT_TIMEOUT, **options: Any) -> Any:
        async def attempt() -> Any:
            return await self._addresses.connect(functools.partial(asyncpg.connect, dsn), timeout, **options)

        return await self._detector.connected(attempt)

    async def _connect_probe(self) -> Any:
        """A connection for the detector, which does not watch this one."""
        options = self._options() | {"timeout": PROBE_PATIENCE * len(self._addresses), "statement_cache_size": 0}
        return await self._addresses.connect(
            functools.partial(asyncpg.connect, self.dsn), options.pop("timeout"), **options
        )

    def _options(self) -> dict[str, Any]:
        return {
            "connection_class": Connection,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": COMMAND_TIMEOUT,
            "server_settings": self._session(),
        }

    def _session(self) -> dict[str, str]:
        """Settings of a session. What the URL has of them counts."""
        ours = {"application_name": self.application_name, **self._settings}
        given = {name for name, _ in parse_qsl(urlsplit(self.dsn).query)}
        return {name: value for name, value in ours.items() if name not in given or name == "application_name"}

    async def _look_around(self, probe: asyncpg.Connection[asyncpg.Record]) -> None:
        version = probe.get_server_version().major
        if version < OLDEST_POSTGRES:
            raise ConfigurationError(
                f"The server is PostgreSQL {version}, and Headrace needs {OLDEST_POSTGRES} or newer (it uses multiranges)."
            )
        async with probe.transaction():
            backend = await probe.fetchval("select pg_backend_pid()")
        # A pooler answers the handshake itself, with a process id of its own making.
        self.pooled = self._detector.pooled = backend != probe.get_server_pid()
        self._settings = {} if self.pooled else await _accepted(probe)

    async def close(self) -> None:
        """Close every connection, those in use included, after at most a few seconds."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()
        await self._detector.close()

    async def drain(self) -> None:
        """Close every connection once it is not in use."""
        pool, self._pool = self._pool, None
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
                if not_there(error):
                    await self.refuse_while_recovering()
                if not swept_away(error):
                    raise
            return await self._call(method, query, args)

    async def refuse_while_recovering(self) -> None:
        """Raise `StoreUnavailable` if the server is in recovery. To be asked when something is missing that may be there in a moment."""
        with translated(self.dsn):
            if await self._call("fetchval", "select pg_is_in_recovery()", ()):
                raise StoreUnavailable(
                    f"The database at {safe(self.dsn)} is in recovery, and may not have everything yet."
                )

    async def _call(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        async with self._connection() as connection:
            if not self.pooled:
                return await getattr(connection, method)(query, *args)
            connection.set_along(_BRIEFLY)
            async with connection.transaction():
                return await getattr(connection, method)(query, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection inside a transaction, committed at the end unless an exception passes.

        Raises:
            SweptAway: see there; `again` makes the transaction once more. It can't be done here, where the body is not known.
        """
        with translated(self.dsn, ours=True):
            try:
                async with self._connection() as connection:
                    if self.pooled:
                        connection.set_along(_AT_LAST)
                    async with connection.transaction():
                        yield connection
            except asyncpg.PostgresError as error:
                if swept_away(error) and await self._has_schema():
                    raise SweptAway(
                        f"What the transaction used was replaced meanwhile, as by an upgrade ({first_line(error)}): try again."
                    ) from error
                raise

    async def _has_schema(self) -> bool:
        """Whether our functions are there, so that one which is missed is only being replaced."""
        found: bool = await self._call(
            "fetchval",
            "select exists (select from pg_proc where proname = 'lease' and pronamespace = to_regnamespace('headrace'))",
            (),
        )
        return found

    # --- transactions that stay open for a while

    async def begin(self, idle: float) -> Hold:
        """A transaction for somebody else's code. The caller commits it, or not, and gives it back with `end`.

        Args:
            idle: seconds after which the server ends the transaction when nothing is asked of it: of a process that froze, or of code
                that waits for something else.

        Raises:
            StoreUnavailable: also when others held all `holds` for too long.
        """
        with translated(self.dsn):
            await self._turn()
            try:
                hold = Hold(*await self._acquire())
            except BaseException:
                self._held.release()
                raise
            try:
                await hold.begin(idle)
            except BaseException:
                await self.end(hold)
                raise
        return hold

    async def end(self, hold: Hold) -> None:
        """Give back what `begin` gave. What is not committed is rolled back."""
        self._in_use -= 1
        try:
            await hold.end()
        finally:
            self._held.release()

    async def _turn(self) -> None:
        try:
            self._held.acquire_nowait()
        except anyio.WouldBlock:
            with self._waiting(), anyio.move_on_after(CONNECT_TIMEOUT):
                await self._held.acquire()
                return
            raise StoreUnavailable(
                f"All {self.holds} transactions that this process may hold open have been in use for {CONNECT_TIMEOUT:g} s:"
                f" shorten them, or raise max_connections={self.max_connections}."
            ) from None

    # --- connections

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """One from the pool. When the driver can't make sense of it any more, it does not go back there."""
        pool, connection = await self._acquire()
        try:
            yield connection
        except asyncpg.InternalClientError:
            connection.terminate()
            raise
        finally:
            self._in_use -= 1
            await release(pool, connection)

    async def _acquire(self) -> tuple[asyncpg.Pool[asyncpg.Record], Any]:
        pool = self._opened()
        if self._in_use < self.max_connections:
            connection = await pool.acquire(timeout=CONNECT_TIMEOUT)
        else:
            with self._waiting():
                connection = await pool.acquire(timeout=CONNECT_TIMEOUT)
        self._in_use += 1
        return pool, connection

    async def _meet(self, connection: Any) -> None:
        connection.begin(self._meter, self._detector)

    async def _expire(self) -> None:
        if self._pool is not None:
            await self._pool.expire_connections()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._meter.waits += 1
        since = time.monotonic()
        try:
            yield
        finally:
            self._meter.waited += time.monotonic() - since

    def _opened(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise StoreUnavailable(
                "The database connection is not open: use it inside `async with app:` or while the app runs."
            )
        return self._pool

    def statistics(self) -> dict[str, float]:
        """Connections open and idle, of at most `max`; long transactions open, `held`, of at most `holds`; and since the start
        round trips to the server, waits for a connection, the seconds that these took, and connections that `died` in silence."""
        pool = self._pool
        return {
            "open": pool.get_size() if pool else 0,
            "idle": pool.get_idle_size() if pool else 0,
            "max": self.max_connections,
            "held": self.holds - self._held.value,
            "holds": self.holds,
            "round_trips": self._meter.round_trips,
            "waits": self._meter.waits,
            "waited": self._meter.waited,
            "died": self._detector.ended,
        }


async def _accepted(probe: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    """Those of our settings of sessions that have an effect: that depends on the server's system, and on how it is reached."""
    set_them = "select name, set_config(name, value, false) from unnest($1::text[], $2::text[]) as given (name, value)"
    for settings in (SERVER_SETTINGS, {name: SERVER_SETTINGS[name] for name in SERVER_SETTINGS if "tcp" in name}):
        with suppress(asyncpg.PostgresError):  # where the server can't look for its client
            rows = await probe.fetch(set_them, list(settings), list(settings.values()))
            return {name: settings[name] for name, value in rows if value != "0"}
    return {}


@asynccontextmanager
async def within(executor: Any, limit: float) -> AsyncIterator[Any]:
    """A connection inside a transaction, on which no statement may take longer than `limit` seconds.

    Args:
        executor: a `Database`, or an asyncpg connection.

    Raises:
        FilterTooSlow: one did. Nothing of the transaction stays.
    """
    try:
        async with executor.transaction() as transaction:
            connection = transaction if isinstance(executor, Database) else executor
            await connection.execute(f"{_BRIEFLY}; set local statement_timeout = {limit * 1000:.0f}")
            try:
                yield connection
            except asyncpg.QueryCanceledError as error:
                raise FilterTooSlow(
                    f"Judging messages by the condition took longer than {limit:g} s: simplify it, most of all its regular expressions."
                ) from error
    except UnknownConsumer:
        if isinstance(executor, Database):
            await executor.refuse_while_recovering()
        raise
