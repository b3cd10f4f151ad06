"""Adapter for asynchronous connections of psycopg 3."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from headrace.drivers.base import BaseExecutor, unsupported
from headrace.drivers.errors import translated


class _OnConnection(BaseExecutor):
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        with translated():
            async with psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(query.encode(), args)
                return await cursor.fetchall()


def executor(connection: Any) -> BaseExecutor:
    """Return an executor for an `AsyncConnection`. psycopg begins a transaction with the first
    statement, unless the connection is in autocommit mode.
    """
    if not isinstance(connection, psycopg.AsyncConnection):
        raise unsupported(connection)
    return _OnConnection(connection)
