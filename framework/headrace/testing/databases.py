"""A Postgres server for a run of tests, and a database of its own for each test.

A database and not a schema, since Headrace's schema has a fixed name, which is how anything that speaks SQL finds it. It is cloned from a
template that has the schema in it already, which is quicker than making that anew.

The server is an embedded one, or, if `HEADRACE_TEST_DATABASE` names a database, the one that this is on. There the role needs the right
to create databases. The template stays there for the next run; its name tells the version of the schema.
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
from urllib.parse import urlsplit, urlunsplit

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.model.errors import ConfigurationError
from headrace.store.migrate import functions, migrations
from headrace.store.translate import translated

T = TypeVar("T")

VARIABLE = "HEADRACE_TEST_DATABASE"

QUICK = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}
"""Nothing that a test writes has to survive a power cut."""

_TEMPLATE_LOCK = 7419


class Server:
    """A server on which tests have databases of their own.

    Args:
        url: of a database on it, whose role may create others.
    """

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in {"postgresql", "postgres"}:
            raise ConfigurationError(
                f"{VARIABLE} must be a Postgres URL, such as postgresql://user:password@host/postgres."
            )
        self.url = url
        self._template: str | None = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a fresh database with Headrace's schema, dropped at the end, whoever is still connected to it.

        Blocks; from async code it is entered in a thread. Raises `StoreUnavailable`, or `ConfigurationError` when the role may not do it.
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
    """The server of this run: the one that `HEADRACE_TEST_DATABASE` names, or else an embedded one in `directory`.

    All processes that name the same directory share it, and the last one to leave stops it. Its data stays; see `destroy`.
    """
    if given := os.environ.get(VARIABLE):
        yield Server(given)
        return
    with EmbeddedPostgres(directory, settings=QUICK).acquire() as tenancy:
        yield Server(tenancy.url)


def destroy(directory: Path) -> None:
    """Remove the embedded server in `directory`, if there is one, with its data."""
    if directory.exists():
        EmbeddedPostgres(directory, settings=QUICK).destroy()


@functools.cache
def own_server() -> Server:
    """The server of this process, for who is not given one: started at the first call, gone with the process."""
    if given := os.environ.get(VARIABLE):
        return Server(given)
    directory = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    postgres = EmbeddedPostgres(directory, settings=QUICK)
    tenancy = postgres.acquire()

    def remove() -> None:
        tenancy.release()
        postgres.destroy()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Server(tenancy.url)


async def make_template(url: str) -> str:
    """The name of a database with the schema in it. It is made once for each text of the schema."""
    text = functions() + "".join(migration.sql for migration in migrations())
    name = f"headrace_template_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    plain = store.Database(url)
    with translated(url):
        admin = await plain.connect(statement_cache_size=0)
        try:
            # One process makes it, the others wait. The lock ends with the connection.
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
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a loop of its own. Unlike `asyncio.run` it leaves the thread's current loop alone."""
    if _is_async():
        work.close()
        raise ConfigurationError(
            "A database for tests is made by blocking calls: enter it in a sync fixture, or in a thread (asyncio.to_thread)."
        )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


def _is_async() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
