"""Connects a command to a server over HTTP or to a database, either the one that is named or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from headrace.cli.options.backend import Backend
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
        UsageProblem, ConfigurationError: the options don't select one clearly, see `Backend`.

    Also raises what `connected` raises.
    """
    found = backend.found()
    if isinstance(found, Server):
        async with _remote(found, backend.as_curl) as remote:
            yield remote
    else:
        from headrace.admin import Admin

        async with connected(found) as database:
            yield Admin(database)


def _remote(server: Server, as_curl: bool) -> Remote:
    if as_curl:
        from headrace.cli.options.curl import Curl

        return Curl(server)
    from headrace.client.remote import Remote

    return Remote(server)


@asynccontextmanager
async def connected(url: str | None, *, migrate: bool = True) -> AsyncIterator[store.Database]:
    """Open a database.

    The embedded database belongs to Headrace, so `migrate` brings its schema up to date. Any other is
    left unchanged.

    Raises:
        StoreUnavailable, ConfigurationError: it can't be reached.
        EmbeddedPostgresError: the embedded Postgres can't be started.
    """
    from headrace import store
    from headrace.app import settings

    found = settings.read({"database": url or None})
    with _reachable(found) as reachable:
        database = store.Database(reachable, max_connections=2, application_name="headrace cli")
        await database.open()
        try:
            if migrate and found.database is None:
                await store.migrate(database)
            yield database
        finally:
            await database.close()


@contextmanager
def _reachable(found: Settings) -> Iterator[str]:
    # Starting it blocks the event loop. That is harmless, because the loop has nothing else to do yet.
    if found.database is not None:
        yield found.database
    else:
        from headrace.embedded import EmbeddedPostgres

        with EmbeddedPostgres(found.data).acquire() as tenancy:
            yield tenancy.url
