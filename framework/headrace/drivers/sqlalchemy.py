"""Adapter for asynchronous sessions and connections of SQLAlchemy. Statements run through SQLAlchemy,
which begins its own transaction where there is none.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.drivers.errors import translated
from headrace.drivers.executing import Executing, named, unknown


class _OnConnection(Executing):
    """An executor. `given` is an `AsyncConnection`, or has one, as sessions do."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        with translated():
            connection = self._given if isinstance(self._given, AsyncConnection) else await self._given.connection()
            if connection.dialect.driver == "asyncpg":
                result = await connection.exec_driver_sql(query, args)
            else:
                result = await connection.exec_driver_sql(*named(query, args))
            return list(result.fetchall())


def executor(given: Any) -> Executing:
    """Return an executor for an `AsyncConnection`, an `AsyncSession`, or an `async_scoped_session`."""
    if isinstance(given, AsyncConnection) or hasattr(given, "run_sync"):
        return _OnConnection(given)
    raise unknown(given)
