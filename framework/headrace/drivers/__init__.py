"""Connections that the user brings: what he writes with his own driver, and what he publishes or acks, commit together.

`executor` makes of such a connection what the store's verbs run on. A library is recognised by the types it gave to the connection,
so none is imported that the user has not loaded. Synchronous code has `headrace.drivers.sync`.

    asyncpg      a connection, of a pool or not
    psycopg      an `AsyncConnection`
    SQLAlchemy   an `AsyncSession` or `AsyncConnection`, on either of these two
"""

from __future__ import annotations

from typing import Any

from headrace.drivers.executing import libraries, unknown
from headrace.model.errors import ConfigurationError
from headrace.store.database import Executor


def executor(connection: Any) -> Executor:
    """What runs on this connection, inside its transaction. Raises `ConfigurationError` for what is no such connection."""
    if hasattr(connection, "fetchval"):
        return connection  # type: ignore[no-any-return]  # asyncpg, and whatever is made like it
    made_by = libraries(connection)
    if "psycopg" in made_by:
        from headrace.drivers import psycopg

        return psycopg.executor(connection)
    if "sqlalchemy" in made_by:
        from headrace.drivers import sqlalchemy

        return sqlalchemy.executor(connection)
    raise unknown(connection)


async def check_transaction(executor: Executor) -> None:
    """Make sure that it is inside a transaction, or an ack would be committed before what it is for.

    Raises:
        ConfigurationError: it is not; each statement commits by itself.
    """
    asked = getattr(executor, "is_in_transaction", None)
    # Whatever the driver and its settings: two statements have one transaction id only if they are in one transaction.
    inside = asked() if asked else await _id(executor) == await _id(executor)
    if not inside:
        raise ConfigurationError(
            "The connection is not inside a transaction, so an ack would be committed before the rest, or without it: begin one, as in"
            " `async with connection.transaction():` or `async with session.begin():`."
        )


async def _id(executor: Executor) -> Any:
    return await executor.fetchval("select pg_current_xact_id()::text")
