"""Names of streams and sources, which are unique among all databases of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace import store
from headrace.server.claims import exists_elsewhere


class DataNames:
    """The names of one further database. Its routes claim a name before they create something, and forget it
    after they deleted it. So a crash leaves at most a name without a stream, which the next creation in the same
    database uses, and which is forgotten after some minutes.

    Args:
        home: returns the configuration database.
        database: the name of the further database.
    """

    def __init__(self, home: Callable[[], store.Database], database: str) -> None:
        self.database = database
        self._home = home

    async def reachable(self, kind: store.PlaceKind, names: Iterable[str]) -> frozenset[str]:
        """Return those of these names that lead to this database. Another one may have the same name, and be the one that
        requests reach."""
        places = await store.places_of(self._home(), kind, names)
        return frozenset(place.name for place in places if place.database == self.database)

    async def claim(self, kind: store.PlaceKind, name: str) -> None:
        """Reserve a name for this database. Raises `AlreadyExists` if another database has it."""
        found = await store.place_name(self._home(), kind, name, self.database)
        if found != self.database:
            where = f"in the database {found!r}" if found else "in the server's own database"
            raise exists_elsewhere(kind, name, where)

    async def confirm(self, kind: store.PlaceKind, name: str, uid: str) -> None:
        """Note the id of what was created. After a crash it is noted when the names are reconciled."""
        await store.confirm_place(self._home(), kind, name, self.database, uid)

    async def forget(self, kind: store.PlaceKind, name: str) -> None:
        """Free a name."""
        await store.forget_place(self._home(), kind, name, self.database)
