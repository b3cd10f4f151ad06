"""Adapter for asynchronous sessions and connections of SQLAlchemy. Statements run through SQLAlchemy,
which begins its own transaction where there is none.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.drivers.base import BaseExecutor, named, unsupported
from headrace.drivers.errors import translated


class _OnConnection(BaseExecutor):
    """An executor. `source` is an `AsyncConnection`, or has one, as sessions do."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        with translated():
            connection = self._source if isinstance(self._source, AsyncConnection) else await self._source.connection()
            if connection.dialect.driver == "asyncpg":
                result = await connection.exec_driver_sql(query, args)
            else:
                result = await connection.exec_driver_sql(*named(query, args))
            return list(result.fetchall())


def executor(source: Any) -> BaseExecutor:
    """Return an executor for an `AsyncConnection`, an `AsyncSession`, or an `async_scoped_session`."""
    if isinstance(source, AsyncConnection) or hasattr(source, "run_sync"):
        return _OnConnection(source)
    raise unsupported(source)
