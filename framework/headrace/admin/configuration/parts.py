"""The databases that a configuration is about: the configuration database, and further ones behind the same servers.

Each object belongs to one of them, and each has its own part of a plan. A stream is in the database that a file names or,
without a name, where it is. Consumers and sources follow their stream. Tokens are in the configuration database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple
from uuid import UUID

import anyio
import msgspec

from headrace import store
from headrace.admin.configuration.declared import Declared, Desired, Objects
from headrace.admin.configuration.documents import Problems
from headrace.admin.databases import CONNECT_TIMEOUT, inspect
from headrace.model.errors import ConfigurationError, HeadraceError, SchemaError
from headrace.store import Database, PlaceKind
from headrace.store.database.references import resolve

_KINDS: tuple[PlaceKind, ...] = ("stream", "source")

CONNECTIONS = 2
"""The number of connections to each further database: for the lock, and for the work."""

OPENED_AT_A_TIME = 10
"""The number of databases that are opened at the same time. Each one that is unavailable takes its time."""


class Part(NamedTuple):
    """A database, and what is declared for it.

    Attributes:
        name: its name. None for the configuration database.
    """

    name: str | None
    database: Database
    declared: Declared

    def __str__(self) -> str:
        return "the configuration database" if self.name is None else f"the database {self.name!r}"


class Parts(NamedTuple):
    """The parts, beginning with the configuration database and then by name.

    Attributes:
        urls: where the URLs of the databases that servers know are, by name.
        away: databases that servers know and the files don't mention, and that can't be opened, with the reasons.
    """

    parts: list[Part]
    urls: Mapping[str, str]
    away: Mapping[str, str]


@asynccontextmanager
async def opened(home: Database, declared: Declared) -> AsyncIterator[Parts]:
    """Open the databases of a configuration, and find out which object belongs to which.

    Args:
        home: the configuration database.

    Raises:
        ConfigurationError: an object can't be where the files want it, or the URL of a database can't be read. Several are in
            an `ExceptionGroup`.
        StoreUnavailable, SchemaError, NotGranted: a database can't be used.
    """
    urls = {one.name: one.url_from for one in await store.databases(home)}
    objects = await _by_database(home, declared, urls)
    mentioned = {name for name in objects if name is not None} | declared.databases.keys()
    references = {**urls, **{name: one.url_from for name, one in declared.databases.items()}}
    # Those that the files don't mention may have objects that they no longer mention, or be the same as a new one.
    others = urls.keys() - mentioned if declared.name is not None or references != urls else set()
    async with AsyncExitStack() as stack:
        databases, failures = await _open(home, {name: references[name] for name in sorted(mentioned | others)}, stack)
        for name in sorted(mentioned & failures.keys()):
            raise failures[name]
        await _require_distinct(databases)
        parts = [Part(None, home, Declared(declared.name, objects.get(None, {})))]
        for name, database in databases.items():
            parts.append(Part(name, database, Declared(declared.name, objects.get(name, {}))))
        await _require_unused(parts)
        yield Parts(parts, urls, {name: str(error) for name, error in failures.items()})


@asynccontextmanager
async def opened_all(home: Database) -> AsyncIterator[dict[str, Database]]:
    """Open all further databases, by name. Raises as `opened`."""
    async with AsyncExitStack() as stack:
        references = {one.name: one.url_from for one in await store.databases(home)}
        databases, failures = await _open(home, references, stack)
        for name in sorted(failures):
            raise failures[name]
        yield databases


async def _open(
    home: Database, references: Mapping[str, str], stack: AsyncExitStack
) -> tuple[dict[str, Database], dict[str, HeadraceError]]:
    """Open databases at the same time. Returns them, and why others can't be used, by name."""
    databases: dict[str, Database] = {}
    failures: dict[str, HeadraceError] = {}
    at_a_time = anyio.CapacityLimiter(OPENED_AT_A_TIME)

    async def open_one(name: str, reference: str) -> None:
        try:
            async with at_a_time:
                databases[name] = await _opened(home, name, resolve(reference))
        except HeadraceError as error:
            error.args = (f"The database {name!r} can't be used. {error}",)
            failures[name] = error

    try:
        async with anyio.create_task_group() as group:
            for name, reference in references.items():
                group.start_soon(open_one, name, reference)
    finally:
        for database in databases.values():
            stack.push_async_callback(database.close)
    return {name: databases[name] for name in references if name in databases}, failures


async def _opened(home: Database, name: str, url: str) -> Database:
    await inspect(home, name, url)
    database = Database(
        url, max_connections=CONNECTIONS, application_name=home.application_name, connect_timeout=CONNECT_TIMEOUT
    )
    await database.open()
    try:
        store.require_membership(database, f"apply, plan or export configurations of the database {name!r}")
        if (reason := (await store.schema_state(database)).mismatch(url)) is not None:
            raise SchemaError(reason)
    except BaseException:
        await database.close()
        raise
    return database


async def _require_distinct(databases: Mapping[str, Database]) -> None:
    """Raise `ConfigurationError` if two names lead to the same database."""
    names: dict[UUID, str] = {}
    for name, database in databases.items():
        first = names.setdefault(await store.database_identity(database), name)
        if first != name:
            raise ConfigurationError(f"The databases {first!r} and {name!r} are the same one. Remove one of them.")


async def _require_unused(parts: Sequence[Part]) -> None:
    """Raise `ConfigurationError` if a new stream or source exists in another database, where servers have not found it yet."""
    problems = Problems()
    for kind in _KINDS:
        declared = {one.object[0]: (part, one) for part in parts for one in part.declared.of(kind)}
        new = sorted(set(declared) - (await _present(parts[0].database, kind, declared)).keys())
        for other in parts[1:]:
            for name in await store.own_names(other.database, kind, new):
                part, one = declared[name]
                if part is not other:
                    problems.add(
                        one.mark,
                        f"The {kind} {name!r} exists in {other} already. Write `database: {other.name}` for the stream, or choose another"
                        " name.",
                    )
    problems.raise_any()


async def _by_database(home: Database, declared: Declared, urls: Mapping[str, str]) -> dict[str | None, Objects]:
    """Divide what is declared by the databases that it belongs to.

    Raises:
        ConfigurationError: something can't be where the files want it.
    """
    problems = Problems()
    places = await _Places.read(home, declared, {*urls, *declared.databases})
    found: dict[str | None, Objects] = {name: dict(one.grants) for name, one in declared.databases.items()}
    for key, desired in declared.objects.items():
        try:
            found.setdefault(places.of(desired), {})[key] = desired
        except ConfigurationError as error:
            problems.add(desired.place(error.field), error)
    problems.raise_any()
    return found


class _Places:
    """Where streams and sources are, and where the files want them."""

    def __init__(
        self, declared: Declared, known: Iterable[str], present: Mapping[PlaceKind, Mapping[str, str | None]]
    ) -> None:
        self._known = frozenset(known)
        self._present = present
        self._declared = {one.object[0]: one for one in declared.of("stream")}

    @classmethod
    async def read(cls, home: Database, declared: Declared, known: Iterable[str]) -> _Places:
        """Read where the streams and sources are that the files mention."""
        sources = [one.object[0] for one in declared.of("source")]
        streams = {one.object[0] for one in declared.of("stream")}
        streams |= {one.settings["stream"] for one in declared.of("source")}
        streams |= {one.object[2] for one in declared.of("grant")}
        return cls(
            declared,
            known,
            {"stream": await _present(home, "stream", streams), "source": await _present(home, "source", sources)},
        )

    def of(self, desired: Desired) -> str | None:
        """The database to which an object belongs. Raises `ConfigurationError` if it is in another one."""
        if desired.kind == "stream":
            return self._stream(desired)
        if desired.kind == "consumer":
            return self._of_stream(desired.object[0])
        if desired.kind == "source":
            database = self._of_stream(desired.settings["stream"])
            self._require("source", desired.object[0], database)
            return database
        if desired.kind == "grant" and (database := self._of_stream(desired.object[2])) is not None:
            raise ConfigurationError(
                f"The stream {desired.object[2]!r} belongs to the database {database!r}. Declare rights on it below that database, as"
                f" `databases: {{{database}: {{grants: …}}}}`."
            )
        return None

    def _stream(self, desired: Desired) -> str | None:
        (name,), database = desired.object, desired.database
        if isinstance(database, msgspec.UnsetType):
            return self._present["stream"].get(name)
        if database is not None and database not in self._known:
            raise ConfigurationError(
                f"The database {database!r} of the stream {name!r} is unknown. Declare it in the section `databases`, or add it with"
                " `headrace database add`."
            )
        self._require("stream", name, database)
        return database

    def _of_stream(self, name: str) -> str | None:
        stream = self._declared.get(name)
        if stream is None or isinstance(stream.database, msgspec.UnsetType):
            return self._present["stream"].get(name)
        return stream.database

    def _require(self, kind: PlaceKind, name: str, database: str | None) -> None:
        present = self._present[kind].get(name, database)
        if present != database:
            wanted, there = (
                "the configuration database" if one is None else f"the database {one!r}" for one in (database, present)
            )
            raise ConfigurationError(
                f"The {kind} {name!r} lives in {there}, and can't be moved to {wanted}. Leave it there, or choose another name."
            )


async def _present(home: Database, kind: PlaceKind, names: Iterable[str]) -> dict[str, str | None]:
    """The databases of those of these streams or sources that exist, as the configuration database knows them."""
    wanted = list(names)
    found: dict[str, str | None] = dict.fromkeys(await store.own_names(home, kind, wanted))
    return found | {one.name: one.database for one in await store.places_of(home, kind, wanted)}
