"""The base class of the classes that `Admin` is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, Self, TypeVar

from headrace import store
from headrace.admin.live.database import LiveDatabase
from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.errors import FilterTooSlow, UnknownConsumer
from headrace.model.pages import MAX_PAGE_BYTES
from headrace.model.watching.audit import Actor, Change
from headrace.sources.postgres.connection.untrusted import SourceDatabase, UntrustedDatabase
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store.database.missing_objects import with_repeat
from headrace.store.database.time_limit import within

T = TypeVar("T")


class Base:
    """Holds an open database, the time limits for evaluating conditions and counting, and what decides
    about the databases of sources.

    Args:
        raw: return data and headers of messages as `msgspec.Raw`, as they were published.
        stored_database: returns the database of a stored source, whose URL any user of the API may have written. None
            for the URL as it is, which libpq completes from the environment. By default such a URL is never completed.
        given_database: the same for the settings that a caller passes.
    """

    def __init__(
        self,
        database: store.Database,
        *,
        judging: float = 30.0,
        counting: float = 5.0,
        raw: bool = False,
        stored_database: Callable[[PostgresSpec], SourceDatabase | None] | None = None,
        given_database: Callable[[PostgresSpec], SourceDatabase | None] = lambda _: None,
    ) -> None:
        self._database = database
        self._judging = judging
        self._counting = counting
        self._contents = store.Contents(max_bytes=MAX_PAGE_BYTES, raw=raw)
        self._stored_database = stored_database or fenced(database)
        self._given_database = given_database
        self._actor = Actor()
        self._live = LiveDatabase()

    def acting_as(self, actor: Actor) -> Self:
        """Return the same administration, whose changes are recorded in the name of an actor, see `Admin.audit`."""
        other = copy(self)
        other._actor = actor
        return other

    async def _change(self, change: Change, work: Callable[[Any], Awaitable[T]]) -> T:
        """Make a change and record it, in one transaction, so that neither exists without the other. `work` gets the
        connection. It may add to the change's details, or skip the entry.
        """

        async def once() -> T:
            async with self._database.transaction() as connection:
                result = await work(connection)
                await self._record(connection, change)
            return result

        result = await with_repeat(once)
        self._live.changed()  # again, since a reading may have begun before the commit
        return result

    async def _record(self, connection: store.Executor, change: Change) -> None:
        """Record a change in the transaction that makes it."""
        await store.record_change(connection, self._actor, change)
        self._live.changed()

    async def _consumer(self, stream: str, name: str) -> int:
        try:
            return await store.consumer_id(self._database, stream, name)
        except UnknownConsumer:
            await store.stream(self._database, stream)  # raises UnknownStream if the stream is missing, too
            raise

    @asynccontextmanager
    async def _bounded(self, where: Condition | None, stream: str) -> AsyncIterator[store.Executor]:
        """Yield an executor for examining messages of a stream, in a transaction with a time limit, once the stream
        has a place for it. See `Database.judging`.
        """
        try:
            async with self._database.judging(stream), within(self._database, self._judging) as connection:
                yield _WithTimeout(connection, self._judging + 10)
        except FilterTooSlow as error:
            raise self._too_slow(where) from error.__cause__

    def _too_slow(self, where: Condition | None) -> FilterTooSlow:
        what = "Reading the messages" if where is None else f"The condition {conditions.describe(where)!r}"
        return FilterTooSlow(
            f"{what} took longer than {self._judging:g} s. Nothing was changed. Simplify the condition, above all its regular"
            " expressions, or narrow the range of seqs or times.",
            field="where",
        )


def fenced(own: store.Database) -> Callable[[PostgresSpec], SourceDatabase | None]:
    """Make a function that returns the database of a source as its URL alone names it, without anything of this
    process's environment. None for the own database.
    """

    def database_of(spec: PostgresSpec) -> SourceDatabase | None:
        return None if spec.database in (None, own.dsn) else UntrustedDatabase(spec.database or "")

    return database_of


class _WithTimeout:
    """An executor with another query timeout than the driver's default."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        return await self._connection.fetch(query, *args, timeout=self._timeout)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any) -> Any:
        return await self._connection.fetchrow(query, *args, timeout=self._timeout)

    async def fetchval(self, query: str, /, *args: Any) -> Any:
        return await self._connection.fetchval(query, *args, timeout=self._timeout)
