"""Backfills during a transaction with a commit that is in the WAL, and captured, but not visible yet.

On this server each commit waits for a standby that does not exist, unless its session disables that.
With DBLog's two marks in the log, one before the read and one after it, a chunk that is read meanwhile
could overwrite the newer change.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.embedded import EmbeddedPostgres
from tests.sources.postgres.backfilling import WITHIN, Capture, chunks_of, until
from tests.support.servers import QUICK

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def waiting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with commits that wait for a standby that does not exist."""
    directory: Path = tmp_path_factory.mktemp("waiting") / "postgres"
    server = EmbeddedPostgres(directory, settings={**QUICK, "synchronous_standby_names": "nobody"})
    try:
        with server.acquire() as handle:
            yield handle.url
        server.destroy()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture
async def local(waiting_server: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection with local commits, which do not wait, to a server with a new table of 500 rows."""
    connection = await asyncpg.connect(waiting_server, server_settings={"synchronous_commit": "local"})
    try:
        await connection.execute(
            "drop table if exists items; create table items (id int primary key, name text);"
            " insert into items select i, 'older' from generate_series(1, 500) as i"
        )
        yield connection
    finally:
        await connection.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
        await connection.close()


@pytest_asyncio.fixture
async def capture(database: store.Database, waiting_server: str, local: Any) -> AsyncIterator[Capture]:
    async with Capture.opened(database, waiting_server, limits=chunks_of(100)) as capture:
        yield capture


@asynccontextmanager
async def committing(dsn: str, local: Any, sql: str) -> AsyncIterator[None]:
    """Run the statement and keep its commit waiting for the standby, while it is in the WAL, until the end."""
    connection = await asyncpg.connect(dsn)
    async with anyio.create_task_group() as group:
        try:
            group.start_soon(_quietly, connection, sql)
            await until(
                lambda: local.fetchval("select exists (select from pg_stat_activity where wait_event = 'SyncRep')")
            )
            yield
            await until_seen(local)
        finally:
            connection.terminate()
            group.cancel_scope.cancel()


async def _quietly(connection: Any, sql: str) -> None:
    """Run the statement without its warning that the commit is local only, which is intended."""
    connection.add_log_listener(lambda *_: None)
    await connection.execute(sql)


async def until_seen(local: Any) -> None:
    """Release all waiting commits, and wait until none waits."""
    released = "select count(pg_cancel_backend(pid)) = 0 from pg_stat_activity where wait_event = 'SyncRep'"
    await until(lambda: local.fetchval(released))


async def test_a_change_can_be_captured_before_it_is_visible(capture: Capture, waiting_server: str, local: Any) -> None:
    """This is why a mark before the read does not help.

    The mark comes after the change in the WAL, and the read still sees the row without the change.
    """
    async with committing(waiting_server, local, "update items set name = 'newer' where id = 5"):
        await capture.pump()
        assert [one["record"]["name"] for one in await capture.messages("update")] == ["newer"]
        assert await local.fetchval("select name from items where id = 5") == "older"


async def test_a_row_that_was_changed_unseen_since_the_backfill_began_is_left_out(
    capture: Capture, waiting_server: str, local: Any
) -> None:
    backfill_id = await capture.request_backfill()
    with anyio.fail_after(WITHIN):
        async with capture.working():

            async def some() -> bool:
                return (await capture.info(backfill_id)).read >= 100

            await capture.pump_until(some)
            async with committing(waiting_server, local, "update items set name = 'newer' where id = 450"):
                info = await capture.pump_until(lambda: capture.over(backfill_id))
                assert await local.fetchval("select name from items where id = 450") == "older"  # still
            assert (info.read, info.published) == (500, 499)
    assert (await capture.replayed())[450]["name"] == "newer"


async def test_a_backfill_waits_for_earlier_captured_changes_that_are_not_visible_yet(
    capture: Capture, waiting_server: str, local: Any
) -> None:
    capture.backfiller._earlier_visible = True  # so that it relies on the transactions it has recorded
    with anyio.fail_after(WITHIN):
        async with committing(waiting_server, local, "update items set name = 'newer' where id = 5"):
            await capture.pump()
            assert [one["record"]["name"] for one in await capture.messages("update")] == ["newer"]
            backfill_id = await capture.request_backfill()
            async with capture.working():
                await capture.pump_until(lambda: capture.backfiller.tracking)
                for _ in range(20):
                    await capture.pump()
                assert await capture.messages("read") == []
                await until_seen(local)
                info = await capture.pump_until(lambda: capture.over(backfill_id))
    assert (info.read, info.published) == (500, 500)
    assert (await capture.replayed())[5]["name"] == "newer"


async def test_a_backfill_waits_without_a_limit_for_invisible_changes_that_another_process_captured(
    capture: Capture, waiting_server: str, local: Any
) -> None:
    capture.limits = msgspec.structs.replace(capture.limits, visibility_timeout=0.0)
    capture.restart()
    with anyio.fail_after(WITHIN):
        async with committing(waiting_server, local, "update items set name = 'newer' where id = 5"):
            await capture.pump()
            capture.restart()  # no process remembers the captured transaction
            backfill_id = await capture.request_backfill()
            async with capture.working():

                async def settling() -> bool:
                    return (await capture.info(backfill_id)).state == "running"

                await capture.pump_until(settling)
                for _ in range(20):
                    await capture.pump()
                assert await capture.messages("read") == []
                await until_seen(local)
                await capture.pump_until(lambda: capture.over(backfill_id))
    assert (await capture.replayed())[5]["name"] == "newer"


async def test_a_transaction_that_has_not_begun_to_commit_is_not_waited_for(
    capture: Capture, waiting_server: str, local: Any
) -> None:
    capture.limits = msgspec.structs.replace(capture.limits, visibility_timeout=0.0)
    capture.restart()
    other = await asyncpg.connect(waiting_server)
    try:
        await other.execute("begin; update items set name = 'newer' where id = 5")
        info = await capture.all_of(await capture.request_backfill())
    finally:
        other.terminate()
    assert (info.state, info.published) == ("done", 500)
