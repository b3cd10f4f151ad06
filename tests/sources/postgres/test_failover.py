"""Capture continues on the promoted standby when the captured server dies, without loss or duplicates."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.binaries import find_installation
from tests.support import captures, clusters
from tests.support.logs import logged

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(
        find_installation().major < 17, reason="slots are synchronized to standbys from PostgreSQL 17 on"
    ),
]


class Pair:
    """A primary, its standby, and the connection that writes to them."""

    def __init__(self, primary: EmbeddedPostgres, standby: clusters.Standby) -> None:
        self._primary = primary
        self.standby = standby
        self.writer: Any = None

    async def insert(self, first: int, last: int) -> str:
        """Insert rows of these numbers, each in a separate transaction. Returns the position after them."""
        for n in range(first, last + 1):
            await self.writer.execute("insert into orders values ($1)", n)
        position: str = await self.writer.fetchval("select pg_current_wal_flush_lsn()::text")
        return position

    async def synchronize(self) -> None:
        """Synchronize the slot to the standby in its current state."""
        replica = await asyncpg.connect(self.standby.url)
        try:
            with anyio.fail_after(captures.PATIENCE):
                while not await replica.fetchval(
                    "select exists (select from pg_replication_slots where slot_type = 'logical' and synced and not temporary)"
                ):
                    # A record of running transactions, without which the slot does not advance.
                    flushed = await self.writer.fetchval("select pg_log_standby_snapshot()::text")
                    await captures.until(replica, f"select pg_last_wal_receive_lsn() >= '{flushed}'")
                    try:
                        await replica.execute("select pg_sync_replication_slots()")
                    except asyncpg.ObjectNotInPrerequisiteStateError:
                        await anyio.sleep(captures.PAUSE)  # the slot is ahead of the standby's WAL
        finally:
            await replica.close()

    async def fail_over(self, *, from_stopped: bool = False) -> None:
        """Stop the primary and promote the standby, which may have been stopped."""
        await self.writer.close()
        await anyio.to_thread.run_sync(self._primary.stop, "immediate")
        if from_stopped:
            await anyio.to_thread.run_sync(self.standby.start)
        await anyio.to_thread.run_sync(self.standby.promote)
        self.writer = await asyncpg.connect(self.standby.url)


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    with clusters.cluster(directory) as primary, clusters.standby(primary) as standby:
        made = Pair(primary, standby)
        made.writer = await asyncpg.connect(primary.url())
        try:
            await made.writer.execute("create table orders (id int primary key)")
            yield made
        finally:
            await made.writer.close()


async def numbers(database: store.Database) -> list[int]:
    rows = await database.fetch(
        "select (data -> 'record' ->> 'id')::int as id from headrace_streams.orders order by seq"
    )
    return [row["id"] for row in rows]


@pytest.mark.long
async def test_capture_goes_on_at_a_promoted_standby(database: store.Database, tmp_path: Path) -> None:
    async with pair(tmp_path / "primary") as servers:
        await captures.make(
            database, stream="orders", tables=("public.orders",), database=servers.standby.either(), backfill=False
        )
        async with captures.capturing(database.dsn, within=120):
            await captures.until_tracked(database, "orders")
            await servers.insert(1, 20)
            await servers.synchronize()
            flushed = await servers.insert(21, 40)  # captured, but the standby's slot is behind them
            await captures.until(database, "select count(*) = 40 from headrace_streams.orders")
            replica = await asyncpg.connect(servers.standby.url)
            await captures.until(replica, f"select pg_last_wal_replay_lsn() >= '{flushed}'")
            await replica.close()
            await servers.fail_over()
            await servers.insert(41, 60)
            await captures.until(database, "select count(*) >= 60 from headrace_streams.orders")
            info = await captures.until_state(database, "orders", "running")
        assert await numbers(database) == list(range(1, 61))
        assert info.timeline == 2


@pytest.mark.long
async def test_changes_that_a_standby_never_received_are_reported_and_capture_goes_on(
    database: store.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path / "primary") as servers:
        await captures.make(
            database, stream="orders", tables=("public.orders",), database=servers.standby.either(), backfill=False
        )
        async with captures.capturing(database.dsn, within=120):
            await captures.until_tracked(database, "orders")
            await servers.insert(1, 20)
            await servers.synchronize()
            await captures.until(database, "select count(*) = 20 from headrace_streams.orders")
            await anyio.to_thread.run_sync(servers.standby.stop)
            await servers.insert(21, 40)  # captured, and lost with the primary
            await captures.until(database, "select count(*) = 40 from headrace_streams.orders")
            with caplog.at_level(logging.WARNING, "headrace"):
                await servers.fail_over(from_stopped=True)
                await servers.insert(101, 120)
                await captures.until(database, "select count(*) >= 60 from headrace_streams.orders")
            assert await servers.writer.fetchval("select count(*) from orders where id between 21 and 40") == 0
        assert await numbers(database) == [*range(1, 41), *range(101, 121)]
        assert len(logged(caplog, "captured server promoted", source="orders")) == 1
