"""A Postgres server for the whole run, and the databases that tests create on it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.binaries import find_installation
from headrace.testing.databases import make_template, on_server

__all__ = ["QUICK", "clone", "destroy", "ensure_template", "on_server", "opened", "reconnect", "run", "server"]

T = TypeVar("T")

# Nothing that a test run writes has to survive a power cut. A new database is in no buffer yet: its pages are read by the
# process that needs them, and few buffers are looked through when it is dropped.
QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "32MB",
}


def _embedded(directory: Path) -> EmbeddedPostgres:
    newest = find_installation().major >= 18
    return EmbeddedPostgres(directory, settings=QUICK | ({"io_method": "sync"} if newest else {}))


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Return the URL of a running server, either of `HEADRACE_TEST_DSN` or of the server in `directory`.

    All processes that name the same directory share one server, like the workers of pytest-xdist.
    """
    if given := os.environ.get("HEADRACE_TEST_DSN"):
        with _administered(given):
            yield given
        return
    with _embedded(directory).acquire() as handle, _administered(handle.url):
        yield handle.url


class _Administrator:
    """Makes and drops the databases of this process over one connection. To open one each time takes as long as the work.

    `drop database` sleeps for a tenth of a second if a connection to the database is still ending, which was a tenth of the
    suite's time. Such a database is dropped after the next one.
    """

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._left: list[str] = []

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def create(self, name: str, template: str) -> None:
        # To copy the files takes two thirds of the time of writing each page to the WAL.
        strategy = "strategy file_copy" if self._connection.info.server_version >= 150_000 else ""
        self._connection.execute(f"create database {name} template {template} {strategy}")

    def drop(self, name: str) -> None:
        """End the connections to a database, and drop it now or later."""
        self._drop_left()
        ended = self._connection.execute(_END_CONNECTIONS, {"name": name}).rowcount
        self._left.append(name)
        if not ended:
            self._drop_left()

    def close(self) -> None:
        self._drop_left()
        self.leave()

    def leave(self) -> None:
        self._connection.close()

    def _drop_left(self) -> None:
        while self._left:
            self._connection.execute(f"drop database {self._left.pop()} with (force)")


_END_CONNECTIONS = """
    select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and datname = %(name)s
       and not exists (select from pg_replication_slots where database = %(name)s)
       and not exists (select from pg_shdepend s join pg_database d on d.oid = s.dbid
                        where d.datname = %(name)s and s.refclassid = 'pg_authid'::regclass)
"""
"""A database with a slot is dropped now, since a server has few slots. So is one in which roles have something, since the
test may drop them next."""

_administrators: dict[str, _Administrator] = {}


@contextmanager
def _administered(dsn: str) -> Iterator[None]:
    try:
        yield
    finally:
        if administrator := _administrators.pop(dsn, None):
            administrator.close()


def _administrator(dsn: str) -> _Administrator:
    administrator = _administrators.get(dsn)
    if administrator is None or administrator.closed:
        administrator = _administrators[dsn] = _Administrator(dsn)
    return administrator


def reconnect(dsn: str) -> None:
    """Make and drop databases over a new connection, since the server may have crashed."""
    if administrator := _administrators.pop(dsn, None):
        administrator.leave()


def destroy(directory: Path) -> None:
    """Remove the server in `directory`, if there is one, with its data."""
    if directory.exists():
        _embedded(directory).destroy()


def ensure_template(server_dsn: str) -> str:
    """Return the name of a database with the schema, to clone. Creates the database if it is missing."""
    return run(make_template(server_dsn))


@contextmanager
def clone(server_dsn: str, template: str | None) -> Iterator[str]:
    """Yield the URL of a fresh database. It is dropped at the end, even if it has connections. Without
    a template it is empty.
    """
    name = f"headrace_test_{secrets.token_hex(6)}"
    _administrator(server_dsn).create(name, template or "template1")
    try:
        yield on_server(server_dsn, name)
    finally:
        _administrator(server_dsn).drop(name)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[store.Database]:
    """Open the database, and close it at the end."""
    database = store.Database(dsn)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a separate event loop. Unlike `asyncio.run` it leaves the thread's current loop alone."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)
