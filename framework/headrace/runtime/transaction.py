"""A transaction of the database, as a handler or a service sees it.

It ends in one of three ways: committed, rolled back, or in doubt. A COMMIT whose answer is lost, because the connection broke or the
server restarted just then, may have happened or not. Nothing may be done again before that is known, so it is looked up, however long that
takes: by the transaction's id, and by a row that it has written itself, since a server that was rewound gives ids again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio

from headrace import store
from headrace.model.errors import ConfigurationError, InDoubt, StoreUnavailable
from headrace.runtime.weather import Weather
from headrace.store.connection import ENDING
from headrace.store.translate import translated

if TYPE_CHECKING:
    from headrace.runtime.publisher import Publisher
    from headrace.store.connection import Hold

LOOK_AGAIN = 0.02
"""Seconds until a transaction that is still in progress is looked up again."""

IDLE = 30.0
"""Seconds after which the server ends a transaction of a service in which nothing happens."""

Last = Callable[[Any], Awaitable[int | store.Witness | None]]
"""The last statement before COMMIT, on a connection. Returns what to look the transaction up by, or None if it wrote nothing."""


class Transaction:
    """An open transaction: what is written and published through it commits together, or not at all.

    The methods are those of an asyncpg connection. A handler with `transactional=True` takes one; a service opens one with
    `async with app.transaction() as tx:`. After its end it can't be used any more.
    """

    __slots__ = ("_database", "_hold", "_publisher", "published")

    def __init__(self, database: store.Database, publisher: Publisher, hold: Hold) -> None:
        self._database = database
        self._publisher = publisher
        self._hold: Hold | None = hold
        self.published: list[tuple[str, datetime | None]] = []
        """Streams that were published to, and when for; told to this process's consumers after the commit."""

    @property
    def connection(self) -> Any:
        """The asyncpg connection itself. Raises `ConfigurationError` after the end of the transaction."""
        if self._hold is None:
            raise ConfigurationError(
                "The transaction has ended: use it only inside its handler, or inside `async with app.transaction() as tx:`,"
                " and wait there for whatever works with it."
            )
        return self._hold.connection

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Run a statement. Returns its status, such as `INSERT 0 1`."""
        return await self.connection.execute(query, *args, timeout=timeout)  # type: ignore[no-any-return]

    async def executemany(self, query: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Run a statement once for each of the argument lists, in one go."""
        await self.connection.executemany(query, args, timeout=timeout)

    async def fetch(self, query: str, /, *args: Any, timeout: float | None = None) -> list[Any]:
        """All rows."""
        return await self.connection.fetch(query, *args, timeout=timeout)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any, timeout: float | None = None) -> Any:
        """The first row, or None."""
        return await self.connection.fetchrow(query, *args, timeout=timeout)

    async def fetchval(self, query: str, /, *args: Any, timeout: float | None = None) -> Any:
        """The first column of the first row, or None."""
        return await self.connection.fetchval(query, *args, timeout=timeout)

    def cursor(self, query: str, *args: Any, **options: Any) -> Any:
        """Rows as they come: `async for row in tx.cursor("select …")`."""
        return self.connection.cursor(query, *args, **options)

    async def copy_records_to_table(self, table: str, *, records: Any, **options: Any) -> str:
        """Write many rows with COPY; see asyncpg for `columns`, `schema_name` and the rest."""
        return await self.connection.copy_records_to_table(table, records=records, **options)  # type: ignore[no-any-return]

    def transaction(self) -> Any:
        """A savepoint: `async with tx.transaction():`. What is inside is taken back alone when an exception passes."""
        return self.connection.transaction()

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message: it is there when this commits. Takes, returns and raises what `App.publish` does."""
        return await self._publisher.publish(stream, key, data, tx=self, **options)

    async def publish_many(self, stream: str, messages: Iterable[tuple[Any, ...]], **options: Any) -> int:
        """Publish messages in their order: they are there when this commits. See `App.publish_many`."""
        return await self._publisher.publish_many(stream, messages, tx=self, **options)

    # --- its beginning and its end, which are not the user's

    @classmethod
    async def begin(cls, database: store.Database, publisher: Publisher, idle: float) -> Transaction:
        """Open one; whoever does must `end` it. Raises `StoreUnavailable`. `idle`: see `Database.begin`."""
        return cls(database, publisher, await database.begin(idle))

    async def commit(self, last: Last, what: str, *, acks: store.Acks | None = None) -> None:
        """Run the last statement, commit, and know that it is committed. Can't be cancelled but while that is looked up.

        Args:
            what: whose commit it is, for the log.
            acks: what `last` acks, if it does.

        Raises:
            StoreUnavailable: it is not committed, nor will it be.
            InDoubt: the database was away from this process for so long, and rewound meanwhile, that it can't be known.
            Exception: what `last` raises, or a constraint that was deferred until the COMMIT.
        """
        hold, left, asked = self._hold, None, False
        assert hold is not None
        try:
            with translated(self._database.dsn), anyio.fail_after(ENDING, shield=True):
                left = await last(hold.connection)
                asked = True
                await hold.commit()
        except StoreUnavailable as error:
            hold.break_off()
            if not asked:
                raise
            if left is not None and not await was_committed(self._database, left, acks, what):
                raise StoreUnavailable(f"The transaction was not committed. {error}") from error
        for stream, due in self.published:
            self._publisher.committed(stream, due)

    async def end(self) -> None:
        """Give the connection back. What is not committed is rolled back."""
        hold, self._hold = self._hold, None
        if hold is not None:
            await self._database.end(hold)


async def was_committed(
    database: store.Database, left: int | store.Witness, acks: store.Acks | None, what: str,
    until: Callable[[], bool] = lambda: False,
) -> bool | None:  # fmt: skip
    """Look up what became of a transaction, however long that takes.

    Args:
        left: its id, or the witness that it left.
        acks: what it acked, if it did.
        what: whose commit it is, for the log.
        until: when to give up.

    Returns:
        Whether it was committed; None when given up.

    Raises:
        InDoubt: that can't be known any more.
    """
    weather = Weather(what)
    witness = left if isinstance(left, store.Witness) else None
    xid = left.xid if isinstance(left, store.Witness) else left
    while not until():
        try:
            status = await store.transaction_status(database, xid, acks=acks, witness=witness)
        except StoreUnavailable as failure:
            await weather.wait_out(failure)
            continue
        weather.cleared()
        if status == "unknown":
            raise InDoubt(
                f"The connection broke at the commit of transaction {xid}. The database was restored or failed over since, and was away for too"
                " long to tell whether it was committed: look for what it wrote."
            )
        if status != "in progress":
            return status == "committed"
        await anyio.sleep(LOOK_AGAIN)
    return None


@asynccontextmanager
async def transaction(database: store.Database, publisher: Publisher) -> AsyncIterator[Transaction]:
    """See `App.transaction`."""
    transaction = await Transaction.begin(database, publisher, IDLE)
    try:
        yield transaction
        await transaction.commit(store.leave_witness, "a commit")
    finally:
        await transaction.end()
