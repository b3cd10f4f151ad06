"""A database transaction of a handler or a service.

It ends in one of three ways: committed, rolled back, or in doubt. A COMMIT is in doubt if its
answer is lost, because the connection broke or the server restarted at that moment. Nothing may be
done again before the outcome is known, so the transaction is looked up, however long that takes. It
is looked up by its id and by a row that it has written itself, since a server that was rewound
assigns ids again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import anyio
import asyncpg

from headrace import store
from headrace.model.errors import ConfigurationError, InDoubt, LeaseLost, StoreUnavailable
from headrace.model.outcomes import Release
from headrace.model.watching import history_log
from headrace.store.connections.hold import ROLLBACK_TIMEOUT
from headrace.store.database.errors import translated
from headrace.store.database.missing_objects import object_replaced
from headrace.store.database.retry import DatabaseRetry

if TYPE_CHECKING:
    from headrace.store.connections.hold import Hold

LOOK_AGAIN = 0.02
"""Interval in seconds between lookups of a transaction that is still in progress."""

IDLE = 30.0
"""Timeout in seconds after which the server ends an idle transaction of a service."""

Last = Callable[[Any], Awaitable[int | store.Witness | None]]
"""Runs the last statement before COMMIT on a connection.

Returns what identifies the transaction for a lookup, or None if it wrote nothing.
"""


class Publishes(Protocol):
    """A publisher in a transaction. See `headrace.runtime.messages.publisher`."""

    committed: Callable[[str, datetime | None], None]

    @property
    def publish(self) -> Callable[..., Awaitable[int | None]]: ...
    @property
    def publish_many(self) -> Callable[..., Awaitable[int]]: ...


class Transaction:
    """An open transaction. Its writes and messages commit together, or not at all.

    The methods are those of an asyncpg connection: `query` is a statement whose `$1` is the first of
    `args`, and `timeout` is in seconds. A statement that fails raises asyncpg's error. A handler with `transactional=True` takes one,
    and a service opens one with `async with app.transaction() as tx:`. It can't be used after its
    end.
    """

    __slots__ = ("_database", "_ending", "_hold", "_publisher", "published")

    def __init__(self, database: store.Database, publisher: Publishes, hold: Hold) -> None:
        self._database = database
        self._publisher = publisher
        self._hold: Hold | None = hold
        self._ending: Hold | None = None  # from the COMMIT on, when user code may not use it any more
        self.published: list[tuple[str, datetime | None]] = []
        """The streams that it published to, each with the delivery time of scheduled messages. After
        the commit this process's consumers are notified of them."""

    @property
    def connection(self) -> Any:
        """The asyncpg connection. Raises `ConfigurationError` after the end of the transaction."""
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
        """Run a statement once for each of the argument lists, in one call."""
        await self.connection.executemany(query, args, timeout=timeout)

    async def fetch(self, query: str, /, *args: Any, timeout: float | None = None) -> list[Any]:
        """Run a query. Returns all rows."""
        return await self.connection.fetch(query, *args, timeout=timeout)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, /, *args: Any, timeout: float | None = None) -> Any:
        """Run a query. Returns the first row, or None."""
        return await self.connection.fetchrow(query, *args, timeout=timeout)

    async def fetchval(self, query: str, /, *args: Any, timeout: float | None = None) -> Any:
        """Run a query. Returns the first column of the first row, or None."""
        return await self.connection.fetchval(query, *args, timeout=timeout)

    def cursor(self, query: str, *args: Any, **options: Any) -> Any:
        """Iterate over the rows without loading all of them: `async for row in tx.cursor("select …")`.

        The options are those of asyncpg's `cursor`.
        """
        return self.connection.cursor(query, *args, **options)

    async def copy_records_to_table(self, table: str, *, records: Any, **options: Any) -> str:
        """Write many rows with COPY. See asyncpg for `columns`, `schema_name` and other options."""
        return await self.connection.copy_records_to_table(table, records=records, **options)  # type: ignore[no-any-return]

    def transaction(self) -> Any:
        """Open a savepoint: `async with tx.transaction():`. An exception that leaves the block rolls
        back only the block."""
        return self.connection.transaction()

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message when this transaction commits. Takes, returns and raises what
        `App.publish` does."""
        return await self._publisher.publish(stream, key, data, tx=self, **options)

    async def publish_many(self, stream: str, messages: Iterable[tuple[Any, ...]], **options: Any) -> int:
        """Publish messages in their order when this transaction commits. See `App.publish_many`."""
        return await self._publisher.publish_many(stream, messages, tx=self, **options)

    # --- begin and end, not called by users

    @classmethod
    async def begin(
        cls, database: store.Database, publisher: Publishes, idle: float, *, assign: bool = False
    ) -> Transaction:
        """Open a transaction. The caller must `end` it. Raises `StoreUnavailable`. `idle`, `assign`: see
        `Database.begin`."""
        return cls(database, publisher, await database.begin(idle, assign=assign))

    @history_log.recorded(history_log.acked_and_committed)
    async def ack_and_commit(
        self,
        acks: store.Acks,
        what: str,
        *,
        now: datetime | None,
        history: UUID | None,
        handled: store.Handled | None = None,
        begin_next: bool = False,
    ) -> None:
        """Ack messages and commit. Returns when the commit is known. It can be cancelled only during the lookup.

        If the transaction's id was assigned at the beginning, this is one round trip. After a lost answer, the transaction
        is looked up by that id. Otherwise the ack returns the id, and the COMMIT follows it.

        Args:
            what: a name for the commit in the log.
            now, history, handled: see `store.ack`.
            begin_next: another transaction will probably follow immediately, so that it may be begun in the same round
                trip.

        Raises:
            LeaseLost: see `store.ack`.
            ConfigurationError: a statement of user code has ended the transaction, or failed, or is still running.
            Release: the functions of the database were replaced at that moment.
            StoreUnavailable, InDoubt, Exception: see `commit`.
        """
        hold, database = self._hold, self._database
        assert hold is not None
        if hold.xid is None:
            given = {"now": now, "history": history, "handled": handled}
            await self.commit(lambda connection: _ack(hold, acks, given), what, acks=acks)
            return
        self._hold, self._ending = None, hold
        xid, committing = hold.xid, hold.connected
        begin_next = begin_next and database.may_begin_ahead(hold)
        try:
            with translated(database.dsn), anyio.CancelScope(shield=True), explained(hold):
                await store.ack_and_commit(
                    hold,
                    acks,
                    timeout=ROLLBACK_TIMEOUT,
                    now=now,
                    history=history,
                    handled=handled,
                    begin_next=begin_next,
                )
        except StoreUnavailable as error:
            hold.break_off()
            if not committing:
                raise
            if not await was_committed(database, xid, acks, what):
                raise StoreUnavailable(f"The transaction was not committed. {error}") from error
        except (LeaseLost, ConfigurationError, Release):
            raise
        except Exception:
            if not begin_next:
                raise
            await hold.end()
            if not await was_committed(database, xid, acks, what):
                raise
            # It was the BEGIN of the next transaction that failed.
        self._notify()

    async def commit(self, last: Last, what: str, *, acks: store.Acks | None = None) -> None:
        """Run the last statement and commit. Returns when the commit is known. It can be cancelled
        only during the lookup.

        Args:
            last: runs the last statement.
            what: a name for the commit in the log.
            acks: the acks that `last` makes, if any.

        Raises:
            StoreUnavailable: it is not committed, nor will it be.
            InDoubt: the outcome can't be known any more, because the database was unreachable for
                long and was rewound meanwhile.
            Exception: what `last` raises, or the violation of a constraint that was deferred until
                the COMMIT.
        """
        hold, left, committing = self._hold, None, False
        assert hold is not None
        try:
            with translated(self._database.dsn), anyio.fail_after(ROLLBACK_TIMEOUT, shield=True):
                left = await last(hold.connection)
                committing = True
                await hold.commit()
        except StoreUnavailable as error:
            hold.break_off()
            if not committing:
                raise
            if left is not None and not await was_committed(self._database, left, acks, what):
                raise StoreUnavailable(f"The transaction was not committed. {error}") from error
        self._notify()

    def _notify(self) -> None:
        """Notify this process's consumers of what was published."""
        for stream, due in self.published:
            self._publisher.committed(stream, due)

    async def end(self) -> None:
        """Return the connection. Uncommitted changes are rolled back."""
        hold, self._hold, self._ending = self._hold or self._ending, None, None
        if history_log.LOG is not None:
            history_log.LOG.transaction_ended(self)
        if hold is not None:
            await self._database.end(hold)


_ENDED = (
    "A statement of the handler has ended its transaction, such as COMMIT or ROLLBACK. Leave that statement out: the"
    " transaction is committed after the handler, and rolled back after an exception."
)


class explained:  # noqa: N801  # it is used like a function
    """Raise the errors for what user code did to its transaction before the ack, as a context manager.

    A class, since each call of a transactional handler has one and a generator costs several times as much.
    """

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def __enter__(self) -> None:
        if self._hold.connected and not self._hold.in_transaction:
            raise ConfigurationError(_ENDED)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, store.TransactionEnded):
            raise ConfigurationError(_ENDED) from error
        if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
            raise ConfigurationError(
                "The handler returned while a task that it started still uses its transaction. Wait for the task before you return."
            ) from error
        if not self._hold.in_transaction:  # then it was not the ack that failed, but the COMMIT
            return
        if isinstance(error, asyncpg.InFailedSQLTransactionError):
            raise ConfigurationError(
                "A statement of the handler's transaction failed and the handler continued, so nothing can be committed. Let the"
                " exception leave the handler, or put statements that may fail inside `async with tx.transaction():`."
            ) from error
        if isinstance(error, asyncpg.PostgresError) and object_replaced(error):
            raise Release("The database functions were replaced at that moment, as by an upgrade.") from error


async def _ack(hold: Hold, acks: store.Acks, options: dict[str, Any]) -> int:
    with explained(hold):
        return await store.ack(hold.connection, *acks, **options)


async def was_committed(
    database: store.Database,
    left: int | store.Witness,
    acks: store.Acks | None,
    what: str,
    until: Callable[[], bool] = lambda: False,
) -> bool | None:
    """Look up whether a transaction was committed, however long that takes.

    Args:
        left: its id, or the witness row that it wrote.
        acks: the acks that it made, if any.
        what: a name for the commit in the log.
        until: returns True to give up.

    Returns:
        Whether it was committed. None if given up.

    Raises:
        InDoubt: the outcome can't be known any more.
    """
    database_retry = DatabaseRetry(what)
    witness = left if isinstance(left, store.Witness) else None
    xid = left.xid if isinstance(left, store.Witness) else left
    while not until():
        try:
            status = await store.transaction_status(database, xid, acks=acks, witness=witness)
        except StoreUnavailable as failure:
            await database_retry.wait_after(failure)
            continue
        database_retry.cleared()
        if status == "unknown":
            raise InDoubt(
                f"The connection broke at the commit of transaction {xid}. The database was restored or failed over since, and was unavailable"
                " for too long to tell whether it was committed: look for its writes."
            )
        if status != "in progress":
            return status == "committed"
        await anyio.sleep(LOOK_AGAIN)
    return None


@asynccontextmanager
async def transaction(database: store.Database, publisher: Publishes) -> AsyncIterator[Transaction]:
    """See `App.transaction`."""
    transaction = await Transaction.begin(database, publisher, IDLE)
    try:
        yield transaction
        await _commit(transaction)
    finally:
        await transaction.end()


@history_log.recorded(history_log.committed)
async def _commit(transaction: Transaction) -> None:
    await transaction.commit(store.leave_witness, "a commit")
