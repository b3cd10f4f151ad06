"""Health: whether a server can do its work, and if not, why."""

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
from headrace.store.migrate import migrations

PATIENCE = 2.0
"""Seconds that the database has to answer."""

FRESH = 1.0
"""Seconds for which an answer counts. Probes of many come to one question."""

UNATTENDED = 15.0
"""Seconds for which nobody may have captured a source in whose database this process captures. To be taken over takes less than 10."""


class SourceReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """A source that captures tables, and does not do so now, or not all of them; see `CaptureInfo`."""

    name: str
    state: CaptureState
    reason: str | None
    mend: str | None


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is.

    Attributes:
        ready: whether requests should be sent here.
        reasons: why not, a sentence for each.
        draining: it was told to stop; nothing is wrong.
        database: whether the database answers.
        schema: whether its schema is the one that this server knows.
        sources: those that capture nothing now, whatever the reason, or not all of their tables.
    """

    ready: bool
    reasons: tuple[str, ...]
    draining: bool
    database: bool
    schema: bool
    sources: tuple[SourceReadiness, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the database has told: whether it answers, whether its schema is right, what is wrong, and how sources are."""

    database: bool
    schema: bool
    reason: str = ""
    sources: tuple[SourceReadiness, ...] = ()


class Health:
    """Looks at an app and its database.

    Args:
        app: the app.
        clock: seconds, monotonic.

    Attributes:
        draining: whether the server was told to stop.
        captures: whether this process captures what nobody else does.
    """

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._known = migrations()[-1].version
        self._asking = anyio.Lock()
        self._until = float("-inf")
        self._found = Found(database=False, schema=False)
        self._unattended: dict[str, float] = {}
        self.draining = False
        self.captures = False

    async def readiness(self, *, sources: bool = True) -> Readiness:
        """How it is now. It takes as long as the database does to answer, `PATIENCE` at most.

        Args:
            sources: whether a source that is stopped makes it not ready. It is told in any case.
        """
        at_work = self._app.readiness()
        draining = self.draining or at_work.draining
        reasons = list(at_work.reasons)
        if self.draining and not at_work.draining:
            reasons.insert(0, "The server was told to stop: it takes no more connections.")
        found = await self._ask()
        if found.reason:
            reasons.append(found.reason)
        if sources:
            reasons += self._of_sources(found.sources)
        return Readiness(
            ready=not reasons, reasons=tuple(reasons), draining=draining, database=found.database, schema=found.schema,
            sources=found.sources,
        )  # fmt: skip

    def _of_sources(self, sources: Sequence[SourceReadiness]) -> list[str]:
        """What is wrong with them, a sentence for each."""
        return [sentence for one in sources if (sentence := self._of_source(one))]

    def _of_source(self, one: SourceReadiness) -> str:
        if one.state == "stopped":
            mend = "" if one.mend is None else f" Mend it with: {one.mend}"
            return f"The source {one.name} is stopped: {one.reason or 'nobody has told why.'}{mend}"
        since = self._unattended.get(one.name)
        if since is None or self._clock() - since < UNATTENDED or not self.captures:
            return ""
        told = "though this process could" if one.reason is None else f"the last reason: {one.reason}"
        return (
            f"The source {one.name} has been captured by nobody for {self._clock() - since:.0f} s, {told.rstrip('.')}."
        )

    async def _ask(self) -> Found:
        async with self._asking:
            if self._clock() >= self._until:
                self._found = await self._look()
                self._until = self._clock() + FRESH
                self._note(self._found.sources)
            return self._found

    def _note(self, sources: Sequence[SourceReadiness]) -> None:
        """Remember since when nobody captures them."""
        now = self._clock()
        self._unattended = {
            one.name: self._unattended.get(one.name, now) for one in sources if one.state == "unattended"
        }

    async def _look(self) -> Found:
        try:
            with anyio.fail_after(PATIENCE):
                there = await store.schema_version(self._app.database)
                if there != self._known:
                    reason = f"The database's schema is at version {there}, and this server's is {self._known}."
                    return Found(database=True, schema=False, reason=reason)
                sources, _ = await store.sources_at_work(self._app.database)
        except TimeoutError:
            return Found(database=False, schema=False, reason=f"The database has not answered for {PATIENCE:g} s.")
        except HeadraceError as error:
            return Found(database=False, schema=False, reason=str(error))
        return Found(database=True, schema=True, sources=tuple(troubled(sources)))


def troubled(sources: Sequence[SourceInfo]) -> list[SourceReadiness]:
    """The sources that should capture tables, and don't do so now, or not all of them."""
    return [
        SourceReadiness(name=one.name, state=how.state, reason=how.reason, mend=how.mend)
        for one in sources
        if (how := one.capture) is not None and (how.state != "running" or how.reason is not None)
    ]
