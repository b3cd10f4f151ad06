"""Sources that share a replication slot keep every promise of sources with separate slots."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import msgspec
import pytest
import pytest_asyncio

from headrace import App, store, transform
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.database.slots import slot_name
from headrace.sources.postgres.limits import CaptureLimits
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.support import clusters
from tests.support.captures import end_tenures
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

LIMITS = CaptureLimits(
    sources_interval=0.1, gather_interval=0.05, first_retry_delay=0.05, stopped_retry_delay=0.3,
    idle_position_interval=0.2,
)  # fmt: skip


@transform
def hanging(data: dict[str, Any]) -> dict[str, Any]:
    """A transform that does not return."""
    while True:
        time.sleep(0.01)


class Shared:
    """A shop with a table `t1`, `t2` … for each source."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def slot(self) -> str:
        """Return the name of the shared slot on the server."""
        return slot_name("shop", await store.shared_slot_id(self.shop.database, "shop"))

    async def source(self, n: int, **settings: Any) -> SourceInfo:
        await self.shop.sql.execute(f"create table if not exists t{n} (id int primary key, v int)")
        return await self.shop.source(f"s{n}", **{"tables": (f"public.t{n}",), "shared_slot": "shop", **settings})

    @asynccontextmanager
    async def captured(self, *sources: int, limits: CaptureLimits = LIMITS) -> AsyncIterator[App]:
        async with self.shop.captured(limits) as app:
            for n in sources:
                await self.shop.until_running(f"s{n}")
            yield app

    async def insert(self, n: int, *ids: int) -> None:
        await self.shop.sql.executemany(f"insert into t{n} values ($1, 0)", [(id_,) for id_ in ids])

    async def ids(self, n: int, count: int) -> list[int]:
        """Wait for this many messages of a source, and return the ids of their rows."""
        return [one["record"]["id"] for one in await self.shop.until(count, f"s{n}")]

    async def slots(self) -> list[str]:
        return [
            row["slot_name"]
            for row in await self.shop.sql.fetch(
                "select slot_name from pg_replication_slots where database = current_database() and not temporary"
            )
        ]

    async def until(self, condition: str) -> None:
        async def holds() -> bool:
            found: bool = await self.shop.sql.fetchval(f"select {condition}")
            return found

        await eventually(holds)

    async def position(self, n: int) -> str:
        found: str = await self.shop.sql.fetchval(
            "select position::text from headrace_internal.shared_slot_positions('shop') where name = $1", f"s{n}"
        )
        return found


@pytest_asyncio.fixture
async def shared(shop: Shop) -> Shared:
    return Shared(shop)


async def test_sources_with_a_shared_slot_take_one_slot_and_one_sender(shared: Shared) -> None:
    for n in (1, 2, 3):
        await shared.source(n)
    async with shared.captured(1, 2, 3):
        for n in (1, 2, 3):
            await shared.insert(n, 1, 2)
        async with shared.shop.sql.transaction():
            for n in (1, 2, 3):
                await shared.insert(n, 3)
        for n in (1, 2, 3):
            assert await shared.ids(n, 3) == [1, 2, 3]
        assert await shared.slots() == [await shared.slot()]
        senders = "(select count(*) from pg_stat_replication where pid in (select active_pid from pg_replication_slots where database = current_database()))"
        await shared.until(f"{senders} = 1")


@pytest.mark.process
async def test_twelve_sources_run_on_a_server_with_stock_settings(tmp_path: Path) -> None:
    with clusters.cluster(tmp_path / "postgres", max_replication_slots="10", max_wal_senders="10") as server:
        database = store.Database(server.url())
        await database.open()
        await store.migrate(database)
        async with Shop.opened(server.url()) as shop:
            shared = Shared(shop)
            for n in range(12):
                await shared.source(n, backfill=True)
                await shared.insert(n, 1)
            async with shared.captured(*range(12)):
                # A read of a row and the change that made it may both come.
                await shared.until(
                    "not exists (select from headrace_internal.backfills where state in ('queued', 'running'))"
                )
                for n in range(12):
                    await shared.insert(n, 2)
                for n in range(12):
                    assert await shared.ids(n, 2) == [1, 2]
        await database.close()


async def test_a_paused_source_loses_nothing_and_holds_up_no_other(shared: Shared) -> None:
    first = await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2):
        await store.pause_capture(shared.shop.database, first.id, paused=True)
        await shared.shop.until_state("paused", "s1")
        await shared.insert(1, *range(1, 101))
        await shared.insert(2, *range(1, 101))
        assert await shared.ids(2, 100) == list(range(1, 101))
        await shared.until(f"'{await shared.position(2)}'::pg_lsn > '{await shared.position(1)}'::pg_lsn")
        await store.pause_capture(shared.shop.database, first.id, paused=False)
        assert await shared.ids(1, 100) == list(range(1, 101))
        await shared.insert(2, 101)
        await shared.insert(1, 101)
        assert await shared.ids(1, 101) == list(range(1, 102))
        assert await shared.ids(2, 101) == list(range(1, 102))
        await shared.until("count(*) = 1 from pg_replication_slots where database = current_database()")


async def test_the_slot_is_confirmed_only_as_far_as_every_source_is_stored(shared: Shared) -> None:
    first = await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2):
        await store.pause_capture(shared.shop.database, first.id, paused=True)
        await shared.shop.until_state("paused", "s1")
        await shared.insert(2, *range(1, 50))
        await shared.ids(2, 49)
        confirmed = f"(select confirmed_flush_lsn from pg_replication_slots where slot_name = '{await shared.slot()}')"
        # Changes that were on their way when the source was paused may still be stored.
        position = "(select position from headrace_internal.shared_slot_positions('shop') where name = 's1')"
        await shared.until(f"{confirmed} = {position}")
        held = await shared.position(1)
        await store.pause_capture(shared.shop.database, first.id, paused=False)
        await shared.until(f"{confirmed} > '{held}'")


async def test_a_source_that_joins_later_is_backfilled_and_misses_nothing(shared: Shared) -> None:
    await shared.source(1)
    async with shared.captured(1):
        await shared.insert(1, 1)
        await shared.shop.sql.execute("create table t2 (id int primary key, v int)")
        await shared.insert(2, 1, 2)
        other = await asyncpg.connect(shared.shop.dsn)
        try:
            open_before = other.transaction()
            await open_before.start()
            await other.execute("insert into t2 values (3, 0)")
            await shared.source(2, backfill=True)
            await shared.until("exists (select from pg_publication_tables where tablename = 't2')")
            await shared.insert(2, 4)
            await open_before.commit()
        finally:
            await other.close()
        await shared.shop.until_running("s2")
        await shared.insert(2, 5)

        async def has_all() -> bool:
            return {one["record"]["id"] for one in await shared.shop.stream("s2")} == {1, 2, 3, 4, 5}

        await eventually(has_all)
        await shared.insert(1, 2)
        assert await shared.ids(1, 2) == [1, 2]


async def test_a_source_that_resumes_from_before_another_joined_gets_its_changes(shared: Shared) -> None:
    first = await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2):
        await store.pause_capture(shared.shop.database, first.id, paused=True)
        await shared.shop.until_state("paused", "s1")
        await shared.insert(1, 1)
        await shared.source(3)
        await shared.shop.until_running("s3")
        await shared.insert(3, 1)
        await shared.insert(1, 2)
        await shared.ids(3, 1)
    await store.pause_capture(shared.shop.database, first.id, paused=False)
    async with shared.captured():  # all start together, before the publication of the third existed
        await shared.insert(1, 3)
        await shared.insert(3, 2)
        assert await shared.ids(1, 3) == [1, 2, 3]
        assert await shared.ids(3, 2) == [1, 2]


async def test_a_stream_that_refuses_an_append_stops_its_source_only(shared: Shared) -> None:
    await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2):
        await shared.shop.sql.execute(
            "alter table headrace_streams.s1 add constraint refused check (key <> 'public.t1.3')"
        )
        await shared.insert(1, 1, 2, 3)
        await shared.insert(2, *range(1, 101))
        assert await shared.ids(2, 100) == list(range(1, 101))
        await shared.shop.sql.execute("alter table headrace_streams.s1 drop constraint refused")
        assert await shared.ids(1, 3) == [1, 2, 3]
        await shared.insert(1, 4)
        assert await shared.ids(1, 4) == [1, 2, 3, 4]


async def test_a_source_that_holds_up_the_others_is_read_by_itself(shared: Shared) -> None:
    await shared.source(1)
    await shared.source(2)
    limits = CaptureLimits(
        sources_interval=0.1, gather_interval=0.05, first_retry_delay=0.05, hold_up_timeout=0.3, outbox_messages=5,
    )  # fmt: skip
    async with shared.captured(1, 2, limits=limits):
        other = await asyncpg.connect(shared.shop.dsn)
        try:
            async with other.transaction():
                await other.execute("lock table headrace_streams.s1 in share mode")  # appends to s1 wait
                await shared.insert(1, *range(1, 51))
                await shared.insert(2, *range(1, 51))
                assert await shared.ids(2, 50) == list(range(1, 51))
        finally:
            await other.close()
        assert await shared.ids(1, 50) == list(range(1, 51))


async def test_a_source_that_is_far_behind_when_a_process_starts_holds_up_no_other(shared: Shared) -> None:
    first = await shared.source(1)
    await shared.source(2)
    limits = msgspec.structs.replace(
        LIMITS, behind_bytes=1000, catch_up_bytes=1000, hold_up_timeout=3600.0, outbox_messages=5
    )
    async with shared.captured(1, 2):
        await store.pause_capture(shared.shop.database, first.id, paused=True)
        await shared.shop.until_state("paused", "s1")
        await shared.insert(1, *range(1, 101))
        await shared.insert(2, *range(1, 101))
        assert await shared.ids(2, 100) == list(range(1, 101))
    await store.pause_capture(shared.shop.database, first.id, paused=False)
    other = await asyncpg.connect(shared.shop.dsn)
    try:
        async with shared.captured(limits=limits):
            async with other.transaction():
                await other.execute("lock table headrace_streams.s1 in share mode")  # it can't catch up
                await shared.insert(2, 101)
                assert await shared.ids(2, 101) == list(range(1, 102))
            assert await shared.ids(1, 100) == list(range(1, 101))
            await shared.insert(1, 101)
            assert await shared.ids(1, 101) == list(range(1, 102))
    finally:
        await other.close()


async def test_a_source_whose_publication_is_dropped_stops_alone(shared: Shared) -> None:
    await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2):
        name = await shared.shop.sql.fetchval("select pubname from pg_publication_tables where tablename = 't1'")
        await shared.shop.sql.execute(f"drop publication {name}")
        await shared.insert(1, 1)
        for n in range(1, 31):
            await shared.insert(2, n)
        assert await shared.ids(2, 30) == list(range(1, 31))
        stopped = await shared.shop.until_state("stopped", "s1")
        assert stopped.capture is not None
        assert "publication" in (stopped.capture.reason or "")
        await shared.insert(2, 31)
        assert await shared.ids(2, 31) == list(range(1, 32))


async def test_one_process_captures_all_sources_of_a_slot_and_another_takes_all_over(shared: Shared) -> None:
    for n in (1, 2, 3):
        await shared.source(n)
    async with shared.captured(1, 2, 3), shared.captured():
        for round_ in range(4):
            for n in (1, 2, 3):
                await shared.insert(n, round_)
            holders = "count(distinct holder) from headrace_internal.captures where held_until > clock_timestamp()"
            assert await shared.shop.sql.fetchval(f"select {holders}") <= 1
            await end_tenures(shared.shop.database)
        for n in (1, 2, 3):
            assert await shared.ids(n, 4) == [0, 1, 2, 3]
    async with shared.captured():
        await shared.insert(1, 4)
        assert await shared.ids(1, 5) == [0, 1, 2, 3, 4]


async def test_connections_that_are_cut_again_and_again_lose_nothing(shared: Shared) -> None:
    for n in (1, 2, 3):
        await shared.source(n)
    async with shared.captured(1, 2, 3):
        for round_ in range(5):
            for n in (1, 2, 3):
                await shared.insert(n, *range(20 * round_, 20 * round_ + 20))
            await shared.shop.sql.fetch(
                """select pg_terminate_backend(pid) from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')
                     and application_name like 'headrace%'"""
            )
        for n in (1, 2, 3):
            assert await shared.ids(n, 100) == list(range(100))


async def test_a_large_transaction_of_two_sources_is_streamed_once_and_appears_whole_in_both(shared: Shared) -> None:
    name = await shared.shop.sql.fetchval("select current_database()")
    await shared.shop.sql.execute(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    for n in (1, 2, 3):
        await shared.source(n)
    async with shared.captured(1, 2, 3):
        async with shared.shop.sql.transaction():
            await shared.shop.sql.execute("insert into t1 select n, 0 from generate_series(1, 3000) as n")
            await shared.shop.sql.execute("savepoint s")
            await shared.shop.sql.execute("insert into t2 select n, 0 from generate_series(5000, 6000) as n")
            await shared.shop.sql.execute("rollback to savepoint s")
            await shared.shop.sql.execute("insert into t2 select n, 0 from generate_series(1, 3000) as n")

            async def is_streamed() -> bool:
                return await shared.shop.database.fetchval(  # type: ignore[no-any-return]
                    "select sum(stream_txns) > 0 from pg_stat_replication_slots join pg_replication_slots using (slot_name)"
                    " where database = current_database()"
                )

            await eventually(is_streamed)
        assert await shared.ids(1, 3000) == list(range(1, 3001))
        assert await shared.ids(2, 3000) == list(range(1, 3001))
        assert await shared.shop.stream("s3") == []


async def test_sources_of_one_table_each_get_their_actions(shared: Shared) -> None:
    await shared.source(1)
    await shared.shop.source("inserts", tables=("public.t1",), shared_slot="shop", actions=("insert",))
    await shared.shop.source("rows", tables=("public.t1",), shared_slot="shop", mode="rows", deletes="tombstone")
    async with shared.captured(1):
        await shared.shop.until_running("inserts")
        await shared.shop.until_running("rows")
        await shared.insert(1, 1, 2)
        await shared.shop.sql.execute("update t1 set v = 7 where id = 1; delete from t1 where id = 2; truncate t1")
        found = await shared.shop.until(5, "s1")
        assert [one["action"] for one in found] == ["insert", "insert", "update", "delete", "truncate"]
        assert [one["action"] for one in await shared.shop.until(2, "inserts")] == ["insert", "insert"]

        async def all_gone() -> bool:
            rows = await shared.shop.rows("rows")
            return len(rows) == 2 and all(row["record"] is None for row in rows.values())

        await eventually(all_gone)


async def test_a_partition_of_another_sources_table_is_refused_before_a_change_is_missed(shared: Shared) -> None:
    await shared.shop.sql.execute(
        "create table root (id int primary key, v int) partition by range (id); create table leaf (id int primary key, v int)"
    )
    await shared.shop.source("root", tables=("public.root",), shared_slot="shop")
    await shared.shop.source("leaf", tables=("public.leaf",), shared_slot="shop")
    async with shared.captured():
        await shared.shop.until_running("root")
        await shared.shop.until_running("leaf")
        # PostgreSQL 14 would send changes as those of the partition for as long as it has such a change in its cache.
        await shared.shop.sql.execute("alter table root attach partition leaf for values from (0) to (100)")
        await shared.shop.sql.execute("insert into root values (2, 0)")
        await shared.shop.until(1, "root")

        async def is_refused() -> bool:
            info = (await store.source(shared.shop.database, "leaf")).capture
            return info is not None and "is a partition of public.root" in (info.reason or "")

        await eventually(is_refused)


async def test_the_slot_is_dropped_with_the_last_source(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2) as app:
        await app.admin.delete_source("s1")
        await shared.shop.sql.execute("insert into t1 values (1)")
        await shared.insert(2, 1)
        assert await shared.ids(2, 1) == [1]
        assert not logged(caplog, "capture waits")
        assert await shared.slots() == [await shared.slot()]
        await app.admin.delete_source("s2")
        assert await shared.slots() == []
        assert await shared.shop.sql.fetchval("select count(*) from pg_publication") == 0


async def test_the_slot_is_dropped_when_the_last_two_sources_are_deleted_at_the_same_time(shared: Shared) -> None:
    await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2) as app:
        await asyncio.gather(app.admin.delete_source("s1"), app.admin.delete_source("s2"))
        assert await shared.slots() == []


async def test_an_alarm_names_the_source_that_holds_the_slot_back(shared: Shared) -> None:
    first = await shared.source(1)
    await shared.source(2, alarm=1, heartbeat=1.0)  # looks at the slot each second
    async with shared.captured(1, 2):
        await store.pause_capture(shared.shop.database, first.id, paused=True)
        await shared.insert(2, *range(200))

        async def is_named() -> bool:
            info = (await store.source(shared.shop.database, "s2")).capture
            return info is not None and info.facts is not None and "capture of s1" in (info.facts.alarm or "")

        await eventually(is_named)


async def test_a_source_whose_transform_hangs_is_stopped_and_the_others_continue(shared: Shared) -> None:
    await shared.source(1, transform=f"{__name__}:hanging")
    await shared.source(2)
    limits = msgspec.structs.replace(LIMITS, transform_timeout=0.5)
    async with shared.captured(1, 2, limits=limits):
        async with shared.shop.sql.transaction():
            await shared.insert(1, 1)
            await shared.insert(2, 1)
        await shared.shop.until_state("stopped", "s1")
        await shared.insert(2, 2)
        assert await shared.ids(2, 2) == [1, 2]


@pytest.mark.process
async def test_a_source_catches_up_without_a_free_slot(tmp_path: Path) -> None:
    with clusters.cluster(tmp_path / "postgres", max_replication_slots="1") as server:
        database = store.Database(server.url())
        await database.open()
        await store.migrate(database)
        async with Shop.opened(server.url()) as shop:
            shared = Shared(shop)
            first = await shared.source(1)
            await shared.source(2)
            async with shared.captured(1, 2):
                await store.pause_capture(database, first.id, paused=True)
                await shop.until_state("paused", "s1")
                await shared.insert(1, 1, 2)
                await shared.insert(2, 1, 2)
                assert await shared.ids(2, 2) == [1, 2]
                await store.pause_capture(database, first.id, paused=False)
                assert await shared.ids(1, 2) == [1, 2]
                await shared.insert(2, 3)
                assert await shared.ids(2, 3) == [1, 2, 3]
                await store.pause_capture(database, first.id, paused=True)
                await shop.until_state("paused", "s1")
                await shared.insert(1, 3)
                await shared.insert(2, 4)
                assert await shared.ids(2, 4) == [1, 2, 3, 4]
            await store.pause_capture(database, first.id, paused=False)
            async with shared.captured(limits=msgspec.structs.replace(LIMITS, behind_bytes=0)):
                assert await shared.ids(1, 3) == [1, 2, 3]
                await shared.insert(2, 5)
                assert await shared.ids(2, 5) == [1, 2, 3, 4, 5]
        await database.close()


async def test_sources_of_a_lost_slot_start_again_one_by_one(shared: Shared) -> None:
    await shared.source(1)
    await shared.source(2)
    async with shared.captured(1, 2) as app:
        await shared.shop.sql.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()"
        )

        async def is_dropped() -> bool:
            try:
                await shared.shop.sql.execute("select pg_drop_replication_slot($1)", await shared.slot())
            except asyncpg.ObjectInUseError:
                await shared.shop.sql.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()"
                )
                return False
            except asyncpg.UndefinedObjectError:
                pass
            return True

        await eventually(is_dropped)
        await shared.shop.until_state("stopped", "s1")
        await shared.shop.until_state("stopped", "s2")
        await app.admin.resume_source("s1", anew=True)
        await shared.shop.until_running("s1")
        stopped = await shared.shop.until_state("stopped", "s2")
        assert stopped.capture is not None
        await app.admin.resume_source("s2", anew=True)
        await shared.shop.until_running("s2")
        # The tables are read again. A read of a row and the change that made it may both come.
        await shared.until("not exists (select from headrace_internal.backfills where state in ('queued', 'running'))")
        await shared.insert(1, 1)
        await shared.insert(2, 1)
        assert await shared.ids(1, 1) == [1]
        assert await shared.ids(2, 1) == [1]


async def test_a_source_of_another_database_is_refused(shared: Shared, empty_dsn: str) -> None:
    await shared.source(1)
    other = await asyncpg.connect(empty_dsn)
    try:
        await other.execute("create table elsewhere (id int primary key)")
        async with shared.captured(1):
            await shared.shop.source("other", tables=("public.elsewhere",), shared_slot="shop", database=empty_dsn)
            stopped = await shared.shop.until_state("stopped", "other")
            assert stopped.capture is not None
            assert "another database" in (stopped.capture.reason or "")
            await shared.insert(1, 1)
            assert await shared.ids(1, 1) == [1]
    finally:
        await other.close()


async def test_two_headrace_databases_that_name_a_slot_alike_have_a_slot_each(shared: Shared, empty_dsn: str) -> None:
    await shared.source(1)
    await shared.insert(1, 1)
    database = store.Database(empty_dsn)
    await database.open()
    try:
        await store.migrate(database)
        async with Shop.opened(empty_dsn) as other:
            await other.source("s1", tables=("public.t1",), shared_slot="shop", database=shared.shop.dsn)
            async with shared.captured(1), other.captured(LIMITS):
                await other.until_running("s1")
                await shared.insert(1, 2, 3)
                assert await shared.ids(1, 2) == [2, 3]
                assert [one["record"]["id"] for one in await other.until(2, "s1")] == [2, 3]
                found = await shared.slots()
                assert sorted(name[:14] for name in found) == ["headrace_shop_"] * 2
                assert await shared.slot() in found
    finally:
        await database.close()


async def test_a_slot_of_that_name_that_is_of_another_client_is_refused(shared: Shared) -> None:
    name = await shared.slot()
    await shared.shop.sql.fetchval("select pg_create_physical_replication_slot($1)", name)
    try:
        await shared.source(1)
        async with shared.captured():
            stopped = await shared.shop.until_state("stopped", "s1")
            assert stopped.capture is not None
            assert f"The replication slot {name} is physical" in (stopped.capture.reason or "")
            await shared.shop.sql.fetchval("select pg_drop_replication_slot($1)", name)
            await shared.shop.until_running("s1")
    finally:
        await shared.shop.sql.fetch(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and database is null",
            name,
        )


@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=pytest.mark.long), *(pytest.param(seed, marks=pytest.mark.torture) for seed in (1, 2))],
)
async def test_sources_that_come_and_go_at_random_mirror_their_tables(shared: Shared, seed: int) -> None:
    chance = random.Random(seed)
    shop, count = shared.shop, 5
    sources = {n: await shared.source(n, backfill=True) for n in range(count)}
    limits = msgspec.structs.replace(LIMITS, hold_up_timeout=1.0, outbox_messages=200, table_check_interval=1.0)
    paused: set[int] = set()
    writing = True

    async def write() -> None:
        sql = await asyncpg.connect(shop.dsn)
        try:
            for id_ in itertools.count():
                tables = chance.sample(sorted(sources), chance.randint(1, 3))
                transaction = sql.transaction()
                await transaction.start()
                for n in tables:
                    await sql.execute(
                        f"insert into t{n} select i, 0 from generate_series($1::int, $2::int) as i",
                        1000 * id_, 1000 * id_ + chance.choice([0, 3, 3, 250]),
                    )  # fmt: skip
                await (transaction.commit if chance.random() < 0.8 else transaction.rollback)()
                if not writing:
                    return
                await anyio.sleep(0.03)
        finally:
            await sql.close()

    async def trouble() -> None:
        nonlocal count
        for _ in range(30):
            await anyio.sleep(chance.random() * 0.3)
            n = chance.choice(sorted(sources))
            match chance.randrange(7):
                case 0 | 1:
                    await store.pause_capture(shop.database, sources[n].id, paused=n not in paused)
                    paused.symmetric_difference_update({n})
                case 2:
                    await shop.sql.fetch(
                        "select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()"
                    )
                case 3:
                    await shop.sql.fetch(
                        """select pg_terminate_backend(pid) from pg_stat_activity
                           where datname = current_database() and pid <> pg_backend_pid() and application_name like 'headrace%'
                           order by random() limit 3"""
                    )
                case 4:
                    await end_tenures(shop.database)
                case 5:
                    await store.interrupt_capture(shop.database, sources[n].id)
                case 6 if count < 8:
                    sources[count] = await shared.source(count, backfill=True)
                    count += 1

    async with shop.captured(limits), shop.captured(limits):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await trouble()
            writing = False
        for n in paused:
            await store.pause_capture(shop.database, sources[n].id, paused=False)
        for n in sources:
            expected = {row["id"] for row in await shop.sql.fetch(f"select id from t{n}")}

            async def has_all(n: int = n, expected: set[int] = expected) -> bool:
                return {one["record"]["id"] for one in await shop.stream(f"s{n}")} >= expected

            await eventually(has_all)
            messages = await shop.stream(f"s{n}")
            assert {one["record"]["id"] for one in messages} == expected
            changes = [one for one in messages if one["action"] == "insert"]
            places = [(one["metadata"]["commit_lsn"], one["metadata"]["commit_idx"]) for one in changes]
            assert places == sorted(set(places))
            assert len({one["record"]["id"] for one in changes}) == len(changes)
