"""The further databases of a server: opens each one, keeps it open, and opens it again after it was away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

import anyio
import anyio.abc

from headrace import store
from headrace.admin.databases import inspect
from headrace.app.app import App
from headrace.model.errors import UNEXPECTED, ConfigurationError, HeadraceError, StoreUnavailable, public_text
from headrace.model.log import Log
from headrace.model.records import DatabaseInfo
from headrace.runtime.pipeline.shared import Shared
from headrace.server.databases.data_app import DataApp
from headrace.server.databases.plane import Plane
from headrace.server.errors import unavailable
from headrace.store.database.references import resolve

log = Log("headrace")

LOOK_INTERVAL = 5.0
"""Seconds after which the list of databases is read again. A change by this server counts at once."""

RECONCILE_INTERVAL = 30.0
"""Seconds after which a server looks for streams and sources that workers created or deleted in a database directly."""

RECONCILE_TIMEOUT = 20.0
"""Seconds that a database has to return the names of its streams and sources."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between two tries to open a database that is away. They double from the first to the longest."""

OPENING = 5.0
"""Seconds for which requests wait for a database that is being opened for the first time."""

TRY_AGAIN = "Try again in a moment."
ASK = "The server's log says why."

MakePlane = Callable[[DataApp, str], Plane]
"""Makes the plane of a database, of its app and its name."""


class DataDatabase:
    """A further database. It is open as long as `keep` runs, unless it is unavailable.

    Args:
        info: its name and where its URL is.
        home: the server's own app.
        make: makes its plane.
        connections: the largest number of connections to it.

    Attributes:
        plane: answers requests. None while the database is not open.
        reason: why it is not open, for operators.
        hint: what a caller may do, without the reason.
        conflicts: names of streams and sources that another database has, so that this server can't reach them here.
        identity: its id, once it was open.
        opened: set while it is open.
        refused: whether it is left closed, because the server has too many.
    """

    def __init__(self, info: DatabaseInfo, home: App, make: MakePlane, connections: int) -> None:
        self.info = info
        self.url: str | None = None
        self.plane: Plane | None = None
        self.reason = "It is being opened."
        self.hint = TRY_AGAIN
        self.conflicts: tuple[str, ...] = ()
        self.identity: UUID | None = None
        self.refused = False
        self._home = home
        self._make = make
        self._connections = connections
        self._app: DataApp | None = None
        self.opened = anyio.Event()
        self._settled = anyio.Event()
        self._stopping = anyio.Event()
        self._scope = anyio.CancelScope()

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.info.name

    async def settled(self) -> Plane | None:
        """Wait until the first try to open it has ended. Returns the plane, or None if the database is unavailable."""
        if not self._settled.is_set():
            with anyio.move_on_after(OPENING):
                await self._settled.wait()
        return self.plane

    async def keep(self, others: Callable[[], Sequence[DataDatabase]]) -> None:
        """Open the database and serve it until `stop`. While it is unavailable, try again.

        Args:
            others: returns all further databases, none of which may be the same one.
        """
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            with anyio.CancelScope() as self._scope:
                try:
                    await self._serve(others)
                    pause = FIRST_PAUSE
                except HeadraceError as error:
                    self._failed(error)
                except Exception as error:  # a defect ends this database, and no other one
                    log.error("database failed", database=self.name, error=error, exc_info=error)
                    self.reason, self.hint = UNEXPECTED, ASK
            if self.plane is not None:
                pause = FIRST_PAUSE
            self.plane = self._app = None
            self.opened = anyio.Event()
            self._settled.set()
            with anyio.move_on_after(pause):
                await self._stopping.wait()
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _serve(self, others: Callable[[], Sequence[DataDatabase]]) -> None:
        self.url = url = resolve(self.info.url_from)
        await inspect(self._home.database, self.name, url)
        app = DataApp(url, self._home, self._connections)
        plane = self._make(app, self.name)
        async with app:
            self.identity = await store.database_identity(app.database)
            for one in others():
                if one is not self and one.identity == self.identity:
                    text = f"The databases {self.name!r} and {one.name!r} are the same one. Remove one of them."
                    raise ConfigurationError(text)
            await self.reconcile(app.database)
            self._app = app
            await app.serve(lambda: self._up(plane))

    def _up(self, plane: Plane) -> None:
        self.plane, self.reason = plane, ""
        log.info("database open", database=self.name)
        self._settled.set()
        self.opened.set()
        if self._stopping.is_set():
            self.stop()

    def _failed(self, error: HeadraceError) -> None:
        reason = public_text(error)
        self.hint = TRY_AGAIN if isinstance(error, StoreUnavailable) else ASK
        if reason != self.reason:  # once, and not at each try
            log.warning("database away", database=self.name, error=error, hint="it is opened once it answers")
        self.reason = reason

    async def reconcile(self, database: store.Database) -> bool:
        """Place the streams and sources that the database has, and forget those that it no longer has. Returns
        whether anything changed. Raises `StoreUnavailable` if that takes too long."""
        conflicts: list[str] = []
        any_change = False
        kinds: tuple[Literal["stream", "source"], ...] = ("stream", "source")
        with anyio.move_on_after(RECONCILE_TIMEOUT) as limit:
            for kind in kinds:
                after: str | None = None
                while True:
                    found = await store.names_of(database, kind, after)
                    taken, changed = await store.reconcile_places(self._home.database, kind, self.name, found, after)
                    conflicts += [f"{kind} {name}" for name in taken]
                    any_change = any_change or changed
                    if len(found) < store.PLACES_PAGE:
                        break
                    after = found[-1][0]
        if limit.cancelled_caught:
            raise unavailable(f"The names of the database {self.name!r} were not read within {RECONCILE_TIMEOUT:g} s.")
        if tuple(conflicts) != self.conflicts and conflicts:
            log.warning(
                "names taken by another database",
                database=self.name,
                names=", ".join(conflicts[:10]),
                count=len(conflicts),
                hint="requests reach those of the other database, rename or delete these",
            )
        self.conflicts = tuple(conflicts)
        return any_change

    def refuse(self, reason: str) -> None:
        """Leave it closed, for this reason."""
        self.refused, self.reason, self.hint = True, reason, ASK
        log.warning("database not opened", database=self.name, hint=reason)
        self._settled.set()

    def moved(self) -> bool:
        """Return whether the reference now leads to another URL than the one that is open."""
        if self.url is None:
            return False
        try:
            return resolve(self.info.url_from) != self.url
        except ConfigurationError:
            return False  # what is open stays open

    def stop(self) -> None:
        """Drain, and end `keep`. The second call ends immediately."""
        self._stopping.set()
        if self.plane is not None and self._app is not None:
            self._app.stop()
        else:
            self._scope.cancel()


class DataDatabases:
    """All further databases of a server, as its configuration database lists them. It is attached to the server's app.

    Args:
        app: the server's own app.
        make: makes the plane of a database.
        connections: the largest number of connections to one of them.
        most: the largest number of connections to all of them.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, app: App, make: MakePlane, connections: int, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._make = make
        self._connections = connections
        self._most = most // connections
        self._clock = clock
        self._entries: dict[str, DataDatabase] = {}
        self._closing: set[DataDatabase] = set()  # no longer in the list, and still draining
        self._looked = anyio.Event()
        self._changed = anyio.Event()
        self._wake = anyio.Event()
        self._draining = anyio.Event()
        self._running = False
        self._reconciled_at = float("-inf")
        self.on_changed: Callable[[], None] = lambda: None

    @property
    def exist(self) -> bool:
        """Whether there may be further databases."""
        return bool(self._entries) or (self._running and not self._looked.is_set())

    async def all(self) -> Mapping[str, DataDatabase]:
        """Return the further databases by name, once the list was read for the first time."""
        if self._running and not self._looked.is_set():
            with anyio.move_on_after(OPENING):
                await self._looked.wait()
        return self._entries

    @property
    def open(self) -> Mapping[str, Plane]:
        """The planes of those that are open, by name."""
        return {name: entry.plane for name, entry in self._entries.items() if entry.plane is not None}

    @property
    def away(self) -> Mapping[str, str]:
        """Why the others are not open, by name."""
        return {name: entry.reason for name, entry in self._entries.items() if entry.plane is None}

    async def entry(self, name: str) -> DataDatabase:
        """Wait until the list has a database of this name."""
        while name not in self._entries:
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._entries[name]

    def look(self) -> None:
        """Read the list of databases soon."""
        self._wake.set()

    # --- as attached to the app

    async def run(self, shared: Shared) -> None:
        """Keep the databases open until `drain`."""
        self._running = True
        try:
            async with anyio.create_task_group() as group, anyio.create_task_group() as looking:
                looking.start_soon(self._keep_looking, shared.database, group)
                await self._draining.wait()
                looking.cancel_scope.cancel()
                for entry in list(self._entries.values()):
                    entry.stop()
        finally:
            self._running = False
            self._draining, self._looked = anyio.Event(), anyio.Event()
            self._entries.clear()

    def drain(self) -> None:
        """Begin to drain all databases."""
        self._draining.set()

    def hurry(self) -> None:
        """Stop what still drains."""
        self._draining.set()
        for entry in (*self._entries.values(), *self._closing):
            entry.stop()

    def app_statistics(self) -> Mapping[str, Any]:
        """The consumers that the further databases push to."""
        consumers: dict[str, Any] = {}
        for plane in self.open.values():
            consumers.update(plane.app.statistics().get("consumers", {}))
        return {"consumers": consumers}

    def end_waits(self) -> None:
        """Answer all requests that wait for messages, and let no others wait."""
        for entry in self._entries.values():
            if entry.plane is not None:
                entry.plane.engine.end_waits()

    # --- the list

    async def _keep_looking(self, home: store.Database, group: anyio.abc.TaskGroup) -> None:
        while True:
            self._wake = anyio.Event()
            try:
                await self._look(home, group)
                self._looked.set()
                await self._reconcile()
            except StoreUnavailable:
                pass  # the list stays as it is while the configuration database is unavailable
            except HeadraceError as error:
                log.warning("list of databases not read", error=error)
                self._looked.set()
            with anyio.move_on_after(LOOK_INTERVAL):
                await self._wake.wait()

    async def _look(self, home: store.Database, group: anyio.abc.TaskGroup) -> None:
        listed = {one.name: one for one in await store.databases(home)}
        for name, entry in list(self._entries.items()):
            if listed.get(name) != entry.info or entry.moved():
                log.info("database closed", database=name)
                entry.stop()
                if not entry.refused:
                    self._closing.add(entry)
                del self._entries[name]
                self.on_changed()
        opened = sum(not entry.refused for entry in self._entries.values())
        for name, info in listed.items():
            entry = self._entries.get(name) or DataDatabase(info, self._app, self._make, self._connections)
            if name in self._entries and not (entry.refused and opened < self._most):
                continue
            self._entries[name] = entry
            self._changed.set()
            if opened < self._most:
                opened += 1
                entry.refused = False
                group.start_soon(self._keep, entry)
            else:
                entry.refuse(
                    f"This server opens {self._most} further databases at most. Raise its option max_data_connections."
                )

    async def _keep(self, entry: DataDatabase) -> None:
        try:
            await entry.keep(lambda: list(self._entries.values()))
        finally:
            self._closing.discard(entry)

    async def _reconcile(self) -> None:
        if self._clock() - self._reconciled_at < RECONCILE_INTERVAL:
            return
        self._reconciled_at = self._clock()
        async with anyio.create_task_group() as group:
            for entry in self._entries.values():
                if entry.plane is not None:
                    group.start_soon(self._reconcile_one, entry, entry.plane)

    async def _reconcile_one(self, entry: DataDatabase, plane: Plane) -> None:
        try:
            if await entry.reconcile(plane.app.database):
                self.on_changed()
        except HeadraceError as error:
            log.debug("names not reconciled", database=entry.name, error=error)
