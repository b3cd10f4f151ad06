"""Autovacuum analyzes no table that is written for each batch.

While it sleeps between two pages of its sample, it holds a lock on the page, in PostgreSQL 17 and 18. If the table is small,
it is the page that all calls write, and they wait for some milliseconds, once a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from tests.conftest import Connect, Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


T = TypeVar("T")


class Written:
    """The tables that calls over a connection write, without those of the streams."""

    def __init__(self, connection: Any) -> None:
        self.tables: set[str] = set()
        self._connection = connection

    async def by(self, call: Awaitable[T]) -> T:
        """Make a call in a separate transaction. Returns its result."""
        async with self._connection.transaction():
            result = await call
            rows = await self._connection.fetch(
                "select relname from pg_stat_xact_user_tables"
                " where n_tup_ins + n_tup_upd + n_tup_del > 0 and schemaname = 'headrace_internal'"
            )
        self.tables |= {row["relname"] for row in rows}
        return result


async def analyzed(connection: Any, tables: set[str]) -> set[str]:
    """Those of the tables that autovacuum may analyze."""
    rows = await connection.fetch(
        "select relname from pg_class where relnamespace = 'headrace_internal'::regnamespace and relname = any($1)"
        " and not coalesce('autovacuum_analyze_threshold=2147483647' = any(reloptions), false)",
        list(tables),
    )
    return {row["relname"] for row in rows}


async def test_autovacuum_analyzes_no_table_that_is_written_for_each_batch(declare: Declare, connect: Connect) -> None:
    reader = await declare()
    await publish(reader.executor, *[f"k.{number % 4}" for number in range(20)])
    reader.executor = connection = await connect()
    written = Written(connection)
    first = await written.by(reader.lease(limit=5))
    second = await written.by(reader.lease("bob", 5))
    await written.by(reader.ack_within(connection, first, first.seqs[0]))
    await written.by(reader.nack(first, *first.seqs[1:], delay=1.0))
    await written.by(reader.ack_all(second))
    assert {"acks", "cursors", "leases", "parked"} <= written.tables
    assert await analyzed(connection, written.tables | {"capture_positions", "commits", "waits"}) == set()
