"""Resolved positions across a crash: a seq that a mark has returned is not drawn again after the
server crashed. A standby refuses to resolve positions."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from headrace import store
from headrace.model.errors import StoreUnavailable
from tests.runtime.running import eventually
from tests.support.clusters import cluster, standby
from tests.support.ranges import plan
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


@pytest.mark.process
async def test_no_seq_up_to_the_last_one_of_a_mark_is_drawn_again(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", wal_writer_delay="10s", synchronous_commit="off") as server:
        database = store.Database(server.url())
        await database.open()
        try:
            await store.migrate(database)
            await store.create_stream(database, "orders")
            late = await asyncpg.connect(server.url())
            await late.execute("begin; select headrace.publish('orders', 'k', '1') from generate_series(1, 500)")
            mark = await database.fetchrow("select last, open from headrace_internal.range_mark('orders')")
            assert mark["last"] == 500
            os.kill(late.get_server_pid(), signal.SIGKILL)
            late.terminate()

            async def recovered() -> bool:
                with suppress(StoreUnavailable):
                    return await database.fetchval("select headrace_internal.still_open_xids($1)", mark["open"]) == []
                return False

            await eventually(recovered)
            await publish(database, "after")
            assert await database.fetchval("select min(seq) from headrace_streams.orders") > mark["last"]
        finally:
            await database.close()


@pytest.mark.process
async def test_a_standby_that_may_lag_behind_reads_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", wal_level="replica") as server, standby(server) as other:
        database = store.Database(server.url())
        await database.open()
        copy = await asyncpg.connect(other.url)
        try:
            await store.migrate(database)
            await store.create_stream(database, "orders")
            await publish(database, "a")
            [part] = await plan(database, 1, 1)

            async def arrived() -> bool:
                return bool(await copy.fetchval("select to_regclass('headrace_streams.orders') is not null"))

            await eventually(arrived)
            for sql in (part["query"], "select headrace_internal.range_mark('orders')"):
                with pytest.raises(asyncpg.PostgresError, match="name the primary as the database") as refusal:
                    await copy.fetch(sql)
                assert refusal.value.sqlstate == "HR003"
        finally:
            await copy.close()
            await database.close()
