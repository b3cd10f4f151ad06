"""Adapters for the user's own connections, so that a publish or an ack commits together with the
user's writes.

`executor` wraps such a connection for the functions of `headrace.store`. It recognises a library by
the types in the connection's class hierarchy, so it imports no library that the user has not
loaded. Synchronous code uses `headrace.drivers.sync`.

    asyncpg      a connection, from a pool or not
    psycopg      an `AsyncConnection`
    SQLAlchemy   an `AsyncSession` or `AsyncConnection`, on either of these two
"""

from __future__ import annotations

from typing import Any

from headrace.drivers.base import libraries, unsupported
from headrace.model.errors import ConfigurationError
from headrace.store.database.database import Executor


def executor(connection: Any) -> Executor:
    """Return an `Executor` that runs inside this connection's transaction.

    Raises:
        ConfigurationError: the connection's type is not supported.
    """
    if hasattr(connection, "fetchval"):
        return connection  # type: ignore[no-any-return]  # asyncpg, and compatible classes
    packages = libraries(connection)
    if "psycopg" in packages:
        from headrace.drivers import psycopg

        return psycopg.executor(connection)
    if "sqlalchemy" in packages:
        from headrace.drivers import sqlalchemy

        return sqlalchemy.executor(connection)
    raise unsupported(connection)


async def check_transaction(executor: Executor) -> None:
    """Check that the connection is inside a transaction. Outside of one, an ack would commit before
    the user's writes.

    Raises:
        ConfigurationError: it is not inside a transaction. Each statement commits on its own.
    """
    is_in_transaction = getattr(executor, "is_in_transaction", None)
    # This holds for every driver and setting: two statements have the same transaction id only
    # inside one transaction.
    inside = is_in_transaction() if is_in_transaction else await _id(executor) == await _id(executor)
    if not inside:
        raise ConfigurationError(
            "The connection is not inside a transaction, so an ack would commit before your writes, or without them. Begin one, as in"
            " `async with connection.transaction():` or `async with session.begin():`."
        )


async def _id(executor: Executor) -> Any:
    return await executor.fetchval("select pg_current_xact_id()::text")
