"""Health and readiness of a server, with reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import anyio
import msgspec

from headrace import store
from headrace.app.app import App
from headrace.model.capture import CaptureState
from headrace.model.errors import HeadraceError
from headrace.model.sources import SourceInfo

TIMEOUT = 2.0
"""Default of the seconds that the database has to answer."""

CACHE_TTL = 1.0
"""Cache TTL of a result in seconds, so that many probes cause one query."""

MAX_UNATTENDED = 15.0
"""Seconds after which a source without a capturing process makes this process not ready, if it
captures. A takeover takes less than 10."""


class SourceReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """A source that captures none or only some of its tables now. See `CaptureInfo`."""

    name: str
    state: CaptureState
    reason: str | None
    mend: str | None


class DatabaseReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a further database answers, and if not, why. The others and the server continue without it."""

    name: str
    ready: bool
    reasons: tuple[str, ...] = ()


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Readiness of a server.

    Attributes:
        ready: whether requests should be sent to it.
        reasons: why not, one sentence each.
        draining: whether the server is stopping, which is no failure.
        database: whether the database answers.
        schema: whether the schema serves this server.
        sources: the sources that capture none or only some of their tables now, for any reason.
        databases: the further databases, if there are any. One that is unavailable doesn't make the server not ready.
    """

    ready: bool
    reasons: tuple[str, ...]
    draining: bool
    database: bool
    schema: bool
    sources: tuple[SourceReadiness, ...] = ()
    databases: tuple[DatabaseReadiness, ...] | msgspec.UnsetType = msgspec.UNSET


class DatabaseState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the database: whether it answers, whether its schema is right, what is wrong, and
    the sources that have problems."""

    database: bool
    schema: bool
    reason: str = ""
    sources: tuple[SourceReadiness, ...] = ()


class Health:
    """Checks an app and its database.

    Args:
        app: the app.
        clock: monotonic time in seconds.
        timeout: seconds that the database has to answer.

    Attributes:
        draining: whether the server is stopping.
        captures: whether this process captures the sources that no other process captures.
    """

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic, *, timeout: float = TIMEOUT) -> None:
        self._app = app
        self._clock = clock
        self._timeout = timeout
        self._lock = anyio.Lock()
        self._until = float("-inf")
        self._state = DatabaseState(database=False, schema=False)
        self._unattended: dict[str, float] = {}
        self.draining = False
        self.captures = False

    async def readiness(self, *, sources: bool = True) -> Readiness:
        """Return the current readiness. It takes as long as the database needs to answer, at most
        `timeout`.

        Args:
            sources: whether a stopped source makes the server not ready. Such sources are returned
                in any case.
        """
        app = self._app.readiness()
        draining = self.draining or app.draining
        reasons = list(app.reasons)
        if self.draining and not app.draining:
            reasons.insert(0, "The server is stopping, and accepts no more connections.")
        found = await self._cached_state()
        if found.reason:
            reasons.append(found.reason)
        if sources:
            reasons += self._of_sources(found.sources)
        return Readiness(
            ready=not reasons,
            reasons=tuple(reasons),
            draining=draining,
            database=found.database,
            schema=found.schema,
            sources=found.sources,
        )

    def _of_sources(self, sources: Sequence[SourceReadiness]) -> list[str]:
        """Return one sentence for each source that makes the server not ready."""
        return [sentence for one in sources if (sentence := self._of_source(one))]

    def _of_source(self, one: SourceReadiness) -> str:
        if one.state == "stopped":
            remedy = "" if one.mend is None else f" To fix it: {one.mend}"
            return f"The source {one.name} is stopped: {one.reason or 'the reason is unknown.'}{remedy}"
        since = self._unattended.get(one.name)
        if since is None or self._clock() - since < MAX_UNATTENDED or not self.captures:
            return ""
        reason = "" if one.reason is None else f" The last reason: {one.reason.rstrip('.')}."
        return f"No process has captured the source {one.name} for {self._clock() - since:.0f} s.{reason}"

    async def _cached_state(self) -> DatabaseState:
        async with self._lock:
            if self._clock() >= self._until:
                self._state = await self._read()
                self._until = self._clock() + CACHE_TTL
                self._record_unattended(self._state.sources)
            return self._state

    def _record_unattended(self, sources: Sequence[SourceReadiness]) -> None:
        """Record since when each source has had no capturing process."""
        now = self._clock()
        self._unattended = {
            one.name: self._unattended.get(one.name, now) for one in sources if one.state == "unattended"
        }

    async def _read(self) -> DatabaseState:
        try:
            with anyio.fail_after(self._timeout):
                state = await store.schema_state(self._app.database)
                if (reason := state.mismatch(self._app.database.dsn)) is not None:
                    return DatabaseState(database=True, schema=False, reason=reason)
                sources, _ = await store.sources_at_work(self._app.database)
        except TimeoutError:
            return DatabaseState(
                database=False, schema=False, reason=f"The database did not answer within {self._timeout:g} s."
            )
        except HeadraceError as error:
            return DatabaseState(database=False, schema=False, reason=str(error))  # public: for `admin` of all only
        return DatabaseState(database=True, schema=True, sources=tuple(sources_with_problems(sources)))


def sources_with_problems(sources: Sequence[SourceInfo]) -> list[SourceReadiness]:
    """Return the sources that should capture tables and now capture none or only some of them."""
    return [
        SourceReadiness(name=one.name, state=capture.state, reason=capture.reason, mend=capture.mend)
        for one in sources
        if (capture := one.capture) is not None and (capture.state != "running" or capture.reason is not None)
    ]
