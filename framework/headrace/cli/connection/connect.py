"""Connects a command to a server over HTTP or to a database, which may be the embedded Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.local_server import preferred_server
from headrace.cli.connection.operator import operator
from headrace.cli.output.stderr import print_notice
from headrace.cli.processes.event_loop import run_async
from headrace.client.address import Server

if TYPE_CHECKING:
    from headrace import store
    from headrace.app.settings import Settings
    from headrace.client import Administration
    from headrace.client.remote import Remote

P = ParamSpec("P")
T = TypeVar("T")


def administer(
    backend: Backend,
    function: Callable[Concatenate[Administration, P], Awaitable[T]],
    *args: P.args,
    **settings: P.kwargs,
) -> T:
    """Connect, call a function with the `Admin` of a database or the `Remote` of a server, and return
    its result.

    Raises what `administration` and the function raise.
    """

    async def call() -> T:
        async with administration(backend) as admin:
            return await function(admin, *args, **settings)

    return run_async(call)


@asynccontextmanager
async def administration(backend: Backend) -> AsyncIterator[Administration]:
    """Open the `Remote` of a server or the `Admin` of a database. Only the modules that are needed are
    imported.

    Raises:
        UsageError, ConfigurationError: the options don't select exactly one, see `Backend`.

    Also raises what `open_database` raises.
    """
    target = backend.resolve() or preferred_server()
    if isinstance(target, Server):
        async with _open_remote(target, backend.as_curl) as remote:
            yield remote
            if remote.unavailable:
                names = ", ".join(sorted(remote.unavailable))
                print_notice(f"The list is not complete, because databases of the server did not answer: {names}.")
    else:
        from headrace.admin import Admin
        from headrace.admin.base import fenced

        async with open_database(target) as database:
            # A new source is checked as the process that captures it connects: with what its URL has, and nothing of
            # this user's environment.
            yield Admin(database, given_database=fenced(database)).acting_as(operator())


def _open_remote(server: Server, as_curl: bool) -> Remote:
    if as_curl:
        from headrace.cli.connection.curl import CurlRemote

        return CurlRemote(server)
    from headrace.client.remote import Remote

    return Remote(server)


@asynccontextmanager
async def open_database(url: str | None, *, migrate: bool = True) -> AsyncIterator[store.Database]:
    """Open a database.

    The embedded database belongs to Headrace, so `migrate` brings its schema up to date. Any other is
    left unchanged.

    Raises:
        StoreUnavailable, ConfigurationError: it can't be reached.
        EmbeddedPostgresError: the embedded Postgres can't be started.
    """
    from headrace import store
    from headrace.app import settings

    configuration = settings.read({"database": url or None})
    with _database_url(configuration) as dsn:
        database = store.Database(dsn, max_connections=2, application_name="headrace cli")
        await database.open()
        try:
            if migrate and configuration.database is None:
                await store.migrate(database)
            yield database
        finally:
            await database.close()


@contextmanager
def _database_url(configuration: Settings) -> Iterator[str]:
    # Starting it blocks the event loop. That is harmless, because the loop has nothing else to do yet.
    if configuration.database is not None:
        yield configuration.database
    else:
        from headrace.embedded import EmbeddedPostgres

        with EmbeddedPostgres(configuration.data).acquire() as handle:
            yield handle.url
