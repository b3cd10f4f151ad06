"""Health: whether a server can do its work, and if not, why."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import msgspec

from headrace import store
from headrace.app.app import App
from headrace.model.errors import HeadraceError
from headrace.store.migrate import migrations

PATIENCE = 2.0
"""Seconds that the database has to answer."""

FRESH = 1.0
"""Seconds for which an answer counts. Probes of many come to one question."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is.

    Attributes:
        ready: whether requests should be sent here.
        reasons: why not, a sentence for each.
        draining: it was told to stop; nothing is wrong.
        database: whether the database answers.
        schema: whether its schema is the one that this server knows.
    """

    ready: bool
    reasons: tuple[str, ...]
    draining: bool
    database: bool
    schema: bool


class Health:
    """Looks at an app and its database.

    Args:
        app: the app.
        clock: seconds, monotonic.

    Attributes:
        draining: whether the server was told to stop.
    """

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._known = migrations()[-1].version
        self._asking = anyio.Lock()
        self._until = float("-inf")
        self._found = (False, False, "")
        self.draining = False

    async def readiness(self) -> Readiness:
        """How it is now. It takes as long as the database does to answer, `PATIENCE` at most."""
        at_work = self._app.readiness()
        draining = self.draining or at_work.draining
        reasons = list(at_work.reasons)
        if self.draining and not at_work.draining:
            reasons.insert(0, "The server was told to stop: it takes no more connections.")
        database, schema, reason = await self._ask()
        if reason:
            reasons.append(reason)
        return Readiness(ready=not reasons, reasons=tuple(reasons), draining=draining, database=database, schema=schema)

    async def _ask(self) -> tuple[bool, bool, str]:
        """Whether the database answers, whether its schema is right, and what is wrong."""
        async with self._asking:
            if self._clock() >= self._until:
                self._found = await self._look()
                self._until = self._clock() + FRESH
            return self._found

    async def _look(self) -> tuple[bool, bool, str]:
        try:
            with anyio.fail_after(PATIENCE):
                there = await store.schema_version(self._app.database)
        except TimeoutError:
            return False, False, f"The database has not answered for {PATIENCE:g} s."
        except HeadraceError as error:
            return False, False, str(error)
        if there != self._known:
            return True, False, f"The database's schema is at version {there}, and this server's is {self._known}."
        return True, True, ""
