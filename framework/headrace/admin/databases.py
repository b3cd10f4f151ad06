"""Further databases behind a server: list, add, remove, and check them."""

from __future__ import annotations

import msgspec

from headrace import store
from headrace.admin.base import Base
from headrace.model.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidInput,
    NotGranted,
    SchemaError,
    UnknownDatabase,
)
from headrace.model.records import DatabaseCheck, DatabaseInfo
from headrace.model.text.names import NAME, NAME_RULE
from headrace.model.watching.audit import Change
from headrace.store.database.references import check_reference, resolve

MAX_CONFLICTS = 100
"""The number of names of each kind that a check reports because another database has them."""

CONNECT_TIMEOUT = 5.0
"""Seconds that a checked database has to answer."""


class Databases(Base):
    """The calls about further databases. The list of them is in the database that the server was given."""

    async def databases(self) -> list[DatabaseInfo]:
        """List the further databases by name."""
        return await store.databases(self._database)

    async def database(self, name: str) -> DatabaseInfo:
        """Return one further database. Raises `UnknownDatabase`."""
        for one in await store.databases(self._database):
            if one.name == name:
                return one
        raise _unknown(name)

    async def add_database(self, name: str, url_from: str, *, unchecked: bool = False) -> DatabaseInfo:
        """Add a database, in which streams may then be created. Servers open it within seconds.

        Args:
            name: 1 to 48 lower-case letters, digits, `-` and `_`.
            url_from: where servers find its URL, `env:NAME` or `file:/path`. The URL is not stored.
            unchecked: whether not to connect first, with the URL as this process finds it.

        Raises:
            AlreadyExists: a database has the name.
            InvalidInput: the name or the reference is invalid.
            ConfigurationError, StoreUnavailable, SchemaError: as `check_database`.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(f"The name {name[:80]!r} can't be used for a database. {NAME_RULE}", field="name")
        check_reference(url_from)
        if any(one.name == name for one in await store.databases(self._database)):
            raise _exists(name)
        if not unchecked:
            await inspect(self._database, name, resolve(url_from))
        change = Change(action="database.add", kind="database", name=name, details={"url_from": url_from})

        async def add(connection: store.Executor) -> None:
            if not await store.add_database(connection, name, url_from):
                raise _exists(name)

        await self._change(change, add)
        return await self.database(name)

    async def check_database(self, name: str) -> DatabaseCheck:
        """Connect to a further database and check that a server can use it.

        Raises:
            UnknownDatabase: there is none of this name.
            ConfigurationError: its URL can't be found, or it is the same database as the server's.
            StoreUnavailable: it can't be reached.
            SchemaError: its schema does not fit this version.
            NotGranted: its role may not do what a server does.
        """
        url = resolve((await self.database(name)).url_from)
        return await inspect(self._database, name, url, conflicts=True)

    async def remove_database(self, name: str) -> None:
        """Remove a database from the list. It keeps its streams, which servers reach no more.

        Raises:
            UnknownDatabase.
        """

        async def remove(connection: store.Executor) -> None:
            if not await store.remove_database(connection, name):
                raise _unknown(name)

        await self._change(Change(action="database.remove", kind="database", name=name), remove)


def _unknown(name: str) -> UnknownDatabase:
    return UnknownDatabase(f"There is no database {name[:80]!r}. `headrace database ls` lists them.")


async def inspect(home: store.Database, name: str, url: str, *, conflicts: bool = False) -> DatabaseCheck:
    """Check that a server whose configuration is in the database `home` can use the one at this URL. See
    `Databases.check_database`.

    Args:
        conflicts: whether to look for names that another database has.
    """
    database = store.Database(
        url, max_connections=1, application_name="headrace check", connect_timeout=CONNECT_TIMEOUT
    )
    await database.open()
    try:
        if not database.maintains:
            raise NotGranted(
                f"The role with which the database {name!r} is used has no `admin` for all of its streams, so a server can't serve"
                f" them. Give it there with `headrace grant admin ROLE`."
            ).with_public(f"The role with which the database {name!r} is used has no `admin` for all of its streams.")
        state = await store.schema_state(database)
        if state.revision == 0:
            return DatabaseCheck(name=name, revision=0, streams=0)
        if (reason := state.refusal(url)) is not None:
            raise SchemaError(reason)
        if state.revision == store.newest_revision() and await store.database_identity(
            database
        ) == await store.database_identity(home):
            raise ConfigurationError(
                f"The URL of the database {name!r} leads to the server's own database. Give the URL of another one.",
                field="url_from",
            )
        result = DatabaseCheck(name=name, revision=state.revision, streams=await store.stream_count(database))
        return (
            msgspec.structs.replace(result, conflicts=await _conflicts(home, name, database)) if conflicts else result
        )
    finally:
        await database.close()


async def _conflicts(home: store.Database, name: str, database: store.Database) -> list[str]:
    """The streams and sources of a further database whose names lead to another one."""
    conflicts: list[str] = []
    kinds: tuple[store.PlaceKind, ...] = ("stream", "source")
    for kind in kinds:
        after: str | None = None
        of_kind: list[str] = []
        while len(of_kind) < MAX_CONFLICTS:
            names = [one for one, _ in await store.names_of(database, kind, after)]
            of_kind += await store.names_elsewhere(home, kind, name, names, MAX_CONFLICTS - len(of_kind))
            if len(names) < store.PLACES_PAGE:
                break
            after = names[-1]
        conflicts += [f"{kind} {one}" for one in of_kind]
    return conflicts


def _exists(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"A database {name!r} exists already. Remove it first with `headrace database rm {name}`, or take another name."
    )
