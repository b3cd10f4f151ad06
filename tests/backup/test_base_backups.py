"""Base backups and copies of the data directory, taken in the middle of the work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from headrace import store
from headrace.embedded import EmbeddedPostgres
from tests.backup.scene import Scene
from tests.backup.work import Work
from tests.support.clusters import cluster
from tests.support.copies import copy_of, programs_of
from tests.support.recovery import archived
from tests.support.servers import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.process]


@pytest_asyncio.fixture
async def original(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedPostgres, Scene]]:
    """A running server in the middle of its work."""
    with cluster(tmp_path / "postgres", max_prepared_transactions="10") as server:
        async with opened(server.url()) as database:
            await store.migrate(database)
            scene = Scene(server.url())
            await scene.set(database, prepare=True)
            yield server, scene


@pytest.mark.parametrize("xids", ["the same", "far ahead"])
async def test_a_restored_base_backup_goes_on_where_the_original_was(
    original: tuple[EmbeddedPostgres, Scene], xids: str
) -> None:
    """Its transaction ids may also be far ahead, as after `pg_resetwal`."""
    server, scene = original
    with copy_of(programs_of(server)) as copy:
        await anyio.to_thread.run_sync(copy.back_up, server.url())
        await scene.end()
        copy.start()
        if xids == "far ahead":
            async with opened(copy.url) as restored:
                await scene.give_up(restored)
            copy.stop()
            copy.advance_xids(7, 1_500_000_000)
            copy.start()
        async with opened(copy.url) as restored:
            if xids == "far ahead":
                assert await restored.fetchval("select pg_current_xact_id()::text::bigint >> 32") == 7
            await scene.goes_on(restored)


@pytest.mark.long
async def test_a_base_backup_taken_while_workers_work_loses_and_repeats_no_effect(tmp_path: Path) -> None:
    """Effects that commit with the ack are there exactly once. Others are redelivered, in the order of their key."""
    with cluster(tmp_path / "postgres") as server:
        work = Work(server.url())
        with copy_of(programs_of(server)) as copy:
            async with work.going_on():
                await work.until(300)
                await anyio.to_thread.run_sync(copy.back_up, server.url())
                await work.until(300)
            copy.start()
            await Work(copy.url).finishes()


@pytest.mark.long
async def test_a_recovery_to_a_moment_at_which_workers_worked_loses_and_repeats_no_effect(tmp_path: Path) -> None:
    with archived(tmp_path / "postgres") as server:
        dsn = server.server.url()
        work = Work(dsn)
        async with work.going_on():
            await anyio.to_thread.run_sync(server.back_up)
            await work.until(300)
            async with opened(dsn) as database:
                await database.fetchval("select pg_create_restore_point('middle')")
            await work.until(300)
        await anyio.to_thread.run_sync(server.recover, "middle")
        await Work(dsn).finishes()
