"""The environment of a benchmark: a fresh database for every repeat, on an embedded or a given server."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import asyncpg
import msgspec

from benchmarks.limits import PlainLog
from headrace import store
from headrace.embedded import EmbeddedPostgres, default_data_dir
from headrace.model.specs import StreamSpec
from headrace.store import Database

STREAM = "orders"


class Options(msgspec.Struct, frozen=True):
    """The command line options. None and False leave the choice to the benchmark.

    Attributes:
        jit: `on` or `off` in the fresh databases. None for the server's setting.
        index_keys: whether the streams have an index of keys.
    """

    server: str
    quick: bool = False
    repeats: int | None = None
    messages: int | None = None
    batch: int | None = None
    seconds: float | None = None
    jit: str | None = None
    index_keys: bool = False

    def count(self, full: int, quick: int) -> int:
        """How many messages a repeat has."""
        return self.messages or (quick if self.quick else full)

    def times(self, full: int = 5, quick: int = 3) -> int:
        """How many repeats there are."""
        return self.repeats or (quick if self.quick else full)

    def duration(self, full: float, quick: float) -> float:
        """How many seconds a paced phase takes."""
        return self.seconds or (quick if self.quick else full)


class Bench(msgspec.Struct, frozen=True):
    """A fresh database with an empty stream and a plain table."""

    dsn: str
    database: Database
    plain: PlainLog

    async def rest(self, *tables: str) -> None:
        """Before the clock starts: write everything to disk, and analyze the tables for the planner."""
        for table in tables:
            await self.database.fetch(f"analyze {table}")
        await self.database.fetch("checkpoint")

    async def without_vacuum(self) -> None:
        """Turn off autovacuum, which works by the clock: in a short measurement its share would be large, and differ each
        time. Its work is done before the clock starts.
        """
        for row in await self.database.fetch(_TABLES):
            await self.database.fetch(f"alter table {row['name']} set (autovacuum_enabled = off)")
        await self.database.fetch("analyze")
        await self.database.fetch("vacuum")  # afterwards, so that the rows of the statistics have been read, too
        await self.rest()


_TABLES = """
    select oid::regclass::text as name from pg_class
    where relkind = 'r' and relnamespace::regnamespace::text not in ('pg_catalog', 'information_schema')"""

MESSAGES = f'headrace_streams."{STREAM}"'
PLAIN = "plain_log"


ROOM = {"max_connections": "400"}
"""Room for the sixty-four workers of `crowd`."""

STOCK = {
    "jit": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "autovacuum_naptime": "1min",
    "wal_level": "replica",
}
"""Postgres's default values of settings that the embedded server changes."""


@contextmanager
def server(
    url: str | None, data_dir: Path | None = None, *, stock: bool = False, port: int | None = None
) -> Iterator[str]:
    """The URL of the given server, or of an embedded one.

    The embedded server is made for this and destroyed afterwards. With `stock` it has Postgres's
    default settings, and with a `port` it listens on TCP.
    """
    if url is not None:
        yield url
        return
    with embedded(data_dir, stock=stock, port=port) as (_, given):
        yield given


@contextmanager
def embedded(
    data_dir: Path | None = None, *, stock: bool = False, port: int | None = None
) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """An embedded server as `server` starts it, and its URL."""
    # Beside the ordinary data, so on a real disk. A temporary directory may be in memory, where a
    # commit costs nothing.
    place = data_dir or default_data_dir().with_name(f"benchmarks-{secrets.token_hex(4)}")
    postgres = EmbeddedPostgres(place, port, settings=ROOM | (STOCK if stock else {}))
    try:
        with postgres.acquire() as handle:
            yield postgres, handle.url
    finally:
        if data_dir is None:
            postgres.destroy()
            shutil.rmtree(place, ignore_errors=True)


@asynccontextmanager
async def bench(options: Options) -> AsyncIterator[Bench]:
    """A fresh database, dropped at the end."""
    name = f"bench_{secrets.token_hex(6)}"
    administrator = await asyncpg.connect(options.server)
    try:
        await administrator.execute(f"create database {name}")
        try:
            if options.jit is not None:
                await administrator.execute(f"alter database {name} set jit = {options.jit}")
            async with _opened(with_database(options.server, name), options.index_keys) as fresh:
                yield fresh
        finally:
            await administrator.execute(f"drop database if exists {name} with (force)")
    finally:
        await administrator.close()


@asynccontextmanager
async def opened(dsn: str, connections: int = 10, application_name: str = "benchmarks") -> AsyncIterator[Database]:
    """A database with this many connections at most. With one, one server process does all the work."""
    database = Database(dsn, max_connections=connections, application_name=application_name)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def _opened(dsn: str, index_keys: bool = False) -> AsyncIterator[Bench]:
    async with opened(dsn) as database:
        await store.migrate(database)
        await store.create_stream(database, StreamSpec(name=STREAM, index_keys=index_keys))
        plain = await PlainLog.create(database)
        try:
            yield Bench(dsn, database, plain)
        finally:
            await plain.close()


def with_database(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@asynccontextmanager
async def files_on_disk(place: Bench) -> AsyncIterator[Path]:
    """A directory on the disk of embedded databases, deleted at the end. A temporary one may be in memory."""
    name = await place.database.fetchval("select current_database()")
    files = default_data_dir().with_name(name)
    await anyio.to_thread.run_sync(lambda: files.mkdir(parents=True))
    try:
        yield files
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shutil.rmtree, files)
