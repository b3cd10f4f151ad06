"""Reads, writes and backfills last as long as Spark takes, whatever timeouts an administrator has set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace import store
from headrace.model.database_url import read, write
from headrace.model.errors import InvalidData, StoreUnavailable
from headrace_spark.pipelines import backfill as module
from headrace_spark.source import staging
from headrace_spark.source.connection import LONG_TRANSACTION, Place, batches, connect, fetch, translated
from headrace_spark.source.options import Options
from headrace_spark.source.reader import HeadraceReader
from headrace_spark.source.rows import SCHEMA
from tests.conftest import Connect
from tests.runtime.running import eventually

pytestmark = pytest.mark.asyncio

SECONDS = 2
"""Short statements end before that, also on a slow machine."""

OUTLASTED = f"""
    select exists (
        select from pg_stat_activity
        where datname = current_database() and application_name = 'headrace spark' and clock_timestamp() - state_change > interval '{SECONDS + 0.5} s'
          and (wait_event_type = 'Lock' or state = 'idle in transaction'))
"""

Limit = Callable[[str], Awaitable[None]]


@pytest.fixture
def limit(database: store.Database) -> Limit:
    """Set a timeout for the later sessions of the database."""

    async def limit(timeout: str) -> None:
        if not await database.fetchval("select count(*) from pg_settings where name = $1", timeout):
            pytest.skip(f"PostgreSQL has {timeout} from version 17 on")
        here = await database.fetchval("select current_database()")
        await database.fetch(f"alter database {here} set {timeout} = '{SECONDS}s'")

    return limit


async def outlast(database: store.Database, work: asyncio.Task[Any] | None = None) -> None:
    """Wait until a session of the data source has waited longer than the timeout, or the work has failed."""

    async def outlasted() -> bool:
        return (work is not None and work.done()) or bool(await database.fetchval(OUTLASTED))

    await eventually(outlasted)


@pytest.mark.parametrize("timeout", ["statement_timeout", "transaction_timeout"])
async def test_a_read_and_the_commit_of_a_write_may_take_longer_than_the_timeouts_of_a_role(
    timeout: str, limit: Limit, dsn: str, database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    await store.publish(database, "orders", "a", "1")
    rows = pa.record_batch({"key": pa.array(["b"]), "data": pa.array(["2"])})
    a_write = staging.Write(place=Place(dsn), stream="orders", id="w")
    part = await asyncio.to_thread(staging.stage, a_write, 0, [rows])
    reader = HeadraceReader(Options.of({"database": dsn, "stream": "orders"}), SCHEMA)
    (planned,) = await asyncio.to_thread(reader.partitions)
    holder = await connect()
    await limit(timeout)
    for work, result in (
        (lambda: sum(batch.num_rows for batch in reader.read(planned)), 1),
        (partial(staging.commit, a_write, [part], retry_delays=()), 1),
    ):
        async with holder.transaction():
            await holder.execute("lock table headrace_streams.orders in access exclusive mode")
            running = asyncio.create_task(asyncio.to_thread(work))
            await outlast(database, running)
        assert await running == result


@pytest.mark.parametrize("timeout", ["transaction_timeout", "idle_in_transaction_session_timeout"])
async def test_the_snapshot_of_a_backfill_outlasts_the_timeouts_of_a_role(
    timeout: str, limit: Limit, dsn: str, database: store.Database
) -> None:
    await limit(timeout)
    with module._transaction(dsn) as connection:
        await outlast(database)
        assert fetch(connection, dsn, "select 1::bigint") == [(1,)]


async def test_tasks_of_a_backfill_whose_driver_s_transaction_ended_say_so(dsn: str) -> None:
    with module._transaction(dsn) as connection:
        snapshot = module._exported_snapshot(lambda sql, *_: fetch(connection, dsn, sql))
    reader = module._RangeReader(dsn, ["select '1'"], snapshot, "", module.default_shape("public", "t", ()))
    with pytest.raises(StoreUnavailable, match="transaction of the backfill's driver has ended"):
        await asyncio.to_thread(lambda: list(reader._range(0)))


async def test_timeouts_in_the_database_url_stay(dsn: str) -> None:
    url = write(read(dsn) | {"options": "-c statement_timeout=7s"})
    with connect(url, autocommit=False) as connection:
        fetch(connection, url, LONG_TRANSACTION)
        assert fetch(connection, url, "select current_setting('statement_timeout')") == [("7s",)]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("select 1 / (5000 - n) as x from generate_series(1, 100000) as n", InvalidData),
        (
            "select pg_terminate_backend(case n when 5000 then pg_backend_pid() end) from generate_series(1, 100000) as n",
            StoreUnavailable,
        ),
    ],
)
async def test_an_error_amid_the_rows_of_a_read_is_translated(sql: str, error: type[Exception], dsn: str) -> None:
    def rows() -> int:
        with connect(dsn) as connection, connection.cursor() as cursor, translated(dsn):
            cursor.execute(sql)
            return sum(batch.num_rows for batch in batches(cursor))

    with pytest.raises(error):
        rows()
