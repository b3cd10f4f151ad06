"""A failure detector: finds calls that wait for an answer which will never arrive.

A timeout alone can't distinguish a dead connection from a slow server, and repeating everything would only
slow the server further. So a call without an answer after a second is looked up: a fresh connection asks
the server what it is doing for that call. While the server works on the call, or the call waits for a lock,
the detector waits. If the server does nothing for the call at two successive looks, the call or its answer
was lost. Then the connection is closed, and its backend, which may hold locks, is terminated. If a fresh
connection gets no answer either, nothing is known, and nothing is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import asyncpg
import msgspec

from headrace.store.database.addresses import Addresses
from headrace.store.database.errors import first_line, safe
from headrace.store.database.keepalive import quiet_for

if TYPE_CHECKING:
    from headrace.store.database.connection import Connection

logger = logging.getLogger("headrace")

SUSPECT_AFTER: Final = 1.0
"""Seconds without an answer after which a call is looked up. Normally hardly any call takes longer."""

TICK: Final = 0.5
"""The minimum interval between two looks in seconds. For a call on which the server is working, the interval
is half the call's age.
"""

LONGEST: Final = 4.0
"""The maximum of this interval in seconds. So a server under load gets one cheap query now and then from each
process that waits for it.
"""

PROBE_PATIENCE: Final = 2.0
"""The timeout of a fresh connection per address, for connecting and answering, in seconds. After it nothing is
known, and it is tried again.
"""

UNMEASURED: Final = 10.0
"""Seconds without an answer after which a call is given up on systems that can't measure whether data is still
arriving.
"""

MOST_PATIENCE: Final = 60.0

PREFIX: Final = 200
"""The number of characters of a statement that are compared."""

# A backend belongs to a connection if it started when the connection was opened, within these seconds.
# Process ids are reused, and another server has the same ones.
_OURS = 5.0

_DOING = """
select pid, state, wait_event, extract(epoch from clock_timestamp() - backend_start)::float8 as age, left(query, $2) as query,
       extract(epoch from clock_timestamp() - query_start)::float8 as busy, extract(epoch from query_start)::float8 as begun
from pg_catalog.pg_stat_activity
where datname = current_database() and usename = session_user and pid <> pg_backend_pid() and (pid = any($1) or $3)
"""
# A statement is sent in steps with an answer each, and counts as active between them. An answer may
# also be too large to be sent at once.
_CLIENT = ("ClientRead", "ClientWrite")

_HALF = 0.5
"""The maximum delay in seconds from the sending of a statement until the server starts it, if it did not have
to wait.
"""

# A timeout is an OSError.
_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_END = "select pg_catalog.pg_terminate_backend(pid) from unnest($1::int[]) as pid"


class Doing(msgspec.Struct, frozen=True):
    """What a backend is doing, from `pg_stat_activity`.

    Attributes:
        age: seconds since the backend started.
        busy: seconds since it started its statement.
        begun: when it started its statement, on the server's clock.
    """

    pid: int
    state: str | None
    wait_event: str | None
    age: float
    query: str | None
    busy: float | None
    begun: float | None

    @property
    def idle(self) -> bool:
        """Whether the backend only waits for its client, which waits for it. Unknown without `track_activities`."""
        return self.state is not None and (self.state.startswith("idle") or self.wait_event in _CLIENT)

    def deserted(self, age: float) -> bool:
        """Whether the backend waits for the second half of a statement, its arguments, that was sent `age`
        seconds ago.

        Half a statement counts as active, so no server timeout ends its transaction.
        """
        waits = self.state == "active" and self.wait_event == "ClientRead"
        return waits and self.busy is not None and abs(self.busy - age) < _HALF


class Waiting(msgspec.Struct):
    """A statement that waits for its answer.

    Attributes:
        statement: its text.
        since: when it was sent.
        look_at: when to look it up next.
        idle: whether the server did nothing for it at the last look.
        looked_at: when it was last looked up.
        candidates: the executions, behind a pooler, that may be this statement: those of the same text that
            were running at every look since data arrived. Each is a backend and the time at which the
            execution started.
    """

    statement: str
    since: float
    look_at: float
    idle: bool = False
    looked_at: float = 0.0
    candidates: set[tuple[int, float | None]] = msgspec.field(default_factory=set)


class FailureDetector:
    """Watches the connections of one `Database`.

    Args:
        dsn: the database URL, for the log.
        connect: opens a fresh connection.
        expire: makes the pool replace its idle connections, which may have died for the same reason.
        addresses: the addresses of the database. A fresh connection may be to another address than the
            call. Its answer then says something about the call only if there can be only one primary.

    Attributes:
        pooled: whether a pooler is in between, so that process ids don't identify backends.
        looks: how often the server has reported what it is doing.
        ended: the number of connections that were closed.
    """

    def __init__(
        self,
        dsn: str,
        connect: Callable[[], Awaitable[Any]],
        expire: Callable[[], Awaitable[None]],
        addresses: Addresses,
    ) -> None:
        self.pooled = False
        self.looks = 0
        self.ended = 0
        self._place = safe(dsn)
        self._connect = connect
        self._expire = expire
        self._addresses = addresses
        self._waiting: dict[Connection, Waiting] = {}
        self._connecting: dict[asyncio.Timeout, float] = {}
        self._patience: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._silent_since: float | None = None

    # --- what is watched

    def asked(self, connection: Connection, statement: str) -> None:
        """Note that a statement is being sent."""
        loop = connection._loop
        now = loop.time()
        patience = self._patience.get(statement, SUSPECT_AFTER) if self._patience else SUSPECT_AFTER
        self._waiting[connection] = Waiting(statement, now, now + patience)
        if self._timer is None or self._loop is not loop:
            self._begin(loop)

    def answered(self, connection: Connection, *, well: bool) -> None:
        """Note that the statement was answered, or that its connection broke."""
        waited = self._waiting.pop(connection, None)
        if not well or waited is None:
            return
        if self._patience:
            self._patience.pop(waited.statement, None)
        if self._silent_since is not None:
            self._known(connection._loop.time())

    async def connected(self, connect: Callable[[], Awaitable[Any]]) -> Any:
        """Open a connection with `connect`. The attempt restarts if connections that were started later
        succeed first.
        """
        loop = asyncio.get_running_loop()
        while True:
            scope = asyncio.timeout(None)
            try:
                async with scope:
                    self._connecting[scope] = loop.time()
                    if self._timer is None or self._loop is not loop:
                        self._begin(loop)
                    return await connect()
            except TimeoutError:
                if not scope.expired():
                    raise
            finally:
                self._connecting.pop(scope, None)

    async def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        looking, self._looking = self._looking, None
        if looking is not None and self._loop is asyncio.get_running_loop() and not looking.done():
            looking.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([looking])

    # --- looking

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            self._loop, self._looking = loop, None  # the previous task ended with its loop
        self._timer = loop.call_later(TICK, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting and not self._connecting:
            self._timer = None
            return
        self._timer = loop.call_later(TICK, self._tick, loop)
        if (self._looking is None or self._looking.done()) and self._overdue(loop.time()):
            self._looking = loop.create_task(self._look(loop))

    def _overdue(self, now: float) -> bool:
        """Whether something has to be looked up."""
        return any(waiting.look_at <= now for waiting in self._waiting.values()) or self._has_old_attempts(now)

    def _has_old_attempts(self, now: float) -> bool:
        return any(since + SUSPECT_AFTER <= now for since in self._connecting.values())

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look up what is overdue, repeatedly, until nothing is left. The fresh connection is kept for that time."""
        probe = None
        try:
            while self._waiting or self._has_old_attempts(loop.time()):
                if self._overdue(began := loop.time()):
                    try:
                        probe = await self._asked_once(probe, loop)
                    except _FAILURES as error:
                        self._unknown(error, began)
                        probe = None
                    else:
                        self._known(loop.time())
                await asyncio.sleep(TICK)
        finally:
            _close(probe)

    async def _asked_once(self, probe: Any, loop: asyncio.AbstractEventLoop) -> Any:
        """Look up what is overdue, on the previous connection or a fresh one. Returns the connection that answered."""
        if probe is not None and not self._has_old_attempts(loop.time()):
            with suppress(*_FAILURES):  # it may have died meanwhile too
                async with asyncio.timeout(TICK):
                    await self._ask(probe, loop)
                    return probe
        async with asyncio.timeout(PROBE_PATIENCE * len(self._addresses)):
            probe = await self._another(probe, loop)
            try:
                await self._ask(probe, loop)
            except BaseException:
                _close(probe)
                raise
            return probe

    async def _another(self, probe: Any, loop: asyncio.AbstractEventLoop) -> Any:
        """Open a fresh connection. Attempts to connect that have taken much longer than this one are restarted."""
        _close(probe)
        began = loop.time()
        probe = await self._connect()
        took = loop.time() - began
        for scope, since in list(self._connecting.items()):
            if since + SUSPECT_AFTER + took <= began and not scope.expired():
                scope.reschedule(began)
        return probe

    async def _ask(self, probe: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Ask what the server does for the overdue statements, and give up those for which it does nothing."""
        now = loop.time()
        suspects = {connection: waiting for connection, waiting in self._waiting.items() if waiting.look_at <= now}
        for connection, waiting in list(suspects.items()):
            if not self._addresses.primary and connection.address != probe.address:
                waiting.look_at = now + LONGEST
                del suspects[connection]
        if not suspects:
            return
        pids = [] if self.pooled else [connection.get_server_pid() for connection in suspects]
        backends = [Doing(*row) for row in await probe.fetch(_DOING, pids, PREFIX, self.pooled)]
        self.looks += 1
        now = loop.time()
        dead: list[Connection] = []
        orphans: list[int] = []
        for connection, waiting in suspects.items():
            if self._waiting.get(connection) is not waiting:
                continue  # answered meanwhile
            quiet = quiet_for(connection.socket)
            mine = find_candidates(waiting, backends, quiet, now) if self.pooled else find(connection, backends, now)
            if lost(waiting, mine, quiet, now):
                dead.append(connection)
                left = [backend for backend in mine if not self.pooled or backend.deserted(now - waiting.since)]
                orphans += [backend.pid for backend in left]
        if dead:
            await self._give_up(dead, orphans, probe, now)

    async def _give_up(self, dead: list[Connection], orphans: list[int], probe: Any, now: float) -> None:
        """Close connections, after terminating the backends that they left on the server, which may hold locks."""
        self._report(dead, now)
        try:
            if orphans:
                with suppress(asyncpg.InsufficientPrivilegeError):
                    await probe.fetch(_END, orphans)
        finally:
            for connection in dead:
                connection.terminate()
            await self._expire()

    def _report(self, dead: list[Connection], now: float) -> None:
        waited = [self._waiting[connection] for connection in dead]
        for statement in {waiting.statement for waiting in waited}:
            # Be more patient with this statement. If it were only slow in an undetectable way, it would
            # otherwise never finish.
            self._patience[statement] = min(self._patience.get(statement, SUSPECT_AFTER) * 2, MOST_PATIENCE)
        self.ended += len(dead)
        longest = max(now - waiting.since for waiting in waited)
        logger.warning(
            "Connections to the database at %s died in silence: %d, without an answer for %.1f s, while a fresh connection is"
            " answered and the server does nothing for them. They are closed.",
            self._place, len(dead), longest,
            extra={"database": self._place, "connections": len(dead), "seconds": round(longest, 3)},
        )  # fmt: skip

    # --- the log

    def _unknown(self, error: Exception, now: float) -> None:
        if self._silent_since is not None:
            return
        self._silent_since = now
        logger.warning(
            "The database at %s does not answer: %d calls wait for it, and a fresh connection fails, too (%s).",
            self._place,
            len(self._waiting) + len(self._connecting),
            first_line(error) or f"no answer within {PROBE_PATIENCE:g} s",
            extra={"database": self._place, "calls": len(self._waiting)},
        )

    def _known(self, now: float) -> None:
        if self._silent_since is not None:
            seconds, self._silent_since = now - self._silent_since, None
            logger.info(
                "The database at %s answers again, after %.1f s", self._place, seconds,
                extra={"database": self._place, "seconds": round(seconds, 3)},
            )  # fmt: skip


def find(connection: Any, backends: Collection[Doing], now: float) -> list[Doing]:
    """The backend that has served a connection since it was opened."""
    pid, age = connection.get_server_pid(), now - connection.opened_at
    return [backend for backend in backends if backend.pid == pid and abs(backend.age - age) < _OURS]


def find_candidates(waiting: Waiting, backends: Collection[Doing], quiet: float | None, now: float) -> list[Doing]:
    """The backends that may be executing a statement, if a pooler chooses them.

    A pooler serves requests in order. So once a later look has been answered, the statement is no longer in
    the pooler's queue. It is one of the executions that are running at that look, or it was lost, whatever
    begins afterwards. The exception is a statement that the server got after that look, as the second half
    of an exchange. In that case data has arrived since.

    Args:
        quiet: seconds since the connection made progress, if known.
    """
    age = now - waiting.since
    alike = {
        (backend.pid, backend.begun): backend
        for backend in backends
        if waiting.statement.startswith(backend.query or "") and (backend.busy is None or backend.busy < age + _OURS)
    }
    if waiting.looked_at and quiet is not None and quiet > now - waiting.looked_at:
        alike = {execution: backend for execution, backend in alike.items() if execution in waiting.candidates}
    waiting.candidates, waiting.looked_at = set(alike), now
    return list(alike.values())


def lost(waiting: Waiting, backends: Collection[Doing], quiet: float | None, now: float) -> bool:
    """Whether a statement or its answer was lost. Sets when to look again.

    Args:
        backends: the backends that may be executing it.
        quiet: seconds since its connection made progress, if known.
    """
    age = now - waiting.since
    if any(not backend.idle for backend in backends):
        waiting.idle = False
        waiting.look_at = now + min(max(age / 2, TICK), LONGEST)
        return False
    waiting.look_at = now + TICK
    if (quiet is None and age < UNMEASURED) or (quiet is not None and quiet < SUSPECT_AFTER):
        waiting.idle = False  # a large answer on a slow connection
        return False
    before, waiting.idle = waiting.idle, True
    return before


def _close(connection: Any) -> None:
    if connection is not None:
        connection.terminate()
