"""A database for a command: the one that was named, here or in the settings, or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from headrace import store
from headrace.app import settings
from headrace.app.admin import Admin
from headrace.cli.loop import run_async
from headrace.embedded import EmbeddedPostgres

P = ParamSpec("P")
T = TypeVar("T")


def administer(
    url: str | None, function: Callable[Concatenate[Admin, P], Awaitable[T]], *args: P.args, **settings: P.kwargs
) -> T:
    """Connect, call a method of `Admin` or a function that takes one, and return what it returns.

    Raises what `connected` raises, and what the function does.
    """

    async def call() -> T:
        async with connected(url) as database:
            return await function(Admin(database), *args, **settings)

    return run_async(call)


@asynccontextmanager
async def connected(url: str | None, *, migrate: bool = True) -> AsyncIterator[store.Database]:
    """An open database. The embedded one is ours, so `migrate` brings its schema up to date; another is left as it is.

    Raises:
        StoreUnavailable, ConfigurationError: it can't be reached.
        EmbeddedPostgresError: the embedded Postgres can't be started.
    """
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
def _reachable(found: settings.Settings) -> Iterator[str]:
    # Starting it blocks, which harms nobody: the loop has nothing else to do yet.
    if found.database is not None:
        yield found.database
    else:
        with EmbeddedPostgres(found.data).acquire() as tenancy:
            yield tenancy.url
