"""Names that are unique among all databases of a server, while something of the name is created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace import store
from headrace.model.errors import AlreadyExists, ConfigurationError, InvalidInput, UnknownSource, UnknownStream
from headrace.model.text.names import NAME
from headrace.server.engine import Engine


@asynccontextmanager
async def claimed(engine: Engine, kind: store.PlaceKind, name: str) -> AsyncIterator[None]:
    """Reserve a name in the database of an engine, and create something of the name in the block.

    The name is free again if the database refuses to create it. After a crash or an outage it stays reserved. The
    next creation in the same database uses it, and otherwise it is free after some minutes.

    Raises:
        AlreadyExists: another database has the name.
    """
    if engine.names is None:
        await _refuse_placed(engine, kind, name)
        yield
        return
    if not NAME.fullmatch(name):  # the database refuses it
        yield
        return
    await engine.names.claim(kind, name)
    try:
        yield
    except (InvalidInput, ConfigurationError, UnknownStream):
        if await _id_of(engine, kind, name) is None:
            await engine.names.forget(kind, name)
        raise
    uid = await _id_of(engine, kind, name)
    if uid is not None:
        await engine.names.confirm(kind, name, uid)


def exists_elsewhere(kind: store.PlaceKind, name: str, where: str) -> AlreadyExists:
    """Return the error for a name that another database has."""
    return AlreadyExists(
        f"The {kind} {name!r} exists {where}. Names are unique among all databases. Choose another name."
    )


async def _refuse_placed(engine: Engine, kind: store.PlaceKind, name: str) -> None:
    """Raise `AlreadyExists` if a further database has a name. One that is placed a moment later is refused by the
    configuration database itself."""
    if engine.further is not None and engine.further.exist:
        place = await store.place_of(engine.app.database, kind, name)
        if place is not None and place.name == name:
            raise exists_elsewhere(kind, name, f"in the database {place.database!r}")


async def _id_of(engine: Engine, kind: store.PlaceKind, name: str) -> str | None:
    database = engine.app.database
    try:
        if kind == "source":
            return (await store.source(database, name)).id
        _, uid, _ = await store.find_stream(database, name)
    except (UnknownStream, UnknownSource):
        return None
    return uid
