"""A failure detector: which of the calls that wait for an answer will never get one.

A deadline alone can't tell a dead connection from a slow server, and what a slow server needs least is to be asked everything again. So
a call that has no answer after a second is looked up: on a fresh connection the server is asked what it is doing for it. While it works
on it, or waits for a lock, the call waits, too. When the server has nothing to do for it, twice in a row, the call or its answer was
lost on the way: that connection is closed, and its backend is ended, which may hold locks. When a fresh connection gets no answer
either, nothing is known, and nothing is given up.
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

from headrace.store.addresses import Addresses
from headrace.store.liveness import quiet_for
from headrace.store.translate import first_line, safe

if TYPE_CHECKING:
    from headrace.store.connection import Connection

logger = logging.getLogger("headrace")

SUSPECT_AFTER: Final = 1.0
"""Seconds without an answer after which a call is looked up. Hardly any call takes longer when all is well."""

TICK: Final = 0.5
"""Seconds between two looks, at the shortest. They are less frequent for calls that the server works on: half the call's age ..."""

LONGEST: Final = 4.0
"""... up to so many seconds: a server under load is asked one cheap question now and then, by each process that waits for it."""

PROBE_PATIENCE: Final = 2.0
"""Seconds that a fresh connection has to connect and answer, for each address. When it takes longer, nothing is known, and it is tried again."""

UNMEASURED: Final = 10.0
"""Seconds without an answer before a call is given up where the system can't say whether data is still coming in."""

MOST_PATIENCE: Final = 60.0

PREFIX: Final = 200
"""Characters of a statement that are compared."""

# A backend belongs to a connection of ours if it began when that one was opened: pids are given again, by another server, too.
_OURS = 5.0

_DOING = """
select pid, state, wait_event, extract(epoch from clock_timestamp() - backend_start)::float8 as age, left(query, $2) as query,
       extract(epoch from clock_timestamp() - query_start)::float8 as busy, extract(epoch from query_start)::float8 as begun
from pg_catalog.pg_stat_activity
where datname = current_database() and usename = session_user and pid <> pg_backend_pid() and (pid = any($1) or $3)
"""
# A statement is sent in steps, each answered, and counts as active in between. And an answer may be too large to be on its way as a whole.
_CLIENT = ("ClientRead", "ClientWrite")

_HALF = 0.5
"""Seconds between the sending of a statement and its beginning at the server, at most, when it was not kept waiting."""

# A timeout is an OSError.
_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_END = "select pg_catalog.pg_terminate_backend(pid) from unnest($1::int[]) as pid"


class Doing(msgspec.Struct, frozen=True):
    """What a backend does, as `pg_stat_activity` tells it.

    Attributes:
        age: seconds since the backend began.
        busy: seconds since it began its statement.
        begun: when that was, on the server's clock.
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
        """Whether it does nothing but wait for its client, which waits for it. Without `track_activities` that isn't known."""
        return self.state is not None and (self.state.startswith("idle") or self.wait_event in _CLIENT)

    def deserted(self, age: float) -> bool:
        """Whether it has waited for the second half of a statement, its arguments, since one was sent that is `age` seconds old.

        Half a statement counts as active, so no timeout of the server's ends its transaction.
        """
        waits = self.state == "active" and self.wait_event == "ClientRead"
        return waits and self.busy is not None and abs(self.busy - age) < _HALF


class Waiting(msgspec.Struct):
    """A statement that waits for its answer.

    Attributes:
        statement: its text.
        since: when it was sent.
        look_at: when to look it up, or look it up again.
        idle: whether the last look found that the server does nothing for it.
        looked_at: when it was last looked up.
        candidates: behind a pooler, the executions of such a statement that have been under way at every look since data came in, one
            of which may be this one: the backend, and when it began.
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
        expire: has the pool replace its idle connections, which may have died of the same.
        addresses: of the database. A fresh connection may lead to another one of them than a call waits for; that says something
            about the call only if there can be but one primary.

    Attributes:
        pooled: whether a pooler stands between, so that backends can't be known by their pids.
        looks: how often the server has said what it does.
        ended: connections that were given up.
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
        """A statement is being sent."""
        loop = connection._loop
        now = loop.time()
        patience = self._patience.get(statement, SUSPECT_AFTER) if self._patience else SUSPECT_AFTER
        self._waiting[connection] = Waiting(statement, now, now + patience)
        if self._timer is None or self._loop is not loop:
            self._begin(loop)

    def answered(self, connection: Connection, *, well: bool) -> None:
        """It has its answer; or the connection broke."""
        waited = self._waiting.pop(connection, None)
        if not well or waited is None:
            return
        if self._patience:
            self._patience.pop(waited.statement, None)
        if self._silent_since is not None:
            self._known(connection._loop.time())

    async def connected(self, connect: Callable[[], Awaitable[Any]]) -> Any:
        """A connection by `connect`, which is begun anew when later connections are made and this one isn't."""
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
        """Look no more."""
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
            self._loop, self._looking = loop, None  # what there was ended with its loop
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
        """Look up what is overdue, again and again until nothing is. The fresh connection is kept as long as that takes."""
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
        """Look up what is overdue, on the connection of the last time or on a fresh one. Returns the one that was answered."""
        if probe is not None and not self._has_old_attempts(loop.time()):
            with suppress(*_FAILURES):  # it may have died since, as those that it is there for
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
        """A fresh connection. Those that have been in the making for much longer than this one took are begun anew."""
        _close(probe)
        began = loop.time()
        probe = await self._connect()
        took = loop.time() - began
        for scope, since in list(self._connecting.items()):
            if since + SUSPECT_AFTER + took <= began and not scope.expired():
                scope.reschedule(began)
        return probe

    async def _ask(self, probe: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Ask what the server does for the statements that are overdue, and give up those that it does nothing for."""
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
        """Close connections, after ending what they have left behind on the server: it may hold locks."""
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
            # Were it only slow, in a way that can't be seen from here, it would never come to an end.
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
    """The backend that has served a connection from its beginning."""
    pid, age = connection.get_server_pid(), now - connection.opened_at
    return [backend for backend in backends if backend.pid == pid and abs(backend.age - age) < _OURS]


def find_candidates(waiting: Waiting, backends: Collection[Doing], quiet: float | None, now: float) -> list[Doing]:
    """The backends that may be at work on a statement, where a pooler chooses them.

    A pooler serves first who came first. So once a look is answered, which came later, the statement is no longer in its queue: it is
    one of those that are under way then, or none, however many of its kind begin afterwards. Unless it was sent after that look, as
    the second half of a conversation: then something has come in since.

    Args:
        quiet: seconds since the connection made progress, if that is known.
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
    """Whether a statement, or its answer, was lost on the way. Notes when to look again.

    Args:
        backends: those that may be at work on it.
        quiet: seconds since its connection made progress, if that is known.
    """
    age = now - waiting.since
    if any(not backend.idle for backend in backends):
        waiting.idle = False
        waiting.look_at = now + min(max(age / 2, TICK), LONGEST)
        return False
    waiting.look_at = now + TICK
    if (quiet is None and age < UNMEASURED) or (quiet is not None and quiet < SUSPECT_AFTER):
        waiting.idle = False  # an answer that is large, on a line that is slow
        return False
    before, waiting.idle = waiting.idle, True
    return before


def _close(connection: Any) -> None:
    if connection is not None:
        connection.terminate()
