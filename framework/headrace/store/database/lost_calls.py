"""Decides which calls are lost, from what the server reports of its backends. It makes no query and has no state.

A call is looked up when it has waited for its answer for a while. While the server works on it, or it waits for a
lock, it is not lost. If the server does nothing for it at two successive lookups, the call or its answer was lost.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

SUSPECT_AFTER: Final = 1.0
"""Seconds without an answer after which a call is looked up. Normally hardly any call takes longer."""

MIN_INTERVAL: Final = 0.5
"""The minimum interval between two lookups in seconds. For a call on which the server is working, the interval
is half the call's age.
"""

MAX_INTERVAL: Final = 4.0
"""The maximum of this interval in seconds. So a server under load gets one cheap query now and then from each
process that waits for it.
"""

UNMEASURED: Final = 10.0
"""Seconds without an answer after which a call is given up on systems that can't measure whether data is still
arriving.
"""

COMPARED_CHARACTERS: Final = 200
"""The number of characters of a statement that are compared."""

BACKENDS = """
select pid, state, wait_event, extract(epoch from clock_timestamp() - backend_start)::float8 as age, left(query, $2) as query,
       extract(epoch from clock_timestamp() - query_start)::float8 as busy, extract(epoch from query_start)::float8 as started
from pg_catalog.pg_stat_activity
where datname = current_database() and usename = session_user and pid <> pg_backend_pid() and (pid = any($1) or $3)
"""
"""The query of the backends with these process ids, or of all if $3."""

# A backend belongs to a connection if it started when the connection was opened, within these seconds.
# Process ids are reused, and another server has the same ones.
_START_TOLERANCE = 5.0

# A statement is sent in steps with an answer each, and counts as active between them. An answer may
# also be too large to be sent at once.
_CLIENT = ("ClientRead", "ClientWrite")

_START_DELAY = 0.5
"""The maximum delay in seconds from the sending of a statement until the server starts it, if it did not have
to wait.
"""


class Backend(msgspec.Struct, frozen=True):
    """The activity of a backend, from `pg_stat_activity`.

    Attributes:
        age: seconds since the backend started.
        busy: seconds since it started its statement.
        started: when it started its statement, on the server's clock.
    """

    pid: int
    state: str | None
    wait_event: str | None
    age: float
    query: str | None
    busy: float | None
    started: float | None

    @property
    def idle(self) -> bool:
        """Whether the backend only waits for its client, which waits for it. Unknown without `track_activities`."""
        return self.state is not None and (self.state.startswith("idle") or self.wait_event in _CLIENT)

    def works_on(self, statement: str) -> bool:
        """Whether the backend is certainly working on a statement of this text."""
        return self.state == "active" and not self.idle and bool(self.query) and statement.startswith(self.query or "")

    def half_sent(self, age: float) -> bool:
        """Whether the backend waits for the second half of a statement, its arguments, that was sent `age`
        seconds ago.

        Half a statement counts as active, so no server timeout ends its transaction.
        """
        waits = self.state == "active" and self.wait_event == "ClientRead"
        return waits and self.busy is not None and abs(self.busy - age) < _START_DELAY


class PendingCall(msgspec.Struct):
    """A statement that waits for its answer.

    Attributes:
        statement: its text.
        since: when it was sent.
        next_lookup_at: when to look it up next.
        idle: whether the server did nothing for it at the last lookup.
        last_lookup_at: when it was last looked up.
        candidates: the executions, behind a pooler, that may be this statement: those of the same text that
            were running at every lookup since data arrived. Each is a backend and the time at which the
            execution started.
    """

    statement: str
    since: float
    next_lookup_at: float
    idle: bool = False
    last_lookup_at: float = 0.0
    candidates: set[tuple[int, float | None]] = msgspec.field(default_factory=set)


def backend_of(connection: Any, call: PendingCall, backends: Collection[Backend], now: float) -> list[Backend]:
    """The backend that has served a connection since it was opened. One that seems to be of another age is it as well, if it
    is working on the same statement: the server's clock may have been set."""
    pid, age = connection.get_server_pid(), now - connection.opened_at
    return [
        backend
        for backend in backends
        if backend.pid == pid and (abs(backend.age - age) < _START_TOLERANCE or backend.works_on(call.statement))
    ]


def find_candidates(call: PendingCall, backends: Collection[Backend], quiet: float | None, now: float) -> list[Backend]:
    """The backends that may be executing a statement, if a pooler chooses them.

    A pooler serves requests in order. So once a later lookup has been answered, the statement is no longer in
    the pooler's queue. It is one of the executions that are running at that lookup, or it was lost, whatever
    begins afterwards. The exception is a statement that the server got after that lookup, as the second half
    of an exchange. In that case data has arrived since.

    Args:
        quiet: seconds since the connection made progress, if known.
    """
    age = now - call.since
    matching = {
        (backend.pid, backend.started): backend
        for backend in backends
        if call.statement.startswith(backend.query or "")
        # What ran at the last lookup is kept, since the server's clock may have been set meanwhile.
        and (
            backend.busy is None
            or backend.busy < age + _START_TOLERANCE
            or (backend.pid, backend.started) in call.candidates
        )
    }
    if call.last_lookup_at and quiet is not None and quiet > now - call.last_lookup_at:
        matching = {execution: backend for execution, backend in matching.items() if execution in call.candidates}
    call.candidates, call.last_lookup_at = set(matching), now
    return list(matching.values())


def is_lost(call: PendingCall, backends: Collection[Backend], quiet: float | None, now: float) -> bool:
    """Whether a statement or its answer was lost. Sets when to look it up again.

    Args:
        backends: the backends that may be executing it.
        quiet: seconds since its connection made progress, if known.
    """
    age = now - call.since
    if any(not backend.idle for backend in backends):
        call.idle = False
        call.next_lookup_at = now + min(max(age / 2, MIN_INTERVAL), MAX_INTERVAL)
        return False
    call.next_lookup_at = now + MIN_INTERVAL
    if (quiet is None and age < UNMEASURED) or (quiet is not None and quiet < SUSPECT_AFTER):
        call.idle = False  # a large answer on a slow connection
        return False
    was_idle, call.idle = call.idle, True
    return was_idle
