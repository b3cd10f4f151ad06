"""Finds the database in which a request is answered.

A server without further databases doesn't come here. With some, the name or id in a request is looked up among the
places of the configuration database, at most every two seconds. Names without a place are answered by the server's own
database, also with its errors for missing objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import anyio

from headrace import store
from headrace.model.errors import HeadraceError, StoreUnavailable, UnknownDatabase, UnknownSchedule
from headrace.model.tokens import NEEDS
from headrace.server.callers import Caller
from headrace.server.data_plane.lookup_cache import LookupCache
from headrace.server.data_plane.registry import Named, only_one
from headrace.server.databases.data_databases import OPENING, TRY_AGAIN, DataDatabase, DataDatabases
from headrace.server.databases.plane import Plane
from headrace.server.databases.targets import Target
from headrace.server.engine import Engine
from headrace.server.errors import unavailable
from headrace.server.merging import reachable

FIND_TIMEOUT = 5.0
"""Seconds that each database has to look for a consumer, or to return a page of a list."""

MAX_AGE_IN_OUTAGE = 60.0
"""Seconds for which known places are used while the configuration database doesn't answer."""

MAX_KNOWN = 10_000
"""Largest number of places that are kept for such an outage."""

MAX_REF = 64
"""More characters than any name or id of a stream or source has. Webhooks come without a token, so what is longer is
neither looked up nor kept."""

_SLOW = f"The database did not answer within {FIND_TIMEOUT:g} s. Try again."


class Router:
    """Finds the plane that answers a request. It is also the `Further` of the server's own engine.

    Args:
        home: the plane of the server's own database.
        databases: the further databases.
        clock: monotonic time in seconds.
    """

    def __init__(self, home: Plane, databases: DataDatabases, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._databases = databases
        self._clock = clock
        self._places: LookupCache[Target, store.Place | None] = LookupCache(clock)
        self._known: dict[Target, tuple[float, store.Place | None]] = {}
        self._named: LookupCache[tuple[frozenset[str] | None, Target], str | None] = LookupCache(clock)

    @property
    def exist(self) -> bool:
        """Whether there may be further databases."""
        return self._databases.exist

    def clear(self) -> None:
        """Clear the caches after something was created, changed or deleted."""
        self._places.clear()
        self._named.clear()

    async def plane_of(self, target: Target | None, caller: Caller, *, webhook: bool = False) -> Plane:
        """Return the plane that answers a request.

        Args:
            target: what the request names.
            caller: its caller.
            webhook: whether it delivers a webhook, which has no token.

        Raises:
            StoreUnavailable: the database is away. A token that may not know of the stream gets the server's own plane, and so
                the error for a stream that doesn't exist.
            Problem: databases have different consumers, or schedules, of this name.
        """
        if target is None:
            return self._home
        if target.kind in ("consumer", "schedule"):
            stream, colon, _ = target.ref.partition(":")
            if not colon:
                return await self._plane_of_named(target, caller)
            target = Target("stream", stream)
        place = await self._place(target)
        if place is None:
            return self._home
        database = (await self._databases.all()).get(place.database)
        if database is None:  # it was removed, or added a moment ago
            self._databases.look()
            return self._home
        plane = await database.settled()
        if plane is not None:
            return plane
        streams = _streams(caller)
        if webhook or streams is None or (target.kind == "stream" and place.name in streams):
            raise _away([database])
        return self._home

    async def _place(self, target: Target) -> store.Place | None:
        assert target.kind in ("stream", "source")
        kind: store.PlaceKind = "stream" if target.kind == "stream" else "source"
        if len(target.ref) > MAX_REF:
            return None

        async def find() -> store.Place | None:
            found = await store.place_of(self._home.app.database, kind, target.ref)
            if found is None and kind == "source":  # anyone may ask for the webhook of any name
                return None
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[target] = self._clock(), found
            return found

        try:
            return await self._places.get(target, find)
        except StoreUnavailable:
            known = self._known.get(target)
            if known is None or self._clock() - known[0] > MAX_AGE_IN_OUTAGE:
                raise
            return known[1]

    # --- consumers by their id or name alone, and schedules by their name alone

    async def _plane_of_named(self, target: Target, caller: Caller) -> Plane:
        streams = _streams(caller)
        name = await self._named.get((streams, target), lambda: self._find_named(streams, target))
        if name is None:
            return self._home
        database = (await self._databases.all()).get(name)
        plane = None if database is None else await database.settled()
        if plane is None:
            self._named.clear()
            raise unavailable(f"The database {name!r} is not available now. {TRY_AGAIN}")
        return plane

    async def _find_named(self, streams: frozenset[str] | None, target: Target) -> str | None:
        """Return the database that has a consumer or schedule. None for the server's own, also if no database has it."""
        found: dict[str | None, Sequence[Named]] = {}
        engines, away = await self._answering()
        databases = await self._databases.all()
        failures: list[HeadraceError] = []

        async def find(name: str | None, engine: Engine) -> None:
            try:
                with anyio.fail_after(FIND_TIMEOUT):
                    found[name] = await _find_in(engine, streams, target)
            except (HeadraceError, TimeoutError) as error:
                if name is not None:
                    away.append(databases[name])
                else:  # raised outside of the group, which would wrap it
                    failures.append(error if isinstance(error, HeadraceError) else unavailable(_SLOW))

        async with anyio.create_task_group() as group:
            for name, engine in engines.items():
                group.start_soon(find, name, engine)
        if failures:
            raise failures[0]
        hits = {name: found[name] for name in engines if found.get(name)}  # in one order, whichever answered first
        if not hits:
            if away and (streams is None or await self._lives_in(streams, away)):
                raise _away(away)
            return None
        only_one([one for named in hits.values() for one in named], target.ref, target.kind)
        return next(iter(hits))

    async def _lives_in(self, streams: frozenset[str], databases: list[DataDatabase]) -> bool:
        names = {one.name for one in databases}
        return any(
            place.database in names for place in await store.places_of(self._home.app.database, "stream", streams)
        )

    async def _answering(self) -> tuple[dict[str | None, Engine], list[DataDatabase]]:
        """Return the engines of all databases that are open, and the databases that are not."""
        engines: dict[str | None, Engine] = {None: self._home.engine}
        away = []
        for name, database in (await self._databases.all()).items():
            plane = await database.settled()
            if plane is None:
                away.append(database)
            else:
                engines[name] = plane.engine
        return engines, away

    # --- as the `Further` of the server's own engine

    async def engines(self) -> tuple[Mapping[str, Engine], list[str]]:
        """Return the engines of the further databases that are open, by name, and the names of the others."""
        engines, away = await self._answering()
        return {name: engine for name, engine in engines.items() if name is not None}, [one.name for one in away]

    async def engine(self, name: str) -> Engine:
        """Return the engine of a further database. Raises `UnknownDatabase`, or `StoreUnavailable` if it is away."""
        database = (await self._databases.all()).get(name)
        if database is None:
            # Perhaps another server, or the command line, has added it a moment ago.
            if any(one.name == name for one in await store.databases(self._home.app.database)):
                self._databases.look()
                with anyio.move_on_after(OPENING):
                    database = await self._databases.entry(name)
            else:
                raise UnknownDatabase(f"The server has no database {name[:80]!r}. `headrace database ls` lists them.")
        if database is None:
            raise unavailable(f"The database {name!r} was just added, and is being opened. Try again.")
        plane = await database.settled()
        if plane is None:
            raise _away([database])
        return plane.engine

    def look(self) -> None:
        """Read the list of databases soon."""
        self._databases.look()


def _streams(caller: Caller) -> frozenset[str] | None:
    """Return the streams that a caller may know of. None for all."""
    found: set[str] = set()
    for need in NEEDS:
        streams = caller.streams(need)
        if streams is None:
            return None
        found |= streams
    return frozenset(found)


async def _find_in(engine: Engine, streams: frozenset[str] | None, target: Target) -> Sequence[Named]:
    """Return the consumers or the schedule of a database, as far as requests reach their streams."""
    found: Sequence[Named]
    if target.kind == "consumer":
        found = await store.find_consumers(engine.app.database, target.ref, streams)
    else:
        try:
            schedule = await store.schedule(engine.app.database, target.ref)
        except UnknownSchedule:
            return []
        found = [schedule] if streams is None or schedule.stream in streams else []
    return await reachable(engine, "stream", found, lambda one: one.stream)


def _away(databases: list[DataDatabase]) -> StoreUnavailable:
    """The error that databases are not open now. It names no host."""
    names = ", ".join(repr(one.name) for one in databases)
    what = f"The databases {names} are" if len(databases) > 1 else f"The database {names} is"
    hint = databases[0].hint if len(databases) == 1 else TRY_AGAIN
    return unavailable(f"{what} not available now. {hint}")
