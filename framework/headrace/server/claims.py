"""Names that are unique among all databases of a server, while something of the name is created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownSource, UnknownStream
from headrace.model.sources import NAME
from headrace.server.engine import Engine


@asynccontextmanager
async def claimed(engine: Engine, kind: store.PlaceKind, name: str) -> AsyncIterator[None]:
    """Reserve a name in the database of an engine, and create something of the name in the block.

    The name is free again if the database refuses to create it. After a crash or an outage it stays reserved. The
    next creation in the same database uses it, and otherwise it is free after some minutes.

    Raises:
        AlreadyExists: another database has the name.
    """
    if engine.names is None or not NAME.fullmatch(
        name
    ):  # what can't be a name is refused by the database of the engine
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


async def _id_of(engine: Engine, kind: store.PlaceKind, name: str) -> str | None:
    database = engine.app.database
    try:
        if kind == "source":
            return (await store.source(database, name)).id
        _, uid, _ = await store.find_stream(database, name)
    except (UnknownStream, UnknownSource):
        return None
    return uid
