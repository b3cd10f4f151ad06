"""A Postgres server for a test run, and a database for each test.

Each test needs a database and not only a schema, because Headrace's schema has a fixed name, by which SQL
clients find it. The database is cloned from a template that contains the schema, which is faster than
creating the schema.

The server is an embedded one, or the one of the database that `HEADRACE_TEST_DATABASE` names. There the
role needs the right to create databases. The template stays there for the next run. Its name contains a
digest of the schema.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.model.database_url import UrlError, read, write
from headrace.model.errors import ConfigurationError
from headrace.store.database.errors import translated
from headrace.store.database.revisions import functions, migrations

T = TypeVar("T")

VARIABLE = "HEADRACE_TEST_DATABASE"

SERVER_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}
"""Server settings. The data of tests need not survive a power failure."""

_TEMPLATE_LOCK = 7419


class Server:
    """A server on which each test has its own database.

    Args:
        url: the URL of a database on the server. Its role must be allowed to create databases.
    """

    def __init__(self, url: str) -> None:
        try:
            read(url)
        except UrlError as error:
            raise ConfigurationError(f"{VARIABLE} {error}") from None
        self.url = url
        self._template: str | None = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a fresh database with Headrace's schema. It is dropped at the end, even if it still has
        connections.

        This call blocks. Enter it in a thread from async code. Raises `StoreUnavailable`, or
        `ConfigurationError` if the role lacks the right.
        """
        if self._template is None:
            self._template = _run(make_template(self.url))
        name = f"headrace_test_{secrets.token_hex(6)}"
        _run(_execute(self.url, f"create database {name} template {self._template}"))
        try:
            yield on_server(self.url, name)
        finally:
            _run(_execute(self.url, f"drop database if exists {name} with (force)"))


@contextmanager
def server(directory: Path) -> Iterator[Server]:
    """The server of this run: the one that `HEADRACE_TEST_DATABASE` names, or an embedded one in `directory`.

    All processes that use the same directory share the server, and the last one to leave stops it. Its data
    stays, see `destroy`.
    """
    if url_from_environment := os.environ.get(VARIABLE):
        yield Server(url_from_environment)
        return
    with EmbeddedPostgres(directory, settings=SERVER_SETTINGS).acquire() as handle:
        yield Server(handle.url)


def destroy(directory: Path) -> None:
    """Remove the embedded server in `directory` with its data, if there is one."""
    if directory.exists():
        EmbeddedPostgres(directory, settings=SERVER_SETTINGS).destroy()


@functools.cache
def own_server() -> Server:
    """The server of this process, for harnesses without a `database`. It starts at the first call and is
    removed when the process ends.
    """
    if url_from_environment := os.environ.get(VARIABLE):
        return Server(url_from_environment)
    directory = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    postgres = EmbeddedPostgres(directory, settings=SERVER_SETTINGS)
    handle = postgres.acquire()

    def remove() -> None:
        handle.release()
        postgres.destroy()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Server(handle.url)


async def make_template(url: str) -> str:
    """The name of the template database, which contains the schema. It is made once for each version of the schema."""
    text = functions() + "".join(migration.sql for migration in migrations())
    name = f"headrace_template_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    existing = store.Database(url)
    with translated(url):
        admin = await existing.connect(statement_cache_size=0)
        try:
            # One process makes it while the others wait. The lock ends with the connection.
            await admin.execute(f"select pg_advisory_lock({_TEMPLATE_LOCK})")
            if await admin.fetchval("select true from pg_database where datname = $1", name):
                return name
            draft = f"{name}_draft"
            await admin.execute(f"drop database if exists {draft} with (force)")
            await admin.execute(f"create database {draft}")
            database = store.Database(on_server(url, draft))
            await database.open()
            await store.migrate(database)
            await database.drain()
            await admin.execute(f"alter database {draft} rename to {name}")
            return name
        finally:
            await admin.close()


async def _execute(url: str, sql: str) -> None:
    with translated(url):
        connection = await store.Database(url).connect()
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


def on_server(url: str, database: str) -> str:
    """The URL of another database on the same server."""
    return write({**read(url), "dbname": database})


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a new event loop. Unlike `asyncio.run` it doesn't change the thread's current loop."""
    if _in_event_loop():
        work.close()
        raise ConfigurationError(
            "A database for tests can't be entered on an event loop, since it blocks. Enter it in a sync fixture, or in a thread (asyncio.to_thread)."
        )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
