"""The database connection: counts round trips, has its waits watched, and sends settings together with the
BEGIN of a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import asyncpg

from headrace.model.clock import suspension_clock
from headrace.store.connections.driver import DriverConnection
from headrace.store.connections.forks import give_up_in_children
from headrace.store.connections.keepalive import keep_alive
from headrace.store.connections.sessions import RESTORE, changes_session, drops_statements
from headrace.store.connections.statements import ONE_PACKET, for_grants, for_session, resets

MAX_QUERIES = 50_000
"""The number of statements after which the pool replaces a connection. The server's memory for it grows slowly."""

READ_ONLY_TIME = 1.0
"""Seconds after which a connection that is read-only is replaced, because its database may be writable again. A session
keeps the mode that it began with."""


class StatementObserver(Protocol):
    """Learns of each statement. See `headrace.store.database.failure_detector`."""

    def sent(self, connection: Connection, statement: str) -> None: ...
    def answered(self, connection: Connection, *, succeeded: bool) -> None: ...


# Statements that the server accepts only before the first query of a transaction.
_BEFORE_QUERIES = re.compile(r"\bset\s+(?:local\s+|session\s+)?transaction|\bisolation\s+level\b", re.IGNORECASE)

# As text, because not every version of asyncpg knows xid8.
_ASSIGN = "select pg_catalog.pg_current_xact_id()::text::bigint"


class AssignedId:
    """The id that a transaction got at its BEGIN, by a query.

    Attributes:
        xid: the id. None after the transaction has begun again, without an id.
        statements: BEGIN and the statements that followed it.
        queries: how many queries the connection had sent then.
    """

    __slots__ = ("queries", "statements", "xid")

    def __init__(self, xid: int, statements: tuple[str, ...], queries: int) -> None:
        self.xid: int | None = xid
        self.statements = statements
        self.queries = queries


class PoolCounters:
    """Statistics of the connections of one pool.

    Attributes:
        round_trips: statements that were sent, including BEGIN and COMMIT.
        waits: how often a caller had to wait for a connection, or for one of the `holds`.
        waited: the total seconds of these waits.
    """

    __slots__ = ("round_trips", "waited", "waits")

    def __init__(self) -> None:
        self.round_trips = 0
        self.waits = 0
        self.waited = 0.0


class Connection(DriverConnection):
    """A connection of asyncpg, with the additions of this module.

    Attributes:
        opened_at: when it was opened, on the clock that counts suspension.
        granted: whether its role uses the schema through its grants, see `for_grants`.
        session_changed: whether a statement may have changed the session beyond its transaction, see `restore_session`.
    """

    counters = PoolCounters()  # each pool sets its own
    granted = False
    detector: StatementObserver | None = None
    opened_at = 0.0
    session_changed = False
    _is_altered = False
    _assigned: AssignedId | None = None  # until the first statement of its transaction
    _with_next = ""
    _kept: tuple[str, ...] = ()  # settings that hold in the session, see `run_commit_and_begin`

    def begin(self, counters: PoolCounters, detector: StatementObserver, *, granted: bool = False) -> None:
        """Start the measurements. Called when the connection has just been opened."""
        self.counters, self.detector, self.granted = counters, detector, granted
        self.opened_at = suspension_clock()
        keep_alive(self.socket)
        give_up_in_children(self)

    @property
    def reusable(self) -> bool:
        """Whether the next call may use it as it is, without the pool's checks and its clean-up."""
        return not (self.in_any_transaction or self._kept) and self.unblemished

    @property
    def unblemished(self) -> bool:
        """Whether it will be `reusable` after its transaction."""
        return not (
            self.session_changed
            or self.altered
            or self.is_closed()
            or self.cancelling
            or self.queries_count >= MAX_QUERIES
        )

    @property
    def altered(self) -> bool:
        """Whether only its end undoes what user code did: codecs, listeners, dropped statements. Or it was read-only."""
        return bool(self._is_altered or self.has_listeners)

    async def restore_session(self) -> None:
        """Undo what statements have changed in the session beyond their transactions, for its next user, or close it."""
        if not self.session_changed and not self._kept:
            return
        try:
            await super().execute(RESTORE)
            self.session_changed, self._kept = False, ()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self.terminate()

    def send_with_next(self, query: str) -> None:
        """Send this SQL together with the next statement that has no arguments, which saves a round trip."""
        self._with_next = query

    async def begin_assigned(self, settings: tuple[str, ...]) -> AssignedId:
        """Begin a transaction and assign its id, in one round trip.

        The connection must keep prepared statements, as it does without a pooler. If the first statement is one that must
        precede all queries, the transaction is begun again without an id.

        Args:
            settings: statements that follow the BEGIN. They return no rows.
        """
        return await self._run_and_begin(
            _ASSIGN, [("begin", ()), *((setting, ()) for setting in settings)], settings, None
        )

    async def run_commit_and_begin(
        self, query: str, arguments: Sequence[str | None], settings: tuple[str, ...], timeout: float
    ) -> AssignedId | None:
        """Do what `run_and_commit` does, and `begin_assigned` for the next transaction, in one round trip.

        The settings are made for the session, so that those that follow need not make them again. Whatever ends the last of
        these transactions resets them: `run_and_commit` or `end`.

        If the query, the COMMIT or the BEGIN fails, what follows is not run. So after an error it is unknown whether the
        transaction was committed.

        Returns:
            The id of the next transaction. None if there is none, since the arguments did not fit in one packet.
        """
        if _size(arguments) > ONE_PACKET:
            await self.run_and_commit(query, arguments, timeout)
            return None
        statements: list[tuple[str, Sequence[str | None]]] = [(self._ours(query), arguments), ("commit", ())]
        if self._kept != settings:
            statements += [(for_session(setting), ()) for setting in settings]
            self._kept = settings  # from here on, because they may have been made when something fails
        return await self._run_and_begin("commit", [*statements, ("begin", ())], settings, timeout)

    async def _run_and_begin(
        self,
        what: str,
        statements: Sequence[tuple[str, Sequence[str | None]]],
        settings: tuple[str, ...],
        timeout: float | None,
    ) -> AssignedId:
        """Run statements that return no rows, and end with the BEGIN of a transaction. Assign its id."""
        rows = await self._watched(what, self.fetch_after(statements, _ASSIGN, timeout))
        self._assigned = assigned = AssignedId(rows[0][0], ("begin", *settings), self.queries_count)
        return assigned

    async def run_and_commit(self, query: str, arguments: Sequence[str | None], timeout: float) -> None:
        """Run a query that returns no rows, and COMMIT, in one round trip. The connection must keep prepared statements.

        The server must not get the query without the COMMIT, because it would keep the locks of the query while it waits. If
        both fit in one packet, they are prepared statements. Otherwise they are one message, a text without arguments.

        Args:
            query: its parameters are `$1` to `$9`.
            arguments: in Postgres's text format, None for NULL.
            timeout: in seconds.
        """
        query, ends = self._ours(query), ["commit", *resets(self._kept)]
        if _size(arguments) > ONE_PACKET:
            literals = ["null" if text is None else "'" + text.replace("'", "''") + "'" for text in arguments]
            query = re.sub(r"\$([1-9])", lambda found: literals[int(found[1]) - 1], query)
            await self._watched("commit", super().execute("; ".join((query, *ends)), timeout=timeout))
        else:
            # An empty query follows, since asyncpg has to send one. It is written last, and by itself.
            statements = [(query, arguments), *((end, ()) for end in ends)]
            await self._watched("commit", self.fetch_after(statements, "", timeout))
        self._kept = ()

    async def end(self, by: Callable[[], Awaitable[None]]) -> None:
        """End a transaction by asyncpg's COMMIT or ROLLBACK, and reset with it what `run_commit_and_begin` has set."""
        self.send_with_next("; ".join(resets(self._kept)))
        await by()
        self._kept = ()

    def _ours(self, query: str) -> str:
        """A query of the store as this role may send it."""
        return for_grants(query) if self.granted else query

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Awaitable[str]:  # type: ignore[override]
        with_next, self._with_next = self._with_next, ""
        query = self._ours(query)
        return self._watched(query, super().execute(query + with_next if with_next else query, *args, timeout=timeout))

    def executemany(self, command: str, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        return self._watched(command, super().executemany(command, *args, **options))

    def fetch(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = self._ours(query)
        return self._watched(query, super().fetch(query, *args, **options))

    def fetchrow(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = self._ours(query)
        return self._watched(query, super().fetchrow(query, *args, **options))

    def fetchval(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        query = self._ours(query)
        return self._watched(query, super().fetchval(query, *args, **options))

    def copy_from_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_from_table(*args, **options)

    def copy_from_query(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_from_query(*args, **options)

    def copy_to_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_to_table(*args, **options)

    def copy_records_to_table(self, *args: Any, **options: Any) -> Awaitable[str]:  # type: ignore[override]
        self._assigned = None
        return super().copy_records_to_table(*args, **options)

    async def _begin_anew(self, assigned: AssignedId) -> None:
        """Begin the transaction without an id, if nothing was done in it yet. asyncpg doesn't count a COPY."""
        if self.queries_count == assigned.queries:
            assigned.xid = None
            self.counters.round_trips += 1
            await super().execute("; ".join(("rollback", *assigned.statements)))

    def prepare(self, query: str, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        self._notice(query)
        return super().prepare(query, **options)

    def set_type_codec(self, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        self._is_altered = True
        return super().set_type_codec(*args, **options)

    def set_builtin_type_codec(self, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        self._is_altered = True
        return super().set_builtin_type_codec(*args, **options)

    def _notice(self, statement: str) -> None:
        if changes_session(statement):
            self.session_changed = True
            self._is_altered = self._is_altered or drops_statements(statement)

    async def _watched(self, statement: str, answer: Coroutine[Any, Any, Any]) -> Any:
        self._notice(statement)
        if (assigned := self._assigned) is not None:
            self._assigned = None
            if _BEFORE_QUERIES.search(statement) is not None:
                try:
                    await self._begin_anew(assigned)
                except BaseException:
                    answer.close()
                    raise
        self.counters.round_trips += 1
        detector = self.detector
        if detector is None:
            return await answer
        detector.sent(self, statement)
        succeeded = False
        try:
            result = await answer
            succeeded = True
            return result
        except asyncpg.InternalClientError as error:
            # The server closed the connection, and the driver was still reading its last messages. This
            # is not an error of the caller.
            self.terminate()
            raise asyncpg.InterfaceError("the connection broke during a statement") from error
        except asyncpg.ReadOnlySQLTransactionError:
            self._is_altered = self._is_altered or suspension_clock() - self.opened_at >= READ_ONLY_TIME
            raise
        except asyncpg.InvalidSQLStatementNameError:
            # User code has deallocated the driver's statements, which the driver would still use.
            self.terminate()
            raise
        except AttributeError as error:
            if not self.is_closed():
                raise
            # A statement with types that the driver doesn't know takes several round trips, and the
            # connection was closed between two of them.
            raise asyncpg.InterfaceError("the connection was closed during a statement") from error
        finally:
            detector.answered(self, succeeded=succeeded)


def _size(arguments: Sequence[str | None]) -> int:
    return sum(len(text) for text in arguments if text is not None)
