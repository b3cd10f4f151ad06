"""A database with a captured table, an app that captures it, and its stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from headrace import App, store
from headrace.model.sources import SourceInfo
from headrace.model.specs import StreamSpec
from headrace.sources.postgres.capture.capturing import Capturing
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually

ORDERS = "create table orders (id int primary key, status text, total numeric)"


class Shop:
    """A captured database with its stream.

    Attributes:
        dsn: The captured database. It is Headrace's own database, too.
        sql: A connection to it for the shop's statements.
    """

    def __init__(self, dsn: str, sql: asyncpg.Connection[Any], database: store.Database) -> None:
        self.dsn = dsn
        self.sql = sql
        self.database = database

    @classmethod
    @asynccontextmanager
    async def opened(cls, dsn: str) -> AsyncIterator[Shop]:
        """Open a database with its table. At the end all of its slots are dropped."""
        sql = await asyncpg.connect(dsn)
        database = store.Database(dsn)
        await database.open()
        try:
            await sql.execute(ORDERS)
            yield cls(dsn, sql, database)
        finally:
            await database.close()
            await drop_slots(sql)
            await sql.close()

    async def source(self, name: str = "shop", *, one_message_per_key: bool = False, **settings: Any) -> SourceInfo:
        """Create a source that captures orders into the stream of the same name."""
        settings = {"tables": ("public.orders",), "backfill": False, **settings}
        spec = PostgresSpec(name=name, stream=name, **settings)
        keyed = one_message_per_key or spec.mode == "rows"
        await store.create_stream(self.database, StreamSpec(name=name, one_message_per_key=keyed))
        assert await store.create_source(self.database, name, "postgres", name, spec.settings())
        return await store.source(self.database, name)

    @asynccontextmanager
    async def captured(self, limits: CaptureLimits | None = None, **options: Any) -> AsyncIterator[App]:
        """Run an app that captures the table."""
        app = App(self.dsn, **options)
        app.attach(Capturing(limits=limits or CaptureLimits()))
        async with app.running():
            yield app

    async def until_running(self, name: str = "shop") -> SourceInfo:
        """Wait until the capture is running."""

        async def look() -> SourceInfo | None:
            info = await store.source(self.database, name)
            return info if info.capture is not None and info.capture.state == "running" else None

        found: SourceInfo = await eventually(look)
        return found

    async def until_state(self, state: str, name: str = "shop") -> SourceInfo:
        """Wait until the capture has this state."""

        async def look() -> SourceInfo | None:
            info = await store.source(self.database, name)
            return info if info.capture is not None and info.capture.state == state else None

        found: SourceInfo = await eventually(look)
        return found

    async def stream(self, name: str = "shop") -> list[dict[str, Any]]:
        """Return the data of all messages, in order."""
        rows = await self.sql.fetch(f"select data from headrace_streams.{name} order by seq")
        return [json.loads(row["data"]) for row in rows]

    async def keys(self, name: str = "shop") -> list[str]:
        return [row["key"] for row in await self.sql.fetch(f"select key from headrace_streams.{name} order by seq")]

    async def rows(self, name: str = "shop") -> dict[str, Any]:
        """Return the data of a stream in mode `rows`, by key."""
        rows = await self.sql.fetch(f"select key, data from headrace_streams.{name} order by seq")
        return {row["key"]: json.loads(row["data"]) for row in rows}

    async def until(self, count: int, name: str = "shop") -> list[dict[str, Any]]:
        """Wait until there are `count` messages. Returns their data."""

        async def look() -> list[dict[str, Any]] | None:
            found = await self.stream(name)
            return found if len(found) >= count else None

        found: list[dict[str, Any]] = await eventually(look)
        assert len(found) == count
        return found


async def drop_slots(sql: asyncpg.Connection[Any]) -> None:
    """Drop all slots of this database. They belong to the server and would hold back its WAL."""

    async def are_gone() -> bool:
        await sql.execute(
            """select pg_terminate_backend(active_pid) from pg_replication_slots
               where database = current_database() and active_pid is not null"""
        )
        left = await sql.fetch(
            "select slot_name, active_pid from pg_replication_slots where database = current_database()"
        )
        for row in left:
            if row["active_pid"] is None:
                await sql.execute("select pg_drop_replication_slot($1)", row["slot_name"])
        return not left

    await eventually(are_gone)
