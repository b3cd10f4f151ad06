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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import asyncpg

from headrace.model.clock import suspension_clock
from headrace.model.log import Log
from headrace.model.text.masking import masked
from headrace.store.connections.addresses import Addresses
from headrace.store.connections.keepalive import quiet_for
from headrace.store.database.errors import first_line
from headrace.store.database.lost_calls import (
    BACKENDS,
    COMPARED_CHARACTERS,
    MAX_INTERVAL,
    MIN_INTERVAL,
    SUSPECT_AFTER,
    Backend,
    PendingCall,
    backend_of,
    find_candidates,
    is_lost,
)

if TYPE_CHECKING:
    from headrace.store.connections.connection import Connection

log = Log("headrace")

PROBE_TIMEOUT: Final = 2.0
"""The timeout of a fresh connection per address, for connecting and answering, in seconds. After it nothing is
known, and it is tried again.
"""

MAX_SUSPECT_AFTER: Final = 60.0
"""The maximum of `SUSPECT_AFTER` for a statement that was given up before."""

# A timeout is an OSError.
_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_TERMINATE = "select pg_catalog.pg_terminate_backend(pid) from unnest($1::int[]) as pid"


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
        lookups: how often the server has reported what it is doing.
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
        self.lookups = 0
        self.ended = 0
        self._address = masked(dsn)
        self._connect = connect
        self._expire = expire
        self._addresses = addresses
        self._waiting: dict[Connection, PendingCall] = {}
        self._connecting: dict[asyncio.Timeout, float] = {}
        self._suspect_after: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lookups_task: asyncio.Task[None] | None = None
        self._silent_since: float | None = None

    # --- what is watched

    def sent(self, connection: Connection, statement: str) -> None:
        """Note that a statement is being sent."""
        loop = connection._loop
        now = suspension_clock()
        suspect_after = self._suspect_after.get(statement, SUSPECT_AFTER) if self._suspect_after else SUSPECT_AFTER
        self._waiting[connection] = PendingCall(statement, now, now + suspect_after)
        if self._timer is None or self._loop is not loop:
            self._start_timer(loop)

    def answered(self, connection: Connection, *, succeeded: bool) -> None:
        """Note that the statement was answered, or that its connection broke."""
        calls = self._waiting.pop(connection, None)
        if not succeeded or calls is None:
            return
        if self._suspect_after:
            self._suspect_after.pop(calls.statement, None)
        if self._silent_since is not None:
            self._answers(suspension_clock())

    async def connected(self, connect: Callable[[], Awaitable[Any]]) -> Any:
        """Open a connection with `connect`. The attempt restarts if connections that were started later
        succeed first.
        """
        loop = asyncio.get_running_loop()
        while True:
            scope = asyncio.timeout(None)
            try:
                async with scope:
                    self._connecting[scope] = suspension_clock()
                    if self._timer is None or self._loop is not loop:
                        self._start_timer(loop)
                    return await connect()
            except TimeoutError:
                if not scope.expired():
                    raise
            finally:
                self._connecting.pop(scope, None)

    async def close(self) -> None:
        """Stop task."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task, self._lookups_task = self._lookups_task, None
        if task is not None and self._loop is asyncio.get_running_loop() and not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])

    # --- task

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            self._loop, self._lookups_task = loop, None  # the previous task ended with its loop
        self._timer = loop.call_later(MIN_INTERVAL, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting and not self._connecting:
            self._timer = None
            return
        self._timer = loop.call_later(MIN_INTERVAL, self._tick, loop)
        if (self._lookups_task is None or self._lookups_task.done()) and self._overdue(suspension_clock()):
            self._lookups_task = loop.create_task(self._look_up_overdue(loop))

    def _overdue(self, now: float) -> bool:
        """Whether something has to be looked up."""
        return any(call.next_lookup_at <= now for call in self._waiting.values()) or self._has_old_attempts(now)

    def _has_old_attempts(self, now: float) -> bool:
        return any(since + SUSPECT_AFTER <= now for since in self._connecting.values())

    async def _look_up_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look up what is overdue, repeatedly, until nothing is remaining. The fresh connection is kept for that time."""
        probe = None
        try:
            while self._waiting or self._has_old_attempts(suspension_clock()):
                if self._overdue(started := suspension_clock()):
                    try:
                        probe = await self._look_up(probe, loop)
                    except _FAILURES as error:
                        self._does_not_answer(error, started)
                        probe = None
                    else:
                        self._answers(suspension_clock())
                await asyncio.sleep(MIN_INTERVAL)
        finally:
            _close(probe)

    async def _look_up(self, probe: Any, loop: asyncio.AbstractEventLoop) -> Any:
        """Look up what is overdue, on the previous connection or a fresh one. Returns the connection that answered."""
        if probe is not None and not self._has_old_attempts(suspension_clock()):
            with suppress(*_FAILURES):  # it may have died meanwhile too
                async with asyncio.timeout(MIN_INTERVAL):
                    await self._find_lost(probe)
                    return probe
        async with asyncio.timeout(PROBE_TIMEOUT * len(self._addresses)):
            probe = await self._new_probe(probe, loop)
            try:
                await self._find_lost(probe)
            except BaseException:
                _close(probe)
                raise
            return probe

    async def _new_probe(self, probe: Any, loop: asyncio.AbstractEventLoop) -> Any:
        """Open a fresh connection. Attempts to connect that have taken much longer than this one are restarted."""
        _close(probe)
        started = suspension_clock()
        probe = await self._connect()
        took = suspension_clock() - started
        for scope, since in list(self._connecting.items()):
            if since + SUSPECT_AFTER + took <= started and not scope.expired():
                scope.reschedule(loop.time())
        return probe

    async def _find_lost(self, probe: Any) -> None:
        """Ask what the server does for the overdue statements, and give up those for which it does nothing."""
        now = suspension_clock()
        suspects = {connection: call for connection, call in self._waiting.items() if call.next_lookup_at <= now}
        for connection, call in list(suspects.items()):
            if not self._addresses.primary and connection.address != probe.address:
                call.next_lookup_at = now + MAX_INTERVAL
                del suspects[connection]
        if not suspects:
            return
        pids = [] if self.pooled else [connection.get_server_pid() for connection in suspects]
        backends = [Backend(*row) for row in await probe.fetch(BACKENDS, pids, COMPARED_CHARACTERS, self.pooled)]
        self.lookups += 1
        now = suspension_clock()
        dead: list[Connection] = []
        orphans: list[int] = []
        for connection, call in suspects.items():
            if self._waiting.get(connection) is not call:
                continue  # answered meanwhile
            quiet = quiet_for(connection.socket)
            candidates = (
                find_candidates(call, backends, quiet, now)
                if self.pooled
                else backend_of(connection, call, backends, now)
            )
            if is_lost(call, candidates, quiet, now):
                dead.append(connection)
                remaining = [
                    backend for backend in candidates if not self.pooled or backend.half_sent(now - call.since)
                ]
                orphans += [backend.pid for backend in remaining]
        if dead:
            await self._give_up(dead, orphans, probe, now)

    async def _give_up(self, dead: list[Connection], orphans: list[int], probe: Any, now: float) -> None:
        """Close connections, after terminating the backends that remain on the server, which may hold locks."""
        self._report(dead, now)
        try:
            if orphans:
                with suppress(asyncpg.InsufficientPrivilegeError):
                    await probe.fetch(_TERMINATE, orphans)
        finally:
            for connection in dead:
                connection.terminate()
            await self._expire()

    def _report(self, dead: list[Connection], now: float) -> None:
        calls = [self._waiting[connection] for connection in dead]
        for statement in {call.statement for call in calls}:
            # Be more patient with this statement. If it were only slow in an undetectable way, it would
            # otherwise never finish.
            self._suspect_after[statement] = min(
                self._suspect_after.get(statement, SUSPECT_AFTER) * 2, MAX_SUSPECT_AFTER
            )
        self.ended += len(dead)
        longest = max(now - call.since for call in calls)
        log.warning(
            "connections died silently",
            database=self._address,
            connections=len(dead),
            seconds=round(longest, 3),
            hint="they are closed, since a fresh connection is answered and the server does nothing for them",
        )

    # --- the log

    def _does_not_answer(self, error: Exception, now: float) -> None:
        if self._silent_since is not None:
            return
        self._silent_since = now
        log.warning(
            "database does not answer",
            database=self._address,
            calls=len(self._waiting) + len(self._connecting),
            error=first_line(error) or f"no answer within {PROBE_TIMEOUT:g} s",
        )

    def _answers(self, now: float) -> None:
        if self._silent_since is not None:
            seconds, self._silent_since = now - self._silent_since, None
            log.info("database answers again", database=self._address, seconds=round(seconds, 3))


def _close(connection: Any) -> None:
    if connection is not None:
        connection.terminate()
